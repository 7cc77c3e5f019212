// SPDX-License-Identifier: Apache-2.0
#include "graph/call_table.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <utility>

#include "binding/args.h"
#include "device/backend.h"

namespace onecopy::python {

namespace {

enum class Part : char { tensor, content, integer, boolean, number };

std::size_t elements_of(const torch::AotiShim::View& tensor) {
  std::size_t elements = 1;
  for (std::int64_t i = 0; i < tensor.dim; ++i) elements *= static_cast<std::size_t>(tensor.sizes[i]);
  return elements;
}

bool is_contiguous(const torch::AotiShim::View& tensor) {
  std::int64_t expected = 1;
  for (std::int64_t i = tensor.dim - 1; i >= 0; --i) {
    if (tensor.sizes[i] != 1 && tensor.strides[i] != expected) return false;
    expected *= tensor.sizes[i];
  }
  return true;
}

}  // namespace

bool GraphCallTable::add_tensor(const torch::AotiShim& shim, const torch::AotiShim::View& tensor) {
  append(Part::tensor);
  append(tensor.dtype);
  append(tensor.device_type);
  append(tensor.device_index);
  append(tensor.dim);
  const auto bytes = sizeof(std::int64_t) * static_cast<std::size_t>(tensor.dim);
  if (bytes != 0) {
    key_.append(reinterpret_cast<const char*>(tensor.sizes), bytes);
    key_.append(reinterpret_cast<const char*>(tensor.strides), bytes);
  }
  if (tensor.device_type != torch::AotiShim::kCpuCode) return true;
  const std::size_t elements = elements_of(tensor);
  if (elements > most_elements_ || !is_contiguous(tensor)) return false;
  append(Part::content);
  if (elements != 0)
    key_.append(reinterpret_cast<const char*>(tensor.data), elements * shim.element_size(tensor.dtype));
  return true;
}

bool GraphCallTable::add_to_key(const torch::TorchSymbols& api, const torch::AotiShim& shim,
                                PyObject* argument) {
  if (api.is_tensor(argument)) {
    const auto view = shim.view(argument);
    return view && add_tensor(shim, *view);
  }
  if (PyBool_Check(argument)) {
    append(Part::boolean);
    append(argument == Py_True);
    return true;
  }
  if (PyLong_CheckExact(argument)) {
    int overflow = 0;
    append(Part::integer);
    append(PyLong_AsLongLongAndOverflow(argument, &overflow));
    return overflow == 0;
  }
  if (!PyFloat_CheckExact(argument)) return false;
  append(Part::number);
  append(PyFloat_AsDouble(argument));
  return true;
}

bool GraphCallTable::make_key(PyObject* const* arguments, std::size_t count) {
  const torch::TorchSymbols* api = torch::TorchSymbols::get();
  const torch::AotiShim* shim = torch::AotiShim::get();
  if (!api || !shim) return false;
  key_.clear();
  for (const std::size_t index : keyed_)
    if (index >= count || !add_to_key(*api, *shim, arguments[index])) return false;
  return true;
}

void GraphCallTable::add(nb::handle arguments, nb::object call) {
  const auto items = items_of(arguments);
  if (make_key(items.data(), items.size())) std::swap(calls_[key_], call);  // the old one ends last
}

/// Removes a call. The reference is released after the table has changed, since the call's destructor may run Python
/// code that traverses the table.
void GraphCallTable::remove(nb::handle call) {
  const nb::object kept = nb::borrow(call);
  std::erase_if(calls_, [&](const auto& entry) { return entry.second.is(call); });
}

void GraphCallTable::clear() {
  std::unordered_map<std::string, nb::object> calls;
  calls.swap(calls_);
}

nb::object GraphCallTable::call(nb::handle boxed) {
  if (calls_.empty()) return nb::none();
  const auto items = items_of(boxed);
  if (!make_key(items.data(), items.size())) return nb::none();
  const auto found = calls_.find(key_);
  if (found == calls_.end()) return nb::none();
  const nb::object object = found->second;  // another thread may drop the call during run()
  GraphCall& call = *nb::inst_ptr<GraphCall>(object);
  const torch::TorchSymbols& api = *torch::TorchSymbols::get();
  if (backend(device_.type).is_captured(device_.index, api.current_stream(device_))) return nb::none();
  const auto new_outputs = call.run(items, nb::none(), false);
  if (!new_outputs) return nb::none();
  call.last_used = tick();
  ++hits_;
  nb::object results = call.results(items, *new_outputs);
  if (PyList_SetSlice(boxed.ptr(), 0, NB_LIST_GET_SIZE(boxed.ptr()), nullptr) != 0)
    throw nb::python_error();
  return results;
}

int GraphCallTable::traverse(visitproc visit, void* arg) {
  for (const auto& [key, call] : calls_) Py_VISIT(call.ptr());
  return 0;
}

}  // namespace onecopy::python
