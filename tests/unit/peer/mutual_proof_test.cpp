// SPDX-License-Identifier: Apache-2.0
#include "peer/mutual_proof.h"

#include <gtest/gtest.h>

#include "os/random.h"

namespace onecopy {
namespace {

using Nonce = NonceOf<16>;

ByteSpan bytes(std::string_view text) { return std::as_bytes(std::span(text)); }

TEST(MutualProof, IsRightForThisSecretRoleAndPairOfNoncesOnly) {
  const auto a = random_value<Nonce>();
  const auto b = random_value<Nonce>();
  const Digest proof = prove(bytes("secret"), "broker", a, b);
  EXPECT_TRUE(is_proof(proof, prove(bytes("secret"), "broker", a, b)));
  EXPECT_FALSE(is_proof(proof, prove(bytes("Secret"), "broker", a, b)));
  EXPECT_FALSE(is_proof(proof, prove(bytes("secret"), "borrower", a, b)));
  EXPECT_FALSE(is_proof(proof, prove(bytes("secret"), "broker", b, a)));
  EXPECT_FALSE(is_proof(proof, prove(bytes("secret"), "broker", a, random_value<Nonce>())));
}

}  // namespace
}  // namespace onecopy
