// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

/// The part of OpenSSL 3's C interface that is used here, with the names of its headers, so that building needs no
/// libssl-dev. Where the real headers are there, tests/unit/rpc/openssl_abi_test.cpp compares these declarations with them.
/// Nothing of it is linked: openssl.h finds the calls at run time.
// NOLINTBEGIN(readability-identifier-naming): the names of OpenSSL
namespace onecopy::openssl {

using OSSL_LIB_CTX = struct LibraryContextTag;
using SSL_METHOD = struct MethodTag;
using SSL_CTX = struct SslContextTag;
using SSL = struct ConnectionTag;
using SSL_SESSION = struct SessionTag;
using SSL_CIPHER = struct CipherTag;
using BIO = struct BioTag;
using BIO_METHOD = struct BioMethodTag;
using EVP_KDF = struct KdfTag;
using EVP_KDF_CTX = struct KdfContextTag;
using EVP_MD = struct DigestTag;

struct OSSL_PARAM {
  const char* key;
  unsigned int data_type;
  void* data;
  std::size_t data_size;
  std::size_t return_size;
};

using UseSession = int (*)(SSL*, const EVP_MD*, const unsigned char**, std::size_t*, SSL_SESSION**);
using FindSession = int (*)(SSL*, const unsigned char*, std::size_t, SSL_SESSION**);
using Verify = int (*)(int, void*);
using BioRead = int (*)(BIO*, char*, int);
using BioWrite = int (*)(BIO*, const char*, int);
using BioControl = long (*)(BIO*, int, long, void*);

inline constexpr unsigned OSSL_PARAM_UTF8_STRING = 4, OSSL_PARAM_OCTET_STRING = 5;
inline constexpr std::uint64_t OPENSSL_INIT_NO_ATEXIT = 0x0008'0000;
inline constexpr int TLS1_3_VERSION = 0x0304;
inline constexpr int SSL_VERIFY_PEER = 1;
inline constexpr std::uint64_t SSL_OP_NO_TICKET = 1U << 14, SSL_OP_NO_RENEGOTIATION = 1U << 30;
inline constexpr int SSL_CTRL_SET_SESS_CACHE_MODE = 44, SSL_CTRL_SET_MIN_PROTO_VERSION = 123;
inline constexpr int SSL_CTRL_MODE = 33;
inline constexpr long SSL_MODE_RELEASE_BUFFERS = 0x10;
inline constexpr int SSL_ERROR_SSL = 1, SSL_ERROR_WANT_READ = 2, SSL_ERROR_WANT_WRITE = 3,
                     SSL_ERROR_ZERO_RETURN = 6;
inline constexpr int SSL_KEY_UPDATE_NOT_REQUESTED = 0;
inline constexpr int SSL_AD_REASON_OFFSET = 1000;
inline constexpr int BIO_TYPE_SOURCE_SINK = 0x0400;
inline constexpr int BIO_FLAGS_READ = 1, BIO_FLAGS_RWS = 7, BIO_FLAGS_SHOULD_RETRY = 8;
inline constexpr int BIO_CTRL_FLUSH = 11;

}  // namespace onecopy::openssl
// NOLINTEND(readability-identifier-naming)

