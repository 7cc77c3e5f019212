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

/// Tensors on their way to Python; those that do not come there are released.
class Handles {
 public:
  explicit Handles(const Shim& shim) : shim_(shim) {}
  Handles(const Handles&) = delete;
  Handles& operator=(const Handles&) = delete;
  ~Handles() {
    for (const Shim::Tensor one : all_) shim_.release(one);
  }

  void add(Shim::Tensor one) { all_.push_back(one); }
  nb::list to_python() { return shim_.to_python(std::exchange(all_, {})); }

 private:
  const Shim& shim_;
  std::vector<Shim::Tensor> all_;
};

/// Tensors in the order of their memory: for each block and dtype torch makes one tensor by the book, without elements,
/// and the others like that one.
class Neighbours {
 public:
  Neighbours(const Api& torch, const Shim& shim) : torch_(torch), shim_(shim), bases_(shim) {}

  /// Null: it wants open().
  Shim::Tensor open(const Tensor& tensor) {
    const Layout& layout = tensor.layout();
    const std::span<std::byte> block = onecopy::storage(tensor);
    const auto offset = static_cast<std::size_t>(tensor.as<std::byte>() - block.data());
    if (layout.numel() == 0 || offset % size_of(layout.dtype()) != 0) return nullptr;
    enter(block.data(), tensor);
    const Shim::Tensor base = base_of(layout.dtype(), tensor.device());
    return base ? shim_.reinterpret(base, layout.shape(), layout.strides(),
                                    static_cast<std::int64_t>(offset / size_of(layout.dtype())))
                : nullptr;
  }

 private:
  void enter(const std::byte* block, const Tensor& tensor) {
    if (block == block_ && tensor.device() == device_) return;
    by_dtype_.clear();
    storage_ = open_storage(tensor);
    block_ = block;
    device_ = tensor.device();
  }

  /// Null: torch makes other tensors here, as in inference mode.
  Shim::Tensor base_of(DType dtype, Device device) {
    const auto [at, is_new] = by_dtype_.try_emplace(dtype, nullptr);
    if (!is_new) return at->second;
    const nb::object base = torch_.on_storage(storage_, Layout(dtype, {0}), 0, device);
    if (!torch_.is_tensor(base.ptr()) || !torch_.is_ordinary(base)) return nullptr;
    at->second = shim_.acquire(base);
    bases_.add(at->second);
    return at->second;
  }

  const Api& torch_;
  const Shim& shim_;
  Handles bases_;
  const std::byte* block_ = nullptr;
  Device device_;
  nb::object storage_;
  std::map<DType, Shim::Tensor> by_dtype_;
};

bool is_simple(std::uint32_t flags) { return (flags & ~(kTorch | kRequiresGrad | kParameter)) == 0; }

}  // namespace

std::vector<nb::object> open_all(std::span<const Tensor> tensors, std::span<const std::uint32_t> flags) {
  std::vector<nb::object> opened(tensors.size());
  std::vector<std::size_t> quick;
  const Api* const torch = Api::get();
  if (const Shim* const shim = Shim::get(); shim && torch) {
    Handles handles(*shim);
    Neighbours neighbours(*torch, *shim);
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const Shim::Tensor made = is_simple(flags[i]) ? neighbours.open(tensors[i]) : nullptr;
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
