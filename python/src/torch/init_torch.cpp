// SPDX-License-Identifier: Apache-2.0
// The functions of the bridge to torch that the package's Python code calls.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>

#include "binding/args.h"
#include "binding/holds.h"
#include "binding/module.h"
#include "onecopy/share/share.h"
#include "torch/storage_move.h"
#include "torch/torch_api.h"
#include "torch/torch_storages.h"

namespace onecopy::python {
namespace {

/// Returns whether the tensor's offset in its block is a multiple of the element size: the opener's torch storage
/// covers the whole block, and counts elements from its beginning. Returns false for a tensor without elements.
bool begins_with_an_element(const Tensor& tensor) {
  if (tensor.layout().numel() == 0) return false;
  const auto offset = static_cast<std::size_t>(tensor.as<std::byte>() - onecopy::storage(tensor).data());
  return offset % size_of(tensor.dtype()) == 0;
}

/// Reduces a plain tensor to a handle, which describes the whole tensor.
nb::object reduce_shared(nb::handle tensor) {
  if (!torch::is_tensor(tensor.ptr()) || !nb::cast<bool>(tensor.attr("is_cpu"))) return nb::none();
  auto shared = torch::share(tensor.ptr());
  if (!shared || !begins_with_an_element(shared->tensor)) return nb::none();
  return nb::make_tuple(nb::borrow(tensor.type()), share_held(shared->tensor), shared->flags);
}

/// Shares a tensor. Empty if only Python can describe it: subclasses, hooks, lazy bits, no elements, and a storage whose
/// offset in its block is not a multiple of the element size.
std::optional<torch::FlaggedTensor> shared_plainly(torch::TorchTensor&& tensor) {
  auto shared = std::move(tensor).share();
  if (!shared || (shared->flags & (torch::kConj | torch::kNeg)) != 0) return std::nullopt;
  if (shared->tensor.layout().numel() == 0) return std::nullopt;
  return shared;
}

/// The 15 arguments of torch's CUDA tensors, as reduce_tensor() of the package describes them.
nb::object reduce_plain(nb::handle tensor, nb::handle storage_class) {
  auto given = torch::TorchTensor::of(tensor.ptr());
  if (!given) return nb::none();
  const bool is_of_version = given->is_of_version();
  const auto shared = shared_plainly(*std::move(given));
  if (!shared) return nb::none();
  const torch::TorchSymbols& api = torch::TorchSymbols::require();
  const nb::object storage = api.storage_of(tensor);
  const std::size_t itemsize = size_of(shared->tensor.dtype());
  const Tensor block = torch::all_of_block(shared->tensor);
  const auto first = static_cast<std::size_t>(shared->tensor.as<std::byte>() - block.as<std::byte>());
  // The block that is sent for a tensor of a version has the tensor alone, and not its storage.
  const std::size_t offset = is_of_version ? first / itemsize : api.offset(tensor);
  const std::size_t nbytes = is_of_version ? block.nbytes() : api.nbytes(storage);
  const nb::object stride =
      is_of_version ? nb::object(tuple_of(shared->tensor.layout().strides())) : api.stride(tensor);
  if (first < offset * itemsize || first % itemsize != 0) return nb::none();
  const nb::object device = nb::int_(shared->tensor.device() == kCpu ? -1 : shared->tensor.device().index);
  const nb::bytes none("", 0);
  const bool requires_grad = (shared->flags & torch::kRequiresGrad) != 0;
  return nb::make_tuple(tensor.type(), api.size(tensor), stride, offset, storage_class, api.dtype(tensor),
                        device, share_held(block), nbytes, first - offset * itemsize, requires_grad, none,
                        device, none, false);
}

}  // namespace

// NOLINTNEXTLINE(readability-function-size): a list of definitions with their docstrings
void init_torch(nb::module_& m) {
  m.def("_reduce_plain", &reduce_plain, nb::arg("tensor").none(), nb::arg("storage_class"),
        "Returns the arguments that rebuild a plain torch tensor once in another process, with the class "
        "that opens its\n"
        "storage there. None for other tensors.");
  m.def(
      "torch_share",
      [](nb::handle tensor) -> std::optional<std::pair<Tensor, std::uint32_t>> {
        auto shared = torch::share(tensor.ptr());
        if (!shared) return std::nullopt;
        return std::pair(std::move(shared->tensor), shared->flags);
      },
      nb::arg("tensor"),
      "Shares the memory of a plain torch tensor. Moves a tensor of the CPU into shared memory in place, "
      "unless it lies\n"
      "there already; shares a tensor of CUDA where it is. Returns the memory and flags for torch_open(). "
      "None for other\n"
      "objects and for tensors that flags do not describe.");
  m.def("_torch_reduce", &reduce_shared, nb::arg("tensor"),
        "Shares a plain tensor of the CPU like torch_share(). Returns its class, the bytes of a handle "
        "that can be opened\n"
        "once, and flags for torch_open(). None for other tensors.");
  m.def("torch_open", &torch::open, nb::arg("tensor"), nb::arg("flags") = std::uint32_t{torch::kTorch},
        "Returns a torch tensor on the memory of an onecopy tensor. One block is one torch storage in this "
        "process.");
  m.def(
      "torch_share_storage", [](nb::handle storage) { return torch::share_storage(storage.ptr()); },
      nb::arg("storage"),
      "Shares a torch.UntypedStorage and returns its memory as uint8[nbytes]. Moves a storage of the CPU "
      "into shared memory if needed.");
  m.def(
      "torch_share_block", [](nb::handle storage) { return torch::share_block_of(storage.ptr()); },
      nb::arg("storage"),
      "Shares the block that a torch.UntypedStorage lies in. Returns the whole block as uint8[nbytes], and "
      "the offset of\n"
      "the storage in bytes: not 0 if torch got a part of a block through numpy or DLPack.");
  m.def("torch_open_storage", &torch::open_storage, nb::arg("tensor"),
        "Returns the torch.UntypedStorage on the tensor's whole block in this process.");
  m.def(
      "torch_is_shared", [](nb::handle storage) { return torch::is_shared(storage.ptr()); },
      nb::arg("storage"), "Returns whether this torch.UntypedStorage lies in memory of onecopy.");
  m.def(
      "torch_is_private", [](nb::handle storage) { return torch::is_private(storage.ptr()); },
      nb::arg("storage"),
      "Returns whether this torch.UntypedStorage has memory that onecopy did not make and never shared.");
  m.def(
      "_set_torch_keeps_storages", [](bool keeps) { torch::storages().set_kept_in_place(keeps); },
      nb::arg("keeps"), "Sets whether torch keeps storages that lie in memory of onecopy in place.");
  m.def(
      "torch_new_shared",
      [](std::size_t nbytes) {
        return torch::open_storage(onecopy::empty(Layout(DType::u8, {static_cast<std::int64_t>(nbytes)})));
      },
      nb::arg("nbytes"),
      "Returns a new, uninitialised torch.UntypedStorage of that many bytes in memory of onecopy.");
  m.def(
      "torch_counters",
      []() -> nb::typed<nb::dict, nb::str, nb::int_> {
        nb::dict result;
        result["moved"] = torch::counters.moved;
        result["moved_by_torch"] = torch::counters.moved_by_torch;
        result["adopted"] = torch::counters.adopted;
        return result;
      },
      "Counts how torch storages came into shared memory. moved: copied and exchanged in place; "
      "moved_by_torch: moved by\n"
      "torch's own, slower way; adopted: torch had shared them already.");
}

}  // namespace onecopy::python
