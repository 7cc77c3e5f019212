// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace onecopy::python {

/// Disables Python's cyclic garbage collector while many tensors are made. None of them is garbage, but the collector
/// would walk over all objects of the program again and again. A child forked in this time has the collector enabled.
/// Thread safety: used with the GIL held. If another thread enables the collector in this time, it stays enabled; if
/// another thread disables it, it is enabled at the end.
class NoCollection {
 public:
  NoCollection() noexcept = default;
  /// Disables the collector if `objects` is large.
  explicit NoCollection(std::size_t objects) noexcept {
    if (objects >= kMany) begin();
  }
  NoCollection& operator=(NoCollection&&) = delete;
  ~NoCollection() { end(); }

  void begin() noexcept;
  void end() noexcept;

  static constexpr std::size_t kMany = 64;

 private:
  bool has_switched_off_ = false;
};

}  // namespace onecopy::python
