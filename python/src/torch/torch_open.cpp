// SPDX-License-Identifier: Apache-2.0
// Makes tensors of torch on memory of onecopy, and copies.
#include <cstddef>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "binding/device.h"
#include "onecopy/core/error.h"
#include "onecopy/share/pin.h"
#include "onecopy/share/share.h"
#include "torch/storage_move.h"
#include "torch/torch_api.h"
#include "torch/torch_shim.h"
#include "torch/torch_storages.h"

namespace onecopy::python::torch {
namespace {

/// Returns a new storage on a whole block. REQUIRES: `bytes` is u8[size].
nb::object new_storage(const TorchSymbols& torch, const Tensor& bytes) {
  nb::object storage = torch.storage_of(storages().wrap(torch, bytes));
  storages().bind(torch, storage, onecopy::storage(bytes).data());
  return storage;
}

/// Returns the storage of this process for the block. A block that is used on two devices may have the same address on
/// both, and has one storage for each. Blocks that are lent of a version may begin at one address.
nb::object storage_on(Device device, const TorchSymbols& torch, std::span<const std::byte> block) {
  nb::object storage = storages().storage_at(torch, block.data());
  if (!storage.is_valid() || torch.nbytes(storage) < block.size()) return {};
  return device == kCpu || torch.device_of_storage(storage) == device ? storage : nb::object();
}

/// Returns a tensor of a card on memory of the host. The block's own storage belongs to the host.
nb::object view_of_host(const TorchSymbols& torch, const Tensor& tensor) {
  if (!TorchSymbols::can_import(tensor.layout().dtype()))
    throw Error(ErrorCode::unsupported, "this torch cannot make tensors of this dtype on foreign memory");
  return torch.import(to_dlpack_versioned(tensor));
}

/// Returns a tensor on the block's storage in this process, which it makes at the first call.
nb::object plain(const TorchSymbols& torch, const Tensor& tensor) {
  if (is_view(tensor)) return view_of_host(torch, tensor);
  const std::span<std::byte> block = onecopy::storage(tensor);
  const auto offset = static_cast<std::size_t>(static_cast<std::byte*>(tensor.data()) - block.data());
  const Layout& layout = tensor.layout();
  const Device device = tensor.device();
  if (nb::object storage = storage_on(device, torch, block); storage.is_valid()) {
    if (device != kCpu) storages().record_stream(block.data(), current_stream(device), tensor);
    return torch.on_storage(storage, layout, offset, device);
  }
  const bool whole = offset == 0 && layout.nbytes() == block.size() && layout.is_contiguous();
  if (!whole || block.empty() || !TorchSymbols::can_import(layout.dtype()))
    return torch.on_storage(new_storage(torch, all_of_block(tensor)), layout, offset, device);
  nb::object opened = storages().wrap(torch, tensor);
  storages().bind(torch, torch.storage_of(opened), block.data());
  return opened;
}

void check(DType dtype, std::uint32_t flags) {
  if ((flags & ~kKnownFlags) != 0 || (flags & kTorch) == 0)
    throw Error(ErrorCode::bad_handle,
                "this says things about a torch tensor that this version does not know");
  const bool differentiable = dtype >= DType::f16;
  if ((flags & kRequiresGrad) != 0 && !differentiable)
    throw Error(ErrorCode::bad_handle, "a tensor of integers cannot require a gradient");
}

/// Opens tensors in the order of their memory.
class Neighbours {
 public:
  Neighbours(const TorchSymbols& torch, const AotiShim& shim) : on_block_(torch, shim) {}

  /// Returns a new tensor, or null if only open() can make it.
  AotiShim::Tensor open(const Tensor& tensor) {
    const std::span<const std::byte> block = onecopy::storage(tensor);
    if (tensor.layout().numel() == 0) return nullptr;
    if (block.data() != block_.data() || block.size() != block_.size() || tensor.device() != device_) {
      on_block_.set(open_storage(tensor), tensor.device());
      block_ = block;
      device_ = tensor.device();
    }
    return on_block_.make(tensor.layout(), static_cast<std::size_t>(tensor.as<std::byte>() - block.data()));
  }

 private:
  TensorsOnStorage on_block_;
  std::span<const std::byte> block_;
  Device device_;
};

bool is_simple(std::uint32_t flags) { return (flags & ~(kTorch | kRequiresGrad | kParameter)) == 0; }

}  // namespace

nb::object open(const Tensor& tensor, std::uint32_t flags) {
  check(tensor.dtype(), flags);
  const TorchSymbols& torch = TorchSymbols::require();
  torch.use(tensor.device());
  nb::object opened = plain(torch, tensor);
  if ((flags & kConj) != 0) opened = opened.attr("conj")();
  if ((flags & kNeg) != 0) opened = torch.neg_view(opened);
  return as_leaf(std::move(opened), flags);
}

Tensor all_of_block(const Tensor& tensor) {
  const std::span<std::byte> block = onecopy::storage(tensor);
  return {tensor.block(), block.data(), row_of_bytes(block.size()), tensor.device(), tensor.access()};
}

std::vector<nb::object> open_all(std::span<const Tensor> tensors, std::span<const std::uint32_t> flags) {
  std::vector<nb::object> opened(tensors.size());
  std::vector<std::size_t> quick;
  const TorchSymbols* const torch = TorchSymbols::get();
  if (const AotiShim* const shim = AotiShim::get(); shim && torch) {
    MadeTensors handles(*shim);
    Neighbours neighbours(*torch, *shim);
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const AotiShim::Tensor made = is_simple(flags[i]) ? neighbours.open(tensors[i]) : nullptr;
      if (!made) continue;
      handles.add(made);
      quick.push_back(i);
    }
    const nb::list made = handles.to_python();
    for (std::size_t at = 0; at < quick.size(); ++at)
      opened[quick[at]] = torch->as_leaf(made[at], (flags[quick[at]] & kParameter) != 0,
                                         (flags[quick[at]] & kRequiresGrad) != 0);
  }
  for (std::size_t i = 0; i < tensors.size(); ++i)
    if (!opened[i].is_valid()) opened[i] = open(tensors[i], flags[i]);
  return opened;
}

nb::object open_storage(const Tensor& bytes) {
  const TorchSymbols& torch = TorchSymbols::require();
  torch.use(bytes.device());
  const std::span<std::byte> block = onecopy::storage(bytes);
  if (nb::object storage = storage_on(bytes.device(), torch, block); storage.is_valid()) {
    if (!is_on_host(bytes)) storages().record_stream(block.data(), current_stream(bytes.device()), bytes);
    return storage;
  }
  return new_storage(torch, all_of_block(bytes));
}

nb::object as_leaf(nb::object tensor, std::uint32_t flags) {
  return TorchSymbols::require().as_leaf(std::move(tensor), (flags & kParameter) != 0,
                                         (flags & kRequiresGrad) != 0);
}

nb::object copy_of(const Layout& layout, ByteSpan elements, std::uint32_t flags) {
  check(layout.dtype(), flags);
  const TorchSymbols& torch = TorchSymbols::require();
  nb::object made = torch.make_again(layout);
  if (elements.empty()) return as_leaf(std::move(made), flags);
  const auto placed = torch.placed(made.ptr());
  if (!placed || placed->layout.nbytes() != elements.size())
    throw Error(ErrorCode::unsupported, "torch returned a tensor with another layout than requested");
  std::memcpy(placed->data, elements.data(), elements.size());
  return as_leaf(std::move(made), flags);
}

}  // namespace onecopy::python::torch
