// SPDX-License-Identifier: Apache-2.0
#include "transport/tls/tls_context.h"

#include "core/throw_error.h"

namespace onecopy::transport {
namespace {

using namespace openssl;

constexpr unsigned char kAes256GcmSha384[] = {0x13, 0x02};
/// The index of the TlsContext in the data of an SSL.
constexpr int kContextIndex = 0;

[[noreturn]] void throw_failed(const Library& library, const char* what) {
  throw_error(ErrorCode::system, "{} failed in OpenSSL: {}", what, library.take_error());
}

OSSL_PARAM parameter(const char* name, unsigned type, const void* data, std::size_t size) {
  return {name, type, const_cast<void*>(data), size, SIZE_MAX};
}

}  // namespace

TlsContext::TlsContext(ByteSpan secret, const TlsProtocol& protocol)
    : library_(Library::get()), protocol_(protocol) {
  derive_key(secret);
  client_ = make_context(Side::client);
  listener_ = make_context(Side::listener);
}

TlsContext::~TlsContext() {
  library_.SSL_CTX_free(client_);
  library_.SSL_CTX_free(listener_);
  library_.OPENSSL_cleanse(key_.data(), key_.size());
}

/// Derives the key by HKDF with SHA-256, with the identity as its info. HKDF takes no empty secret.
void TlsContext::derive_key(ByteSpan secret) {
  constexpr std::string_view kDigest = "SHA256", kNone = "no key";
  const ByteSpan input = secret.empty() ? std::as_bytes(std::span(kNone)) : secret;
  const OSSL_PARAM parameters[] = {
      parameter("digest", OSSL_PARAM_UTF8_STRING, kDigest.data(), kDigest.size()),
      parameter("key", OSSL_PARAM_OCTET_STRING, input.data(), input.size()),
      parameter("info", OSSL_PARAM_OCTET_STRING, protocol_.identity.data(), protocol_.identity.size()),
      OSSL_PARAM{}};
  EVP_KDF* const kdf = library_.EVP_KDF_fetch(library_.context(), "HKDF", nullptr);
  EVP_KDF_CTX* const derivation = kdf ? library_.EVP_KDF_CTX_new(kdf) : nullptr;
  const bool is_derived =
      derivation && library_.EVP_KDF_derive(derivation, key_.data(), key_.size(), parameters) == 1;
  library_.EVP_KDF_CTX_free(derivation);
  library_.EVP_KDF_free(kdf);
  if (!is_derived) throw_failed(library_, "deriving the key of a group");
}

/// Makes the context of one side. The client refuses all certificates, because a peer without the key must not connect,
/// and no authority could vouch for a certificate.
SSL_CTX* TlsContext::make_context(Side side) const {
  const bool is_client = side == Side::client;
  SSL_CTX* const made = library_.SSL_CTX_new_ex(
      library_.context(), nullptr, is_client ? library_.TLS_client_method() : library_.TLS_server_method());
  if (!made) throw_failed(library_, "making a TLS context");
  library_.SSL_CTX_ctrl(made, SSL_CTRL_SET_MIN_PROTO_VERSION, TLS1_3_VERSION, nullptr);
  library_.SSL_CTX_ctrl(made, SSL_CTRL_SET_SESS_CACHE_MODE, 0, nullptr);
  library_.SSL_CTX_ctrl(made, SSL_CTRL_MODE, SSL_MODE_RELEASE_BUFFERS, nullptr);
  library_.SSL_CTX_set_options(made, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION);
  library_.SSL_CTX_set_num_tickets(made, 0);
  if (library_.SSL_CTX_set_ciphersuites(made, "TLS_AES_256_GCM_SHA384") != 1)
    throw_failed(library_, "choosing TLS_AES_256_GCM_SHA384");
  if (is_client) library_.SSL_CTX_set_verify(made, SSL_VERIFY_PEER, nullptr);
  if (is_client) library_.SSL_CTX_set_psk_use_session_callback(made, &TlsContext::use_session);
  else library_.SSL_CTX_set_psk_find_session_callback(made, &TlsContext::find_session);
  return made;
}

SSL* TlsContext::make(Side side) const {
  SSL* const made = library_.SSL_new(side == Side::client ? client_ : listener_);
  if (!made) throw_failed(library_, "making a TLS connection");
  library_.SSL_set_ex_data(made, kContextIndex, const_cast<TlsContext*>(this));
  if (side == Side::client) library_.SSL_set_connect_state(made);
  else library_.SSL_set_accept_state(made);
  return made;
}

/// Returns the session of the key; null if OpenSSL has no memory, which makes the handshake fail.
SSL_SESSION* TlsContext::make_session(SSL* ssl) const {
  SSL_SESSION* const made = library_.SSL_SESSION_new();
  if (!made) return nullptr;
  const SSL_CIPHER* const cipher = library_.SSL_CIPHER_find(ssl, kAes256GcmSha384);
  if (cipher && library_.SSL_SESSION_set1_master_key(made, key_.data(), key_.size()) == 1 &&
      library_.SSL_SESSION_set_cipher(made, cipher) == 1 &&
      library_.SSL_SESSION_set_protocol_version(made, TLS1_3_VERSION) == 1)
    return made;
  library_.SSL_SESSION_free(made);
  return nullptr;
}

int TlsContext::use_session(SSL* ssl, const EVP_MD*, const unsigned char** identity,
                            std::size_t* identity_bytes, SSL_SESSION** session) {
  const auto& context = *static_cast<const TlsContext*>(Library::get().SSL_get_ex_data(ssl, kContextIndex));
  *identity = reinterpret_cast<const unsigned char*>(context.protocol_.identity.data());
  *identity_bytes = context.protocol_.identity.size();
  *session = context.make_session(ssl);
  return *session ? 1 : 0;
}

/// Finds the session of the key. Without a session the handshake goes on to certificates, and fails since the listener has
/// none.
int TlsContext::find_session(SSL* ssl, const unsigned char* identity, std::size_t identity_bytes,
                             SSL_SESSION** session) {
  const auto& context = *static_cast<const TlsContext*>(Library::get().SSL_get_ex_data(ssl, kContextIndex));
  const std::string_view given(reinterpret_cast<const char*>(identity), identity_bytes);
  const bool is_ours = given == context.protocol_.identity;
  *session = is_ours ? context.make_session(ssl) : nullptr;
  return *session || !is_ours ? 1 : 0;
}

}  // namespace onecopy::transport
