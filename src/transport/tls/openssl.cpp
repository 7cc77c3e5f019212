// SPDX-License-Identifier: Apache-2.0
#include "transport/tls/openssl.h"

#include <fmt/format.h>

#include "core/throw_error.h"
#include "os/shared_library.h"

namespace onecopy::openssl {
namespace {

constexpr unsigned long kOldest = 0x3000'0000;  // 3.0.0

[[noreturn]] void throw_unusable(const std::string& why) {
  throw_error(ErrorCode::unsupported,
              "calls between hosts need OpenSSL 3 ({}): install "
              "libssl3 (Debian and Ubuntu; libssl3t64 in newer "
              "ones) or openssl-libs (Fedora, RHEL)",
              why);
}

}  // namespace

const Library& Library::get() {
  static const Library& made = *new Library({"libssl.so.3"});  // threads use it until the process has ended
  return made;
}

// NOLINTNEXTLINE(readability-function-size): two statements for each call
Library::Library(const std::vector<std::string>& names) {
  std::string why;
  const auto library = SharedLibrary::open(names, &why);
  if (!library) throw_unusable(why);
// NOLINTBEGIN(bugprone-macro-parentheses): the names of members
#define BIND(CALL, RESULT, PARAMETERS)                                   \
  CALL = reinterpret_cast<RESULT(*) PARAMETERS>(library->symbol(#CALL)); \
  if (!CALL) throw_unusable(fmt::format("{} has no {}", library->name(), #CALL));
  ONECOPY_OPENSSL_CALLS(BIND)
#undef BIND
  // NOLINTEND(bugprone-macro-parentheses)
  if (OpenSSL_version_num() < kOldest) throw_unusable(fmt::format("{} is {}", library->name(), version()));
  // Threads of onecopy may still be at work when exit handlers run.
  if (OPENSSL_init_ssl(OPENSSL_INIT_NO_ATEXIT, nullptr) != 1) throw_unusable(take_error());
  context_ = OSSL_LIB_CTX_new();
  if (!context_) throw_unusable(take_error());
}

std::string Library::take_error(unsigned long* code) const {
  const unsigned long first = ERR_get_error();
  if (code) *code = first;
  ERR_clear_error();
  const char* const text = first == 0 ? nullptr : ERR_reason_error_string(first);
  return text ? text : fmt::format("error {:#x}", first);
}

}  // namespace onecopy::openssl
