// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "onecopy/core/bytes.h"
#include "os/hmac.h"

/// A protocol with which two processes prove to each other that they know a secret, without sending it. Each side makes
/// a nonce and answers the other's with a digest of the secret, its role and both nonces. The role makes the answers of
/// the two sides different. Brokers and borrowers use the protocol, and listeners and their clients.
namespace onecopy {

/// A string of random bytes that is used once, see random_value().
template <std::size_t bytes>
using NonceOf = std::array<std::uint8_t, bytes>;

/// Returns the digest for `role`. Both sides pass the nonces in the same order.
Digest prove_bytes(ByteSpan secret, std::string_view role, ByteSpan first, ByteSpan second);

template <class Nonce>
Digest prove(ByteSpan secret, std::string_view role, const Nonce& first, const Nonce& second) {
  return prove_bytes(secret, role, std::as_bytes(std::span(first)), std::as_bytes(std::span(second)));
}

/// Compares the digests in constant time.
bool is_proof(const Digest& given, const Digest& expected) noexcept;

}  // namespace onecopy
