// SPDX-License-Identifier: Apache-2.0
#include "peer/mutual_proof.h"

namespace onecopy {

Digest prove_bytes(ByteSpan secret, std::string_view role, ByteSpan first, ByteSpan second) {
  Bytes message;
  for (const ByteSpan part : {std::as_bytes(std::span(role)), first, second})
    message.insert(message.end(), part.begin(), part.end());
  return hmac_sha256(secret, message);
}

bool is_proof(const Digest& given, const Digest& expected) noexcept {
  return equal_in_constant_time(std::as_bytes(std::span(given)), std::as_bytes(std::span(expected)));
}

}  // namespace onecopy
