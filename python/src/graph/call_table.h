// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "binding/module.h"
#include "graph/call.h"

namespace onecopy::python {

inline void check_list(nb::handle list) {
  if (!PyList_CheckExact(list.ptr())) throw nb::type_error("a graph takes its inputs in a list");
}

/// The items of a list, which keeps them: in place, where its layout is known.
#if defined(Py_LIMITED_API)
inline std::vector<PyObject*> items_of(nb::handle list) {
  check_list(list);
  std::vector<PyObject*> items(static_cast<std::size_t>(NB_LIST_GET_SIZE(list.ptr())));
  for (std::size_t i = 0; i < items.size(); ++i)
    items[i] = NB_LIST_GET_ITEM(list.ptr(), static_cast<Py_ssize_t>(i));
  return items;
}
#else
inline std::span<PyObject* const> items_of(nb::handle list) {
  check_list(list);
  return {reinterpret_cast<PyListObject*>(list.ptr())->ob_item,
          static_cast<std::size_t>(NB_LIST_GET_SIZE(list.ptr()))};
}
#endif

/// The fast path of a function: its captured graphs by key. A key consists of the dtypes, sizes and strides of the
/// inputs, and of the values of inputs that are not tensors on the device. Keys are compared in full. The table
/// declines a call that it cannot serve at once, without changing anything, and Python serves it.
///
/// Thread safety: used with the GIL held.
class GraphCallTable {
 public:
  /// `keyed` are the indices of the inputs that belong to the key.
  GraphCallTable(Device device, std::vector<std::size_t> keyed, std::size_t most_elements)
      : device_(device), keyed_(std::move(keyed)), most_elements_(most_elements) {}

  /// Serves later calls with the key of these arguments by `call`. Has no effect if the inputs cannot form a key.
  void add(nb::handle arguments, nb::object call);
  void remove(nb::handle call);
  /// Returns the results and empties `boxed`, or returns None to decline the call.
  nb::object call(nb::handle boxed);
  std::uint64_t tick() noexcept { return ++ticks_; }
  std::size_t hits() const noexcept { return hits_; }

  int traverse(visitproc visit, void* arg);
  void clear();

 private:
  bool make_key(PyObject* const* arguments, std::size_t count);
  bool add_to_key(const torch::TorchSymbols& api, const torch::AotiShim& shim, PyObject* argument);
  bool add_tensor(const torch::AotiShim& shim, const torch::AotiShim::View& tensor);
  template <class Value>
  void append(const Value& value) {
    key_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }

  const Device device_;
  const std::vector<std::size_t> keyed_;
  const std::size_t most_elements_;  ///< of a tensor of the host, whose content is part of the key
  std::unordered_map<std::string, nb::object> calls_;
  std::string key_;  ///< of the last call
  std::uint64_t ticks_ = 0;
  std::size_t hits_ = 0;  ///< calls that were not declined
};

void init_graph_calls(nb::module_& m);

}  // namespace onecopy::python
