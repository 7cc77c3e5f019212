// SPDX-License-Identifier: Apache-2.0
#include "share/format/wire.h"

#include <gtest/gtest.h>

#include "support/refusal.h"

namespace onecopy::wire {
namespace {

using onecopy::testing::expect_refusal;

ByteSpan text(std::string_view t) { return std::as_bytes(std::span(t)); }

TEST(Wire, GivesBackTypeBodyAndTail) {
  const Bytes packet = pack(Type::segment, Segment{1 << 20, 2, 1, 0, {}}, text("path"));
  EXPECT_EQ(type_of(packet), Type::segment);
  EXPECT_EQ(body_of<Segment>(packet).size, 1u << 20);
  EXPECT_EQ(body_of<Segment>(packet).kind, 2);
  const ByteSpan tail = tail_of<Segment>(packet);
  EXPECT_TRUE(std::equal(tail.begin(), tail.end(), text("path").begin(), text("path").end()));
}

TEST(Wire, BodiesThatAreNotWholeAreRefused) {
  const Bytes packet = pack(Type::deposit, Deposit{});
  for (std::size_t size = 0; size < packet.size(); ++size)
    expect_refusal(ErrorCode::protocol, {"bytes"}, [&] { body_of<Deposit>(ByteSpan(packet).first(size)); });
  EXPECT_TRUE(tail_of<Deposit>(packet).empty());
}

TEST(Wire, AnAnswerIsKnownByItsQuestionsSerial) {
  Bytes packet = pack(Type::limbo, Limbo{1});
  EXPECT_EQ(serial_of(packet), 0u);
  set_serial(packet, 4711);
  EXPECT_EQ(serial_of(packet), 4711u);
  EXPECT_EQ(type_of(packet), Type::limbo);
  EXPECT_EQ(body_of<Limbo>(packet).yes, 1);
}

TEST(Wire, OtherVersionsAreRefusedWithBothNumbers) {
  Bytes packet = pack(Type::hello, Hello{});
  store(packet.data() + 4, std::uint32_t{9});
  const std::string ours = "this one " + std::to_string(kVersion);
  expect_refusal(ErrorCode::version_mismatch, {"version 9", ours.c_str(), "same release"},
                 [&] { type_of(packet); });
  expect_refusal(ErrorCode::protocol, {"3 bytes"}, [&] { type_of(ByteSpan(packet).first(3)); });
}

TEST(Wire, ARefusalArrivesAsTheErrorItWas) {
  const Bytes packet = refuse(Error(ErrorCode::stale_handle, "freed"));
  EXPECT_EQ(expect_refusal(ErrorCode::stale_handle, {}, [&] { expect(packet, Type::segment); }), "freed");
}

TEST(Wire, ARefusalWithACodeThatDoesNotExistIsAProtocolError) {
  for (int code = 0; code < 256; ++code) {
    const Bytes packet = pack(Type::refused, Refused{static_cast<ErrorCode>(code)});
    if (std::string_view(name(static_cast<ErrorCode>(code))) == "unknown")
      expect_refusal(ErrorCode::protocol, {"does not exist"}, [&] { expect(packet, Type::segment); });
    else expect_refusal(static_cast<ErrorCode>(code), {}, [&] { expect(packet, Type::segment); });
  }
}

TEST(Wire, AnotherMessageThanExpectedIsRefused) {
  expect(pack(Type::welcome, Welcome{}), Type::welcome);
  expect_refusal(ErrorCode::protocol, {"type 4", "8"},
                 [] { expect(pack(Type::welcome, Welcome{}), Type::segment); });
}

TEST(Wire, NamesOfAnyLengthFitOrAreCut) {
  EXPECT_EQ(to_string(to_name("0123456789abcdef0123456789abcdef")), "0123456789abcdef0123456789abcdef");
  EXPECT_EQ(to_string(to_name(std::string(40, 'x'))), std::string(32, 'x'));
  EXPECT_EQ(to_string(to_name("")).size(), 32u);
}

TEST(Wire, ProofsDependOnSecretRoleAndBothNonces) {
  const Nonce a = new_nonce();
  const Nonce b = new_nonce();
  const Digest proof = prove(text("secret"), "broker", a, b);
  EXPECT_EQ(proof, prove(text("secret"), "broker", a, b));
  EXPECT_NE(proof, prove(text("Secret"), "broker", a, b));
  EXPECT_NE(proof, prove(text("secret"), "borrower", a, b));
  EXPECT_NE(proof, prove(text("secret"), "broker", b, a));
  EXPECT_NE(proof, prove(text("secret"), "broker", a, new_nonce()));
}

TEST(Wire, OnlyMessagesThatNobodyWaitsForGetNoAnswer) {
  for (const Type type : {Type::acknowledge, Type::adopt_child, Type::child_hello, Type::leave_channel,
                          Type::withdraw, Type::let_go})
    EXPECT_FALSE(is_answered(type));
  for (const Type type : {Type::hello, Type::prove, Type::want_segment, Type::want_foreign, Type::ask_limbo,
                          Type::deposit, Type::want_info, Type{999}})
    EXPECT_TRUE(is_answered(type));
}

}  // namespace
}  // namespace onecopy::wire
