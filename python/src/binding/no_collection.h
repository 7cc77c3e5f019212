// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace onecopy::python {

/// While it is begun, Python's cyclic garbage collector does not run. Otherwise thousands of new tensors, none of them
/// garbage, would make it walk over all objects of the program again and again. A child that any thread forks
/// meanwhile has the collector on. Thread safety: used with the GIL held. Another thread that switches the collector
/// on meanwhile wins; one that switches it off does not.
class NoCollection {
 public:
  NoCollection() noexcept = default;
  /// Begins if there are many objects to be made.
  explicit NoCollection(std::size_t objects) noexcept {
    if (objects >= kMany) begin();
  }
  NoCollection(const NoCollection&) = delete;
  NoCollection& operator=(const NoCollection&) = delete;
  ~NoCollection() { end(); }

  void begin() noexcept;
  void end() noexcept;

  static constexpr std::size_t kMany = 64;

 private:
  bool has_switched_off_ = false;
};

}  // namespace onecopy::python
