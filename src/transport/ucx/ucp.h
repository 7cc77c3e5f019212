// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "transport/ucx/ucp_api.h"

namespace onecopy::ucx {

/// The library libucp.so.0 of UCX 1.17 or later, loaded at first use and never unloaded: the one that ONECOPY_UCX_LIBRARY
/// names, else the system's, else the one of the wheel libucx-cu13 beside this package.
/// Thread safety: all members may be called concurrently.
class Library {
 public:
  /// Returns the library of this process. Throws unsupported, naming the package to install, where there is none.
  static const Library& get();
  /// Loads the first of these that there is. Throws unsupported.
  explicit Library(const std::vector<std::string>& names);
  /// Returns the names that get() tries.
  static std::vector<std::string> usual_names();

  /// Returns the version, such as "1.22.0".
  std::string version() const { return ucp_get_version_string(); }
  const std::string& path() const noexcept { return path_; }
  /// Throws system for a status that is an error.
  void must(ucs_status_t status, const char* call) const;

#define MEMBER(CALL, RESULT, PARAMETERS) \
  RESULT(*CALL) PARAMETERS = nullptr;  // NOLINT(bugprone-macro-parentheses)
  ONECOPY_UCP_CALLS(MEMBER)
#undef MEMBER

 private:
  std::string path_;
};

/// Returns whether an operation has failed at once, and so has neither ended well nor begun.
inline bool is_error(ucs_status_ptr_t outcome) noexcept {
  return reinterpret_cast<std::uintptr_t>(outcome) >=
         static_cast<std::uintptr_t>(std::intptr_t{UCS_ERR_LAST});
}
inline ucs_status_t status_of(ucs_status_ptr_t error) noexcept {
  return static_cast<ucs_status_t>(reinterpret_cast<std::intptr_t>(error));
}

}  // namespace onecopy::ucx
