// SPDX-License-Identifier: Apache-2.0
#include "peer/mutual_proof.h"

#include <gtest/gtest.h>

namespace onecopy {
namespace {

using Nonce = NonceOf<16>;

ByteSpan bytes(std::string_view text) { return std::as_bytes(std::span(text)); }

TEST(MutualProof, IsRightForThisSecretRoleAndPairOfNoncesOnly) {
  const auto a = make_nonce<Nonce>();
  const auto b = make_nonce<Nonce>();
  const Digest proof = prove(bytes("secret"), "broker", a, b);
  EXPECT_TRUE(is_proof(proof, prove(bytes("secret"), "broker", a, b)));
  EXPECT_FALSE(is_proof(proof, prove(bytes("Secret"), "broker", a, b)));
  EXPECT_FALSE(is_proof(proof, prove(bytes("secret"), "borrower", a, b)));
  EXPECT_FALSE(is_proof(proof, prove(bytes("secret"), "broker", b, a)));
  EXPECT_FALSE(is_proof(proof, prove(bytes("secret"), "broker", a, make_nonce<Nonce>())));
}

}  // namespace
}  // namespace onecopy
