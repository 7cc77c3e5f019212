// SPDX-License-Identifier: Apache-2.0
#include "os/stream_address.h"

#include <charconv>
#include <string_view>

#include "core/throw_error.h"

namespace onecopy {
namespace {

[[noreturn]] void throw_bad_address(std::string_view address, std::string_view reason) {
  throw_error(ErrorCode::invalid_argument,
              "\"{}\" is not an address: {}; write unix:/path, unix:@name or "
              "tcp:127.0.0.1:port (port 0 picks a free one)",
              address, reason);
}

LoopbackPort parse_tcp(std::string_view address, std::string_view rest) {
  const auto colon = rest.rfind(':');
  if (colon == std::string_view::npos) throw_bad_address(address, "the port is missing");
  const std::string_view host = rest.substr(0, colon);
  if (host != "127.0.0.1" && host != "localhost")
    throw_bad_address(address, "the host must be 127.0.0.1 or localhost");
  const std::string_view digits = rest.substr(colon + 1);
  LoopbackPort result;
  const char* end = digits.data() + digits.size();
  const auto [at, error] = std::from_chars(digits.data(), end, result.port);
  if (error != std::errc{} || at != end || digits.empty())
    throw_bad_address(address, "the port is not a number from 0 to 65535");
  return result;
}

}  // namespace

std::variant<SocketName, LoopbackPort> parse_stream_address(const std::string& address) {
  const std::string_view text = address;
  if (text.starts_with("tcp:")) return parse_tcp(text, text.substr(4));
  if (text.starts_with("unix:@")) return SocketName{address.substr(6), true};
  if (text.starts_with("unix:")) return SocketName{address.substr(5), false};
  throw_bad_address(text, "it begins with neither unix: nor tcp:");
}

}  // namespace onecopy
