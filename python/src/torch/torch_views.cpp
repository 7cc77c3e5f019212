// SPDX-License-Identifier: Apache-2.0
#include <utility>
#include <vector>

#include "binding/args.h"
#include "onecopy/memory/dlpack.h"
#include "torch/torch.h"
#include "torch/torch_api.h"
#include "torch/torch_shim.h"

namespace onecopy::python::torch {

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
    MadeTensors made(*shim);
    TensorsOnStorage on_memory(torch, *shim);
    on_memory.set(storage, memory.device());
    std::vector<std::size_t> rows;
    for (std::size_t row = 0; row < views.size(); ++row)
      if (const AotiShim::Tensor view = on_memory.make(views[row].layout, views[row].offset)) {
        made.add(view);
        rows.push_back(row);
      }
    const nb::list tensors = made.to_python();
    for (std::size_t i = 0; i < rows.size(); ++i) all[rows[i]] = tensors[i];
  }
  for (std::size_t row = 0; row < views.size(); ++row)
    if (!all[row].is_valid())
      all[row] = torch.on_storage(storage, views[row].layout, views[row].offset, memory.device());
  return all;
}

}  // namespace onecopy::python::torch
