// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace onecopy {

/// A library loaded at run time. The library stays loaded until the process ends, because vendor libraries start
/// threads and register handlers that outlive any object here; the class is therefore a plain value.
///
/// Thread safety: const members may be called concurrently.
class SharedLibrary {
 public:
  /// Loads the first of `names` that exists. Returns nothing if none loads; `why` then receives the loader's reasons.
  static std::optional<SharedLibrary> open(const std::vector<std::string>& names,
                                           std::string* why = nullptr);

  /// Returns whether a part of this process has loaded one of the libraries. Loads none itself.
  static bool is_loaded(const std::vector<std::string>& names) noexcept;

  /// Returns the symbol's address, or null if the library does not define it.
  void* symbol(const char* name) const noexcept;
  /// Returns the name that was loaded.
  const std::string& name() const noexcept { return name_; }

 private:
  SharedLibrary(void* handle, std::string name) : handle_(handle), name_(std::move(name)) {}

  void* handle_;
  std::string name_;
};

}  // namespace onecopy
