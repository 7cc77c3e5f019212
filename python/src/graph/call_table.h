// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "binding/module.h"
#include "graph/call.h"

namespace onecopy::python {

/// The captured graphs of one function by their keys: dtypes, sizes and strides of its inputs, and the values of
/// inputs that are no tensor of the device. Keys are compared in full. It declines a call that it cannot serve at
/// once, and changes nothing then: Python does the rest.
///
/// Thread safety: with the GIL held.
class GraphCallTable {
 public:
  /// `keyed` are the inputs that are part of the key.
  GraphCallTable(Device device, std::vector<std::size_t> keyed, std::size_t most_elements)
      : device_(device), keyed_(std::move(keyed)), most_elements_(most_elements) {}

  /// Later calls like this one are this graph's. Has no effect if such inputs cannot be keys.
  void add(nb::handle arguments, nb::object call);
  void remove(nb::handle call);
  /// The results, and `boxed` is empty then; None: declined.
  nb::object call(nb::handle boxed);
  std::uint64_t tick() noexcept { return ++ticks_; }
  std::size_t hits() const noexcept { return hits_; }

  int traverse(visitproc visit, void* arg);
  void clear();

 private:
  bool make_key(PyObject* const* arguments, std::size_t count);
  bool add_to_key(const torch::Api& api, const torch::Shim& shim, PyObject* argument);
  bool add_tensor(const torch::Shim& shim, const torch::Shim::View& tensor);
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
