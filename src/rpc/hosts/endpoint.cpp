// SPDX-License-Identifier: Apache-2.0
#include "rpc/hosts/endpoint.h"

#include <fmt/format.h>

#include <span>
#include <string_view>

#include "onecopy/core/error.h"
#include "os/hmac.h"

namespace onecopy::rpc {

Endpoint Endpoint::parse(const std::string& text) {
  const auto second = text.rfind('/');
  const auto first =
      second == std::string::npos || second == 0 ? std::string::npos : text.rfind('/', second - 1);
  if (first == std::string::npos)
    throw Error(ErrorCode::bad_handle,
                "this address of a member of a group has an endpoint that no member writes");
  return {text.substr(0, first), text.substr(first + 1, second - first - 1), text.substr(second + 1)};
}

std::string check_of_key(ByteSpan key) {
  constexpr std::string_view kPurpose = "onecopy rpc: check of the key";
  const Digest digest = hmac_sha256(key, std::as_bytes(std::span(kPurpose)));
  return fmt::format("{:02x}{:02x}", digest[0], digest[1]);
}

}  // namespace onecopy::rpc