/// A list of the calls: CALL(name, result, (parameters)).
#define ONECOPY_OPENSSL_CALLS(CALL)                                                         \
  CALL(OpenSSL_version_num, unsigned long, ())                                              \
  CALL(OpenSSL_version, const char*, (int))                                                 \
  CALL(OPENSSL_init_ssl, int, (std::uint64_t, const void*))                                 \
  CALL(OPENSSL_cleanse, void, (void*, std::size_t))                                         \
  CALL(OSSL_LIB_CTX_new, OSSL_LIB_CTX*, ())                                                 \
  CALL(ERR_get_error, unsigned long, ())                                                    \
  CALL(ERR_clear_error, void, ())                                                           \
  CALL(ERR_reason_error_string, const char*, (unsigned long))                               \
  CALL(EVP_KDF_fetch, EVP_KDF*, (OSSL_LIB_CTX*, const char*, const char*))                  \
  CALL(EVP_KDF_free, void, (EVP_KDF*))                                                      \
  CALL(EVP_KDF_CTX_new, EVP_KDF_CTX*, (EVP_KDF*))                                           \
  CALL(EVP_KDF_CTX_free, void, (EVP_KDF_CTX*))                                              \
  CALL(EVP_KDF_derive, int, (EVP_KDF_CTX*, unsigned char*, std::size_t, const OSSL_PARAM*)) \
  CALL(TLS_client_method, const SSL_METHOD*, ())                                            \
  CALL(TLS_server_method, const SSL_METHOD*, ())                                            \
  CALL(SSL_CTX_new_ex, SSL_CTX*, (OSSL_LIB_CTX*, const char*, const SSL_METHOD*))           \
  CALL(SSL_CTX_free, void, (SSL_CTX*))                                                      \
  CALL(SSL_CTX_ctrl, long, (SSL_CTX*, int, long, void*))                                    \
  CALL(SSL_CTX_set_options, std::uint64_t, (SSL_CTX*, std::uint64_t))                       \
  CALL(SSL_CTX_set_ciphersuites, int, (SSL_CTX*, const char*))                              \
  CALL(SSL_CTX_set_num_tickets, int, (SSL_CTX*, std::size_t))                               \
  CALL(SSL_CTX_set_verify, void, (SSL_CTX*, int, Verify))                                   \
  CALL(SSL_CTX_set_psk_use_session_callback, void, (SSL_CTX*, UseSession))                  \
  CALL(SSL_CTX_set_psk_find_session_callback, void, (SSL_CTX*, FindSession))                \
  CALL(SSL_new, SSL*, (SSL_CTX*))                                                           \
  CALL(SSL_free, void, (SSL*))                                                              \
  CALL(SSL_set_ex_data, int, (SSL*, int, void*))                                            \
  CALL(SSL_get_ex_data, void*, (const SSL*, int))                                           \
  CALL(SSL_set_bio, void, (SSL*, BIO*, BIO*))                                               \
  CALL(SSL_set_accept_state, void, (SSL*))                                                  \
  CALL(SSL_set_connect_state, void, (SSL*))                                                 \
  CALL(SSL_do_handshake, int, (SSL*))                                                       \
  CALL(SSL_session_reused, int, (const SSL*))                                               \
  CALL(SSL_read, int, (SSL*, void*, int))                                                   \
  CALL(SSL_write, int, (SSL*, const void*, int))                                            \
  CALL(SSL_get_error, int, (const SSL*, int))                                               \
  CALL(SSL_key_update, int, (SSL*, int))                                                    \
  CALL(SSL_SESSION_new, SSL_SESSION*, ())                                                   \
  CALL(SSL_SESSION_free, void, (SSL_SESSION*))                                              \
  CALL(SSL_SESSION_set1_master_key, int, (SSL_SESSION*, const unsigned char*, std::size_t)) \
  CALL(SSL_SESSION_set_cipher, int, (SSL_SESSION*, const SSL_CIPHER*))                      \
  CALL(SSL_SESSION_set_protocol_version, int, (SSL_SESSION*, int))                          \
  CALL(SSL_CIPHER_find, const SSL_CIPHER*, (SSL*, const unsigned char*))                    \
  CALL(BIO_meth_new, BIO_METHOD*, (int, const char*))                                       \
  CALL(BIO_meth_set_read, int, (BIO_METHOD*, BioRead))                                      \
  CALL(BIO_meth_set_write, int, (BIO_METHOD*, BioWrite))                                    \
  CALL(BIO_meth_set_ctrl, int, (BIO_METHOD*, BioControl))                                   \
  CALL(BIO_new, BIO*, (const BIO_METHOD*))                                                  \
  CALL(BIO_set_data, void, (BIO*, void*))                                                   \
  CALL(BIO_get_data, void*, (BIO*))                                                         \
  CALL(BIO_set_init, void, (BIO*, int))                                                     \
  CALL(BIO_set_flags, void, (BIO*, int))                                                    \
  CALL(BIO_clear_flags, void, (BIO*, int))
