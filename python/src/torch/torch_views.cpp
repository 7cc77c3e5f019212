// SPDX-License-Identifier: Apache-2.0
#include <map>
#include <utility>
#include <vector>

#include "binding/args.h"
#include "onecopy/memory/dlpack.h"
#include "torch/torch.h"
#include "torch/torch_api.h"
#include "torch/torch_shim.h"

namespace onecopy::python::torch {
namespace {

/// Tensors of torch's C interface until Python has them.
class Made {
 public:
  explicit Made(const AotiShim& shim) : shim_(shim) {}
  Made(const Made&) = delete;
  Made& operator=(const Made&) = delete;
  ~Made() {
    for (const AotiShim::Tensor one : all_) shim_.release(one);
  }
  void add(AotiShim::Tensor one) { all_.push_back(one); }
  nb::list to_python() { return shim_.to_python(std::exchange(all_, {})); }

 private:
  const AotiShim& shim_;
  std::vector<AotiShim::Tensor> all_;
};

/// Makes views through torch's C interface, from one view of each dtype that torch's Python API makes. Returns the rows
/// that it made.
std::vector<std::size_t> make_quickly(const TorchSymbols& torch, const AotiShim& shim, nb::handle storage,
                                      Device device, std::span<const View> views, Made& made) {
  std::vector<std::size_t> rows;
  std::map<DType, AotiShim::Tensor> like;
  Made bases(shim);
  for (std::size_t row = 0; row < views.size(); ++row) {
    const auto& [layout, offset] = views[row];
    if (layout.numel() == 0 || offset % size_of(layout.dtype()) != 0) continue;
    const auto [at, is_new] = like.try_emplace(layout.dtype(), nullptr);
    if (is_new) {
      const nb::object base = torch.on_storage(storage, Layout(layout.dtype(), {0}), 0, device);
      if (!torch.is_tensor(base.ptr()) || !torch.is_ordinary(base)) continue;
      at->second = shim.acquire(base);
      bases.add(at->second);
    }
    if (!at->second) continue;
    const auto from = static_cast<std::int64_t>(offset / size_of(layout.dtype()));
    if (const AotiShim::Tensor view =
            shim.reinterpret(at->second, layout.shape(), layout.strides(), from)) {
      made.add(view);
      rows.push_back(row);
    }
  }
  return rows;
}

}  // namespace

std::vector<nb::object> views_of(const Tensor& memory, std::span<const View> views) {
  import_package("torch", "a torch.Tensor");
  const TorchSymbols& torch = *TorchSymbols::get();
  torch.require_names();
  torch.use(memory.device());
  // torch has no read-only tensors, and warns of memory that is marked so.
  const Tensor unmarked(memory.block(), memory.data(), memory.layout(), memory.device(),
                        Access::read_write);
  const nb::object storage = torch.storage_of(torch.import(to_dlpack_versioned(unmarked)));
  std::vector<nb::object> all(views.size());
  if (const AotiShim* const shim = AotiShim::get()) {
    Made made(*shim);
    const auto rows = make_quickly(torch, *shim, storage, memory.device(), views, made);
    const nb::list tensors = made.to_python();
    for (std::size_t i = 0; i < rows.size(); ++i) all[rows[i]] = tensors[i];
  }
  for (std::size_t row = 0; row < views.size(); ++row)
    if (!all[row].is_valid())
      all[row] = torch.on_storage(storage, views[row].layout, views[row].offset, memory.device());
  return all;
}

}  // namespace onecopy::python::torch
