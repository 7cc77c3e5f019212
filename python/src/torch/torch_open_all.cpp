// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "onecopy/share/share.h"
#include "torch/torch.h"
#include "torch/torch_api.h"
#include "torch/torch_shim.h"

namespace onecopy::python::torch {
namespace {

/// Tensors to be passed to Python. Releases the tensors that were not passed.
class Handles {
 public:
  explicit Handles(const AotiShim& shim) : shim_(shim) {}
  Handles(const Handles&) = delete;
  Handles& operator=(const Handles&) = delete;
  ~Handles() {
    for (const AotiShim::Tensor one : all_) shim_.release(one);
  }

  void add(AotiShim::Tensor one) { all_.push_back(one); }
  nb::list to_python() { return shim_.to_python(std::exchange(all_, {})); }

 private:
  const AotiShim& shim_;
  std::vector<AotiShim::Tensor> all_;
};

/// Opens tensors in the order of their memory. For each block and dtype, torch's Python API makes one tensor without
/// elements, and its C interface makes the other tensors from this base.
class Neighbours {
 public:
  Neighbours(const TorchSymbols& torch, const AotiShim& shim) : torch_(torch), shim_(shim), bases_(shim) {}

  /// Returns a new tensor, or null if only open() can make it.
  AotiShim::Tensor open(const Tensor& tensor) {
    const Layout& layout = tensor.layout();
    const std::span<std::byte> block = onecopy::storage(tensor);
    const auto offset = static_cast<std::size_t>(tensor.as<std::byte>() - block.data());
    if (layout.numel() == 0 || offset % size_of(layout.dtype()) != 0) return nullptr;
    select(block.data(), tensor);
    const AotiShim::Tensor base = base_of(layout.dtype(), tensor.device());
    return base ? shim_.reinterpret(base, layout.shape(), layout.strides(),
                                    static_cast<std::int64_t>(offset / size_of(layout.dtype())))
                : nullptr;
  }

 private:
  void select(const std::byte* block, const Tensor& tensor) {
    if (block == block_ && tensor.device() == device_) return;
    by_dtype_.clear();
    storage_ = open_storage(tensor);
    block_ = block;
    device_ = tensor.device();
  }

  /// Returns the base of the dtype, or null if torch makes tensors of another kind now, as in inference mode.
  AotiShim::Tensor base_of(DType dtype, Device device) {
    const auto [at, is_new] = by_dtype_.try_emplace(dtype, nullptr);
    if (!is_new) return at->second;
    const nb::object base = torch_.on_storage(storage_, Layout(dtype, {0}), 0, device);
    if (!torch_.is_tensor(base.ptr()) || !torch_.is_ordinary(base)) return nullptr;
    at->second = shim_.acquire(base);
    bases_.add(at->second);
    return at->second;
  }

  const TorchSymbols& torch_;
  const AotiShim& shim_;
  Handles bases_;
  const std::byte* block_ = nullptr;
  Device device_;
  nb::object storage_;
  std::map<DType, AotiShim::Tensor> by_dtype_;
};

bool is_simple(std::uint32_t flags) { return (flags & ~(kTorch | kRequiresGrad | kParameter)) == 0; }

}  // namespace

std::vector<nb::object> open_all(std::span<const Tensor> tensors, std::span<const std::uint32_t> flags) {
  std::vector<nb::object> opened(tensors.size());
  std::vector<std::size_t> quick;
  const TorchSymbols* const torch = TorchSymbols::get();
  if (const AotiShim* const shim = AotiShim::get(); shim && torch) {
    Handles handles(*shim);
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
