// SPDX-License-Identifier: Apache-2.0
#include "value/leaf.h"

#include <fmt/format.h>
#include <nanobind/stl/string.h>

#include <string_view>
#include <utility>

#include "array/numpy.h"
#include "binding/args.h"
#include "binding/device.h"
#include "binding/gil.h"
#include "core/throw_error.h"
#include "onecopy/share/share.h"
#include "share/session.h"
#include "torch/torch_api.h"

namespace onecopy::python {

using torch::FlaggedTensor;
using torch::TorchTensor;

bool is_tensor(PyObject* object) { return torch::is_tensor(object) || as_onecopy_tensor(object); }

Leaf leaf(nb::handle object) {
  if (const Tensor* const ours = as_onecopy_tensor(object.ptr())) return {object, {}, ours};
  return {object, TorchTensor::of(object.ptr()), nullptr};
}

std::optional<FlaggedTensor> Leaf::tensor(For use) && {
  if (of_torch)
    return use == For::this_process ? std::move(*of_torch).here() : std::move(*of_torch).share();
  if (ours && (use == For::this_process || is_sendable(*ours))) return FlaggedTensor{*ours, 0};
  if (ours) return FlaggedTensor{without_gil([&] { return sendable(*ours); }), 0};
  if (use == For::message)
    if (const auto array = SharedArray::of(object.ptr())) return FlaggedTensor{array->tensor(), kNumpyFlag};
  return std::nullopt;
}

std::optional<TorchTensor> Leaf::row_major() && {
  if (of_torch && !of_torch->is_row_major()) of_torch.reset();
  return std::move(of_torch);
}

// ---- plain values

nb::object plain_of(nb::handle object) {
  PyObject* plain = object.ptr();
  if (plain == Py_None || PyBool_Check(plain) || PyLong_CheckExact(plain) || PyFloat_CheckExact(plain) ||
      PyComplex_CheckExact(plain) || PyUnicode_CheckExact(plain) || PyBytes_CheckExact(plain))
    return nb::borrow(object);
  if (PyLong_Check(object.ptr())) plain = PyNumber_Long(object.ptr());
  else if (PyFloat_Check(object.ptr())) plain = PyNumber_Float(object.ptr());
  else if (PyUnicode_Check(object.ptr())) plain = PyUnicode_FromObject(object.ptr());
  else if (is_numpy_scalar(object)) return object.attr("item")();
  else return {};
  return owned(plain);
}

// ---- refusals

namespace {

std::string text_of_attr(nb::handle object, const char* attribute) {
  return nb::str(nb::handle(nb::getattr(object, attribute))).c_str();
}

bool is_instance_of_torch(nb::handle object, const char* module, const char* name) {
  const int is = PyObject_IsInstance(object.ptr(), nb::module_::import_(module).attr(name).ptr());
  if (is < 0) throw nb::python_error();
  return is == 1;
}

bool is_parameter(nb::handle tensor) { return is_instance_of_torch(tensor, "torch.nn", "Parameter"); }

/// Returns the names of the dense parts of a sparse tensor of this layout.
const char* parts_of_layout(std::string_view layout) {
  if (layout == "torch.sparse_coo") return "its indices() and values(), once it is coalesced";
  if (layout == "torch.sparse_csr" || layout == "torch.sparse_bsr")
    return "its crow_indices(), col_indices() and values()";
  if (layout == "torch.sparse_csc" || layout == "torch.sparse_bsc")
    return "its ccol_indices(), row_indices() and values()";
  return "the dense tensors that it consists of";
}

/// Says which property of a tensor of torch has no place in shared memory: its layout, its elements, its device, or that
/// it has no memory.
[[noreturn]] void refuse_torch(nb::handle tensor, const std::string& place) {
  constexpr const char* kQueue = "send it through a onecopy.multiprocessing.Queue";
  if (is_instance_of_torch(tensor, "torch.nn.parameter", "UninitializedTensorMixin"))
    throw_error(ErrorCode::invalid_argument,
                "{} has no shape and no memory yet; run the lazy module once first", place);
  const std::string layout = text_of_attr(tensor, "layout"), dtype = text_of_attr(tensor, "dtype");
  const bool is_jagged = layout == "torch.jagged";
  if (layout != "torch.strided" && !is_jagged)
    throw_error(ErrorCode::unsupported,
                "{} is a tensor of the layout {}, but only dense tensors can be shared; share {}, or {}",
                place, layout, parts_of_layout(layout), kQueue);
  const bool is_known = parse_dtype(std::string_view(dtype).substr(dtype.find('.') + 1)).has_value();
  if (!is_jagged && (!is_known || !torch::device_of(tensor)))
    throw_error(ErrorCode::unsupported,
                "{} has elements of {} on the device {}, but only plain numbers on the cpu and on CUDA and "
                "Ascend devices can be shared; share a copy of that kind or a view of its bytes, such as "
                "view(torch.uint8), or {}",
                place, dtype, text_of_attr(tensor, "device"), kQueue);
  if (!nb::getattr(tensor, "_backward_hooks", nb::none()).is_none())
    throw_error(ErrorCode::unsupported, "{} has hooks, which belong to this process; share its detach()",
                place);
  throw_error(ErrorCode::unsupported,
              "{} is a {}, which has no memory of its own; share the tensors that it is made of, such as "
              "the to_local() of a DTensor",
              place, nb::type_name(tensor.type()).c_str());
}

/// Throws an InvalidArgument that is also a TypeError.
[[noreturn]] void refuse_type(const std::string& text) {
  const nb::module_ errors = nb::module_::import_("onecopy.errors");
  const nb::object kind = errors.attr("_both")(errors.attr("InvalidArgument"), nb::handle(PyExc_TypeError));
  raise(kind(text));
}

}  // namespace

void refuse_foreign(const std::string& place) {
  refuse_type(place +
              " is an array of another library, whose memory stays where it is; use a copy of it in memory "
              "of onecopy: onecopy.asarray()");
}

void refuse(nb::handle object, const std::string& place) {
  if (torch::is_any_tensor(object.ptr())) refuse_torch(object, place);
  refuse_type(
      fmt::format("{} must be a tensor or an array of onecopy, torch, numpy or another library that has "
                  "DLPack or the buffer protocol, not {}",
                  place, short_repr(object)));
}

std::string why_refused(nb::handle tensor) {
  if (!torch::is_tensor(tensor.ptr()) || TorchTensor::of(tensor.ptr())) return {};
  try {
    refuse_torch(tensor, "it");
  } catch (const Error& error) {
    return error.what();
  }
}

// ---- arrays

namespace {

/// Calls a function of torch, or returns nothing if it raises: a tensor that is made of other tensors has no elements.
template <class Call>
auto unless_torch_refuses(Call&& call) -> decltype(call()) {
  try {
    return call();
  } catch (nb::python_error& error) {
    if (!error.matches(PyExc_Exception) || error.matches(PyExc_MemoryError)) throw;
    return {};
  }
}

/// Returns a row-major copy of the elements, with the original's properties.
nb::object copy_of_torch(const TorchTensor& from) {
  const Tensor made = empty_in_order(Layout(from.layout.dtype(), from.layout.shape()), from.device);
  torch::open(made, torch::kTorch).attr("copy_")(from.object.attr("detach")());
  std::uint32_t flags = from.leaf_flags();
  if (!nb::cast<bool>(from.object.attr("is_leaf"))) flags &= ~std::uint32_t{torch::kRequiresGrad};
  return torch::open(made, flags);
}

/// Returns a tensor of a subclass as a torch.Tensor. Refuses a tensor made of other tensors.
nb::object elements_of_torch(nb::handle x, bool with_graph, const std::string& place) {
  nb::object plain = unless_torch_refuses([&]() -> nb::object {
    const nb::object from = with_graph ? nb::borrow(x) : nb::object(x.attr("detach")());
    return from.attr("as_subclass")(nb::module_::import_("torch").attr("Tensor"));
  });
  if (!plain.is_valid() || !torch::is_tensor(plain.ptr())) refuse_torch(x, place);
  return plain;
}

/// Returns a torch.Tensor or Parameter on the memory of a tensor of a subclass. Autograd must not record the
/// conversion, since its result would not be a leaf.
nb::object plain_torch(nb::handle x, bool copy, const std::string& place) {
  if (is_instance_of_torch(x, "torch.nn.parameter", "UninitializedTensorMixin")) refuse_torch(x, place);
  const bool is_leaf = nb::cast<bool>(x.attr("is_leaf"));
  const bool requires_grad = nb::cast<bool>(x.attr("requires_grad"));
  nb::object plain =
      elements_of_torch(x, !is_leaf && !copy, place);  // torch raises the reason for refusing a graph
  if (!is_leaf) return plain;
  const std::uint32_t flags =
      (is_parameter(x) ? torch::kParameter : 0u) | (requires_grad ? torch::kRequiresGrad : 0u);
  return torch::as_leaf(std::move(plain), flags);
}

}  // namespace

Source array_of(nb::handle object, const std::string& place) {
  if (!torch::is_any_tensor(object.ptr())) {
    if (auto source = Source::of(object, place.c_str())) return *std::move(source);
    refuse(object, place);
  }
  if (!torch::TorchSymbols::require().placed(object.ptr())) refuse_torch(object, place);
  auto source = unless_torch_refuses([&]() -> std::optional<Source> {
    return Source::of(object.attr("detach")().attr("resolve_conj")().attr("resolve_neg")(), place.c_str());
  });
  if (!source) refuse_torch(object, place);
  return *std::move(source);
}

nb::object shareable_array(nb::handle object, bool copy, const std::string& place) {
  nb::object torch_tensor;
  if (torch::is_tensor(object.ptr())) torch_tensor = nb::borrow(object);
  else if (torch::is_any_tensor(object.ptr())) torch_tensor = plain_torch(object, copy, place);
  if (!torch_tensor.is_valid()) {
    const auto source = Source::of(object, place.c_str());
    if (!source) return {};
    return copy ? nb::cast(source->copied()) : source->as_tensor();
  }
  if (!copy) return torch_tensor;
  const auto from = leaf(torch_tensor).of_torch;
  if (!from) refuse_torch(object, place);
  return copy_of_torch(*from);
}

}  // namespace onecopy::python
