// SPDX-License-Identifier: Apache-2.0 Compares our declarations of OpenSSL's interface with the real headers.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "transport/tls/openssl_api.h"

/// The names mean our constants in front of the real headers, whose macros have the same names, and the macros behind them.
#define VALUES                                                                                           \
  OSSL_PARAM_UTF8_STRING, OSSL_PARAM_OCTET_STRING, OPENSSL_INIT_NO_ATEXIT, TLS1_3_VERSION,               \
      SSL_VERIFY_PEER, SSL_OP_NO_TICKET, SSL_OP_NO_RENEGOTIATION, SSL_CTRL_SET_SESS_CACHE_MODE,          \
      SSL_CTRL_SET_MIN_PROTO_VERSION, SSL_CTRL_MODE, SSL_MODE_RELEASE_BUFFERS, SSL_ERROR_SSL,            \
      SSL_ERROR_WANT_READ, SSL_ERROR_WANT_WRITE, SSL_ERROR_ZERO_RETURN, SSL_KEY_UPDATE_NOT_REQUESTED,    \
      SSL_AD_REASON_OFFSET, BIO_TYPE_SOURCE_SINK, BIO_FLAGS_READ, BIO_FLAGS_RWS, BIO_FLAGS_SHOULD_RETRY, \
      BIO_CTRL_FLUSH

namespace onecopy::openssl {
static const std::vector<std::uint64_t> kOurs{VALUES, sizeof(OSSL_PARAM), offsetof(OSSL_PARAM, data_size)};
}  // namespace onecopy::openssl

#if __has_include(<openssl/ssl.h>)
#include <openssl/ssl.h>

TEST(OpenSsl, IsDeclaredAsItsHeadersDeclareIt) {
  const std::vector<std::uint64_t> real{VALUES, sizeof(::OSSL_PARAM), offsetof(::OSSL_PARAM, data_size)};
  EXPECT_EQ(onecopy::openssl::kOurs, real);
}
#else
TEST(OpenSsl, IsDeclaredAsItsHeadersDeclareIt) { GTEST_SKIP() << "wants libssl-dev"; }
#endif
