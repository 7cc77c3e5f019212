// SPDX-License-Identifier: Apache-2.0
// Describes a plain torch tensor for a reducer of multiprocessing in one call, since in Python each attribute costs as
// much as the handle.
#include "binding/bytes.h"
#include "binding/holds.h"
#include "binding/module.h"
#include "onecopy/share/share.h"
#include "torch/torch.h"
#include "torch/torch_api.h"

namespace onecopy::python {
namespace {

/// Shares a tensor. Empty if only Python can describe it: subclasses, hooks, lazy bits, no elements, and a storage whose
/// offset in its block is not a multiple of the element size.
std::optional<torch::FlaggedTensor> shared_plainly(nb::handle tensor) {
  if (!torch::is_tensor(tensor.ptr())) return std::nullopt;
  auto shared = torch::share(tensor.ptr());
  if (!shared || (shared->flags & (torch::kConj | torch::kNeg)) != 0) return std::nullopt;
  if (shared->tensor.layout().numel() == 0) return std::nullopt;
  return shared;
}

/// The 15 arguments of torch's CUDA tensors, as reduce_tensor() of the package describes them.
nb::object reduce_plain(nb::handle tensor, nb::handle storage_class) {
  const auto shared = shared_plainly(tensor);
  if (!shared) return nb::none();
  const torch::TorchSymbols& api = *torch::TorchSymbols::get();
  const nb::object storage = api.storage_of(tensor);
  const std::size_t offset = api.offset(tensor);
  const std::size_t itemsize = size_of(shared->tensor.dtype());
  const Tensor block = torch::all_of_block(shared->tensor);
  const auto first = static_cast<std::size_t>(shared->tensor.as<std::byte>() - block.as<std::byte>());
  if (first < offset * itemsize || first % itemsize != 0) return nb::none();
  const nb::object device = nb::int_(shared->tensor.device() == kCpu ? -1 : shared->tensor.device().index);
  const nb::bytes none("", 0);
  const bool requires_grad = (shared->flags & torch::kRequiresGrad) != 0;
  return nb::make_tuple(tensor.type(), api.size(tensor), api.stride(tensor), offset, storage_class,
                        api.dtype(tensor), device, share_held(block), api.nbytes(storage),
                        first - offset * itemsize, requires_grad, none, device, none, false);
}

}  // namespace

void init_reduce(nb::module_& m) {
  m.def("_reduce_plain", &reduce_plain, nb::arg("tensor").none(), nb::arg("storage_class"),
        "Returns the arguments that rebuild a plain torch tensor once in another process, with the class "
        "that "
        "opens its\n"
        "storage there. None for other tensors.");
}

}  // namespace onecopy::python
