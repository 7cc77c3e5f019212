// SPDX-License-Identifier: Apache-2.0
// Makes new tensors of torch, on its own memory or on memory that it does not know.
#include <string>
#include <vector>

#include "binding/args.h"
#include "onecopy/core/error.h"
#include "onecopy/memory/dlpack.h"
#include "torch/torch.h"
#include "torch/torch_api.h"
#include "torch/torch_shim.h"

namespace onecopy::python::torch {

nb::object TorchSymbols::on_storage(nb::handle storage, const Layout& layout, std::size_t offset,
                                    Device where) const {
  if (offset % size_of(layout.dtype()) != 0)
    throw Error(ErrorCode::unsupported,
                "the offset of this tensor in its block is not a multiple of its element size, so torch "
                "cannot open it; open it without framework=\"torch\", or send a copy");
  nb::object tensor =
      empty_(no_elements_, nb::arg("dtype") = needed(layout.dtype()), nb::arg("device") = device(where));
  set_(tensor, storage, offset / size_of(layout.dtype()), tuple_of(layout.shape()),
       tuple_of(layout.strides()));
  return tensor;
}

const nb::object& TorchSymbols::needed(DType dtype) const {
  const nb::object& theirs = dtypes_[static_cast<std::size_t>(dtype)];
  if (!theirs.is_none()) return theirs;
  throw Error(ErrorCode::unsupported,
              "this version of torch has no dtype " + std::string(name(dtype)) + "; use a newer one");
}

nb::object TorchSymbols::make(const Layout& layout) const {
  return empty_(tuple_of(layout.shape()), nb::arg("dtype") = needed(layout.dtype()),
                nb::arg("device") = cpu_);
}

/// Does not keep a tensor of another class as a pattern, such as a fake tensor made in a mode of torch.
nb::object TorchSymbols::make_again(const Layout& layout) const {
  std::size_t kind = static_cast<std::size_t>(layout.dtype()) + layout.ndim();
  for (const std::int64_t size : layout.shape()) kind = kind * 31 + static_cast<std::size_t>(size);
  Pattern& pattern = patterns_[kind % patterns_.size()];
  if (!pattern.tensor.is_valid() || !(pattern.layout == layout)) {
    nb::object made = make(layout);
    if (is_tensor(made.ptr())) pattern = {layout, made};
    return made;
  }
  const nb::object like = pattern.tensor;
  return call(empty_like_, like);
}

nb::object TorchSymbols::as_parameter(nb::handle tensor, bool requires_grad) const {
  const nb::handle parameter(reinterpret_cast<PyObject*>(parameter_type));
  if (make_subclass_.is_none()) return parameter(tensor, requires_grad);
  return make_subclass_(parameter, tensor, requires_grad);
}

nb::object TorchSymbols::as_leaf(nb::object tensor, bool is_parameter, bool requires_grad) const {
  if (is_parameter) return as_parameter(tensor, requires_grad);
  if (requires_grad) tensor.attr("requires_grad_")();
  return tensor;
}

std::vector<nb::object> views_of(const Tensor& memory, std::span<const View> views) {
  import_package("torch", "a torch.Tensor");
  const TorchSymbols& torch = TorchSymbols::require();
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
