// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "transport/tls/openssl_api.h"

namespace onecopy::openssl {

/// The library libssl.so.3, which is loaded at its first use and never unloaded.
/// Thread safety: all members may be called concurrently.
class Library {
 public:
  /// Returns the library of this process. Throws unsupported, naming the package to install, where there is none.
  static const Library& get();
  /// Loads the first of these names. Throws unsupported.
  explicit Library(const std::vector<std::string>& names);

  /// Returns the text of the oldest error of this thread, and forgets all of them; `code` gets its number.
  std::string take_error(unsigned long* code = nullptr) const;
  /// Returns the version, such as "OpenSSL 3.0.19 27 Jan 2026".
  std::string version() const { return OpenSSL_version(0); }
  /// Returns a context of onecopy's own, which settings and providers of the program's own use do not affect.
  OSSL_LIB_CTX* context() const noexcept { return context_; }

#define MEMBER(CALL, RESULT, PARAMETERS) \
  RESULT(*CALL) PARAMETERS = nullptr;  // NOLINT(bugprone-macro-parentheses)
  ONECOPY_OPENSSL_CALLS(MEMBER)
#undef MEMBER

 private:
  OSSL_LIB_CTX* context_ = nullptr;
};

}  // namespace onecopy::openssl
