// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace onecopy {

/// A library loaded at run time. Stays loaded until the process ends: vendor libraries start threads
/// and register handlers that outlive any object of ours. So this is a plain value.
///
/// Thread safety: const members may be called concurrently.
class SharedLibrary {
 public:
  /// The first of `names` that loads. Empty if none does; `why` then tells the loader's reasons.
  static std::optional<SharedLibrary> open(const std::vector<std::string>& names,
                                           std::string* why = nullptr);

  /// Has any part of this process loaded one of them? Loads none.
  static bool is_loaded(const std::vector<std::string>& names) noexcept;

  /// Null if the library has no such symbol.
  void* symbol(const char* name) const noexcept;
  /// The name that was loaded.
  const std::string& name() const noexcept { return name_; }

 private:
  SharedLibrary(void* handle, std::string name) : handle_(handle), name_(std::move(name)) {}

  void* handle_;
  std::string name_;
};

}  // namespace onecopy
