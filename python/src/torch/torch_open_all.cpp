// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <span>
#include <vector>

#include "onecopy/share/share.h"
#include "torch/torch.h"
#include "torch/torch_api.h"
#include "torch/torch_shim.h"

namespace onecopy::python::torch {
namespace {

/// Opens tensors in the order of their memory.
class Neighbours {
 public:
  Neighbours(const TorchSymbols& torch, const AotiShim& shim) : on_block_(torch, shim) {}

  /// Returns a new tensor, or null if only open() can make it.
  AotiShim::Tensor open(const Tensor& tensor) {
    const std::byte* const block = onecopy::storage(tensor).data();
    if (tensor.layout().numel() == 0) return nullptr;
    if (block != block_ || tensor.device() != device_) {
      on_block_.set(open_storage(tensor), tensor.device());
      block_ = block;
      device_ = tensor.device();
    }
    return on_block_.make(tensor.layout(), static_cast<std::size_t>(tensor.as<std::byte>() - block));
  }

 private:
  TensorsOnStorage on_block_;
  const std::byte* block_ = nullptr;
  Device device_;
};

bool is_simple(std::uint32_t flags) { return (flags & ~(kTorch | kRequiresGrad | kParameter)) == 0; }

}  // namespace

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

}  // namespace onecopy::python::torch
