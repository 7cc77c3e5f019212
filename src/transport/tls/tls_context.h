// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "onecopy/core/bytes.h"
#include "transport/tls/openssl.h"

namespace onecopy::transport {

enum class Side : std::uint8_t { client, listener };

/// A protocol over TLS. Processes of two protocols do not connect to each other, although they know the same secret.
struct TlsProtocol {
  std::string_view identity;   ///< of the key, which is sent unencrypted
  std::string_view wrong_key;  ///< the text of an error about another key, and what to do
};
inline constexpr TlsProtocol kRpcProtocol{
    "onecopy rpc 1", "the member of the group there has another key: give all members one ONECOPY_RPC_KEY"};

/// A context for TLS 1.3 with a group's secret as an external pre-shared key and with forward secrecy (psk_dhe_ke,
/// TLS_AES_256_GCM_SHA384). There are no certificates, tickets, resumption or early data.
///
/// Thread safety: all members may be called concurrently.
class TlsContext {
 public:
  static constexpr std::size_t kMinSecretBytes = 32;

  /// Makes a context. An empty secret stands for a group without one, whose members reach each other on loopback alone.
  /// Throws unsupported if OpenSSL is missing.
  explicit TlsContext(ByteSpan secret, const TlsProtocol& protocol = kRpcProtocol);
  ~TlsContext();
  TlsContext& operator=(TlsContext&&) = delete;

  /// Returns a new connection, which the caller frees. The context must outlive it.
  openssl::SSL* make(Side side) const;
  const openssl::Library& library() const noexcept { return library_; }
  const TlsProtocol& protocol() const noexcept { return protocol_; }

 private:
  void derive_key(ByteSpan secret);
  openssl::SSL_CTX* make_context(Side side) const;
  openssl::SSL_SESSION* make_session(openssl::SSL* ssl) const;
  static int use_session(openssl::SSL* ssl, const openssl::EVP_MD* digest, const unsigned char** identity,
                         std::size_t* identity_bytes, openssl::SSL_SESSION** session);
  static int find_session(openssl::SSL* ssl, const unsigned char* identity, std::size_t identity_bytes,
                          openssl::SSL_SESSION** session);

  const openssl::Library& library_;
  const TlsProtocol protocol_;
  std::array<unsigned char, 32> key_{};
  openssl::SSL_CTX* client_ = nullptr;
  openssl::SSL_CTX* listener_ = nullptr;
};

}  // namespace onecopy::transport
