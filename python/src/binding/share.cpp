// SPDX-License-Identifier: Apache-2.0
#include "onecopy/share/share.h"

#include <fmt/format.h>
#include <nanobind/stl/string.h>

#include "array/dtype.h"
#include "array/exports.h"
#include "array/source.h"
#include "binding/args.h"
#include "binding/device.h"
#include "binding/gil.h"
#include "binding/kept.h"
#include "binding/module.h"
#include "device/pinned_ranges.h"
#include "onecopy/core/error.h"
#include "onecopy/share/bundle.h"
#include "share/session.h"
#include "torch/torch.h"
#include "value/bundle_value.h"
#include "value/leaf.h"
#include "value/tree.h"
#include "value/values.h"

namespace onecopy::python {
namespace {

/// Returns the memory of an array. `given` is the caller's object; `array` may be a temporary view of it.
Tensor memory_of(Leaf&& array, nb::handle given) {
  if (array.ours) return *array.ours;
  const nb::handle object = array.object;
  const bool is_of_version =
      array.of_torch && array.of_torch->is_of_version();  // the handle keeps the version
  const torch::UserShares here;
  auto shared = std::move(array).tensor(For::others);
  if (!shared) refuse(object, "x");
  if ((shared->flags & (torch::kConj | torch::kNeg)) != 0)
    throw Error(ErrorCode::unsupported,
                "x is lazily conjugated or negated, which a handle cannot express; share "
                "x.resolve_conj().resolve_neg(), or a bundle: share({\"x\": x})");
  if (!is_on_host(shared->tensor) && !is_of_version)
    nb::module_::import_("onecopy.device.alive").attr("keep_with")(given, nb::cast(shared->tensor));
  return std::move(shared->tensor);
}

/// Returns an array as a tensor that other processes can open, and whether its memory is new; None if the object is not
/// an array.
nb::object as_tensor(nb::handle x, bool copy) {
  drain_decrefs();
  const nb::object array = shareable_array(x, copy, "obj");
  if (!array.is_valid()) return nb::none();
  const bool is_copied = !torch::is_tensor(array.ptr()) && !array.is(x);
  Tensor tensor = memory_of(leaf(array), x);
  const bool is_new = copy || (is_copied && !find_exported(tensor.view()));
  return nb::make_tuple(array.is(x) && !torch::is_tensor(x.ptr()) ? array : nb::cast(std::move(tensor)),
                        is_new);
}

/// Returns the message of a bundle: its value as bytes, and its tensors.
Message encode(const Tree& tree) {
  const torch::UserShares here;
  Message message;
  message.tensors.reserve(tree.leaves().size());
  if (!encode_value(tree.value().ptr(), message)) {
    for (const Tree::Leaf& at : tree.leaves())
      if (!leaf(at.array).tensor(For::others)) refuse(at.array, fmt::format("x at \"{}\"", at.name));
    throw Error(ErrorCode::invalid_argument,
                "x contains a str with lone surrogates, or is larger than 4 GiB");
  }
  if (message.tensors.size() != tree.leaves().size())
    throw Error(ErrorCode::invalid_argument, "x was changed by another thread while it was shared");
  return message;
}

Handle share_nested(Tree& tree) {
  const AdoptionRound round;  // the tree keeps its tensors alive
  Message message = encode(tree);
  const Stream stream = stream_of(message.tensors);
  std::vector<NamedTensor> rows;
  rows.reserve(tree.leaves().size() + tree.other_names().size());
  for (std::size_t i = 0; i < tree.leaves().size(); ++i)
    rows.emplace_back(tree.take_name(i), std::move(message.tensors[i]));
  BundleValue value{static_cast<std::uint32_t>(rows.size()), {}, std::move(message.data)};
  for (const Tree::OtherName& other : tree.other_names()) {
    rows.emplace_back(other.name, rows[other.leaf].second);
    value.again.push_back(other.leaf);
  }
  tree.let_collect();
  const std::vector<DeviceStream> current =
      PinnedRanges::any() ? current_streams() : std::vector<DeviceStream>();
  const CurrentStreams in_order(current);  // copies from cards may still be filling the tensors
  return without_gil([&] { return share_bundle(rows, value.encode(), stream); });
}

Exact exact_arg(nb::handle value) {
  if (value.is(nb::handle(Py_False))) return Exact::no;
  if (value.is(nb::handle(Py_True))) return Exact::refuse;
  if (utf8_of(value) == "copy") return Exact::copy;
  raise_type_error(fmt::format("exact must be False, True or \"copy\", not {}", short_repr(value)));
}

Copy copy_arg(nb::handle value) {
  if (value.is_none()) return Copy::as_needed;
  const int truth = PyObject_IsTrue(value.ptr());
  if (truth < 0) throw nb::python_error();
  return truth != 0 ? Copy::all : Copy::no;
}

Handle share_any(nb::handle x, nb::handle copy, nb::handle exact) {
  drain_decrefs();
  const Exact how = exact_arg(exact);
  const Copy copies = copy_arg(copy);
  Leaf found = leaf(x);
  const bool is_in_place = found.ours ? is_shareable(*found.ours) : found.of_torch.has_value();
  if (is_in_place && copies != Copy::all) return share_in_order(memory_of(std::move(found), x), how);
  Tree tree(x, copies);
  if (!tree.is_nested()) return share_in_order(memory_of(leaf(tree.leaves()[0].array), x), how);
  if (how == Exact::no) return share_nested(tree);
  throw Error(ErrorCode::invalid_argument,
              "exact is for one tensor at a time; share the tensors of x one by one, or a copy: copy=True");
}

}  // namespace

void init_share(nb::module_& m) {
  m.def("_as_tensor", &as_tensor, nb::arg("x").none(), nb::arg("copy"),
        nb::sig("def _as_tensor(x: typing.Any, copy: bool) -> tuple[Tensor, bool] | None"));
  m.def(
      "_dtype", [](nb::handle dtype) { return dtype_object(dtype_arg(dtype, "dtype")); },
      nb::arg("dtype").none(), nb::sig("def _dtype(dtype: typing.Any) -> onecopy.dtypes.DType"));
  m.def("share", &share_any, nb::arg("x").none(), nb::kw_only(), nb::arg("copy").none() = nb::none(),
        nb::arg("exact").none() = false,
        nb::sig("def share(x: typing.Any, *, copy: bool | None = None, exact: bool | "
                "typing.Literal['copy'] = False) -> Handle"),
        "Returns a handle with which other processes open the same memory.\n"
        "\n"
        ">>> handle = onecopy.share(model.state_dict())  # keep it until the others have opened it\n"
        ">>> text = str(handle)  # for an environment variable, a command line, a request\n"
        "\n"
        "Memory of onecopy is shared in place. The storage of a torch tensor moves into shared memory\n"
        "with one copy the first time; the tensor and all its views use the new memory then. Arrays\n"
        "of other libraries (numpy, jax, bytearray, anything with DLPack or the buffer protocol)\n"
        "cannot move: they are copied once, and later writes to the original are not visible to other\n"
        "processes. Allocate with ``empty().numpy()`` to share without a copy.\n"
        "\n"
        "Memory of a CUDA device is shared in place, from any allocator (torch, cupy), and stays\n"
        "allocated until no process holds it. On Ascend devices this holds for memory of onecopy only.\n"
        "A handle gives access to the whole allocation that the tensor lies in. Work in the program's\n"
        "current stream (torch's, or else the default stream) runs before the openers' work.\n"
        "\n"
        "A nested mapping, list or tuple of arrays and plain values becomes a bundle with one handle, and\n"
        "so does a ``torch.nn.Module`` (its parameters and buffers, tied ones once). Memory of torch's\n"
        "CUDA allocator ends with its process: a module's tensors move from there to memory of onecopy,\n"
        "one at a time, unless other tensors, processes or captured graphs use the memory.\n"
        "\n"
        "The handle of a tensor transfers neither gradients nor ``requires_grad``: the opened tensor\n"
        "requires no gradient. ``Bundle.tree()`` keeps ``requires_grad``, but not the gradients.\n"
        "\n"
        "Args:\n"
        "    x: the value to share.\n"
        "    copy: True shares a copy and leaves the original where it is. Only values are copied, so a\n"
        "        tensor inside an autograd graph can be shared, too. False leaves a module's tensors on a\n"
        "        CUDA device where they are. None moves them, as said above.\n"
        "    exact: True raises Unsupported, with the sizes, if the handle would give access to more\n"
        "        memory than x: to the rest of its storage or, on a device with memory of another\n"
        "        allocator, of the whole allocation. \"copy\" shares a copy instead. For one tensor only.\n"
        "\n"
        "Returns:\n"
        "    A Handle that keeps the memory alive.\n"
        "\n"
        "Raises:\n"
        "    InvalidArgument: x is or contains an object that is neither an array nor a plain value; the\n"
        "        error is a TypeError, too.\n"
        "    Unsupported: the tensor is sparse or quantized, its elements are not plain numbers, it is on\n"
        "        an unsupported device, or the memory of its device cannot be exported; or a module has\n"
        "        weights that are neither parameters nor buffers.\n"
        "    RuntimeError: the tensor requires a gradient and is not a leaf.\n"
        "    OutOfMemory.");
}

}  // namespace onecopy::python
