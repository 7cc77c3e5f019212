// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "onecopy/core/bytes.h"
#include "os/hmac.h"

/// How two processes prove to each other that they know a secret, without sending it. Each makes a nonce, and answers
/// the other's with a digest of the secret, its role and both nonces. The role keeps the answers of the two sides
/// apart. Brokers and borrowers, and listeners and their clients use it.
namespace onecopy {

/// Random bytes that are used once.
template <std::size_t bytes>
using NonceOf = std::array<std::uint8_t, bytes>;

void fill_nonce(std::span<std::byte> nonce);

template <class Nonce>
Nonce make_nonce() {
  Nonce nonce;
  fill_nonce(std::as_writable_bytes(std::span(nonce)));
  return nonce;
}

/// The digest for `role`. Both sides give the nonces in one order.
Digest prove_bytes(ByteSpan secret, std::string_view role, ByteSpan first, ByteSpan second);

template <class Nonce>
Digest prove(ByteSpan secret, std::string_view role, const Nonce& first, const Nonce& second) {
  return prove_bytes(secret, role, std::as_bytes(std::span(first)), std::as_bytes(std::span(second)));
}

/// Compares in constant time.
bool is_proof(const Digest& given, const Digest& expected) noexcept;

}  // namespace onecopy
