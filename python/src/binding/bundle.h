// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "binding/args.h"
#include "binding/module.h"
#include "onecopy/share/bundle.h"
#include "value/bundle_value.h"

namespace onecopy::python {

/// An opened bundle of tensors: onecopy.Bundle. Rows are opened on access. Thread safety: used with the GIL held.
class OpenBundle {
 public:
  /// Opens the bundle for use of its tensors on `device`, or on their own devices.
  OpenBundle(const Handle& handle, Access access, Framework framework, std::optional<Device> device);

  /// Pins the memory of all tensors on the CPU.
  void pin() const;
  std::size_t size() const { return bundle_.size(); }
  Framework framework() const { return framework_; }
  const Handle& handle() const { return handle_; }
  std::optional<std::size_t> find(std::string_view name) const { return bundle_.find(name); }
  nb::object name(std::size_t row) const;
  Layout layout(std::size_t row) const { return bundle_.layout(row); }
  nb::object array(std::size_t row, Framework framework) const;
  /// Opens all rows, and returns them in order.
  std::vector<nb::object> arrays(Framework framework) const;
  /// Returns whether Python made the bundle from a nested value.
  bool is_tree() const noexcept { return !value_.value.empty(); }
  /// Returns the shared value. For a bundle of another language, returns a dict of all rows by name.
  nb::object tree(Framework framework) const;

 private:
  std::vector<Tensor> open_rows(std::size_t count) const;
  std::uint32_t flags(std::size_t row) const;

  Handle handle_;
  Bundle bundle_;
  Framework framework_;
  BundleValue value_;
  mutable std::vector<std::uint32_t> flags_;  ///< of all rows; read at first use
};

}  // namespace onecopy::python
