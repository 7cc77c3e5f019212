// SPDX-License-Identifier: Apache-2.0
#include "peer/handshake.h"

#include <gtest/gtest.h>

#include <string_view>

#include "support/refusal.h"

namespace onecopy::peer {
namespace {

using onecopy::testing::expect_refusal;

constexpr Protocol kProtocol{7,        "a protocol", "a message",   "use the same version",
                             "server", "client",     "an impostor", "a stranger"};
constexpr Protocol kNext{8, "a protocol", "a message", "use the same version", "server", "client", "", ""};

enum class Type : std::uint32_t { limbo = 6 };
struct Limbo {
  static constexpr Type kType = Type::limbo;
  bool yes = false;
  void fields(auto& f) { f(yes); }
};

ByteSpan bytes(std::string_view text) { return std::as_bytes(std::span(text)); }

TEST(Handshake, LetsInWhoKnowsTheSecret) {
  const Greeting caller(kProtocol);
  Gate listener(kProtocol);
  EXPECT_FALSE(listener.is_challenged());
  const Bytes challenge = listener.challenge(caller.hello(), bytes("secret"));
  EXPECT_TRUE(listener.is_challenged());
  listener.check(caller.prove(challenge, bytes("secret")), bytes("secret"));
}

TEST(Handshake, FindsAnImpostorOutBeforeTheCallerProvesAnything) {
  const Greeting caller(kProtocol);
  const Bytes challenge = Gate(kProtocol).challenge(caller.hello(), bytes("a guess"));
  expect_refusal(ErrorCode::bad_secret, {"an impostor"}, [&] { caller.prove(challenge, bytes("secret")); });
}

TEST(Handshake, RefusesAStrangerAndAProofWithoutAChallenge) {
  const Greeting caller(kProtocol);
  Gate listener(kProtocol);
  const Bytes challenge = listener.challenge(caller.hello(), bytes("secret"));
  const Bytes proof = caller.prove(challenge, bytes("secret"));
  expect_refusal(ErrorCode::bad_secret, {"a stranger"}, [&] { listener.check(proof, bytes("another")); });
  expect_refusal(ErrorCode::bad_secret, {"a stranger"},
                 [&] { Gate(kProtocol).check(proof, bytes("secret")); });
  const Digest theirs = unpack<Challenge>(kProtocol, challenge).proof;
  expect_refusal(ErrorCode::bad_secret, {"a stranger"},
                 [&] { listener.check(pack(kProtocol, Prove{theirs}), bytes("secret")); });
}

TEST(Message, IsReadAsItWasWrittenAndCutOffOrTooLongIsRefused) {
  Bytes packet = pack(kProtocol, Limbo{true});
  EXPECT_TRUE(unpack<Limbo>(kProtocol, packet).yes);
  for (std::size_t size = 0; size < packet.size(); ++size)
    expect_refusal(ErrorCode::protocol, {"a message is cut off"},
                   [&] { unpack<Limbo>(kProtocol, ByteSpan(packet).first(size)); });
  packet.push_back({});
  expect_refusal(ErrorCode::protocol, {"too many"}, [&] { unpack<Limbo>(kProtocol, packet); });
}

TEST(Message, OfAnotherVersionIsRefusedWithBothNumbers) {
  expect_refusal(ErrorCode::version_mismatch,
                 {"version 8 of a protocol", "this one version 7", "use the same"},
                 [] { type_of(kProtocol, pack(kNext, Limbo{})); });
}

TEST(Message, OfAnotherTypeIsRefused) {
  expect_refusal(ErrorCode::protocol, {"type 6", "1"},
                 [] { unpack<Hello>(kProtocol, pack(kProtocol, Limbo{})); });
}

TEST(Message, AnAnswerIsKnownByItsQuestionsSerial) {
  Bytes packet = pack(kProtocol, Limbo{true});
  EXPECT_EQ(serial_of(packet), 0u);
  set_serial(packet, 4711);
  EXPECT_EQ(serial_of(packet), 4711u);
  EXPECT_TRUE(unpack<Limbo>(kProtocol, packet).yes);
}

TEST(Message, ARefusalArrivesAsTheErrorItWas) {
  const Bytes packet = refuse(kProtocol, Error(ErrorCode::stale_handle, "freed"));
  EXPECT_EQ(expect_refusal(ErrorCode::stale_handle, {}, [&] { unpack<Limbo>(kProtocol, packet); }),
            "freed");
}

TEST(Message, ARefusalWithACodeThatDoesNotExistIsAProtocolError) {
  for (int code = 0; code < 256; ++code) {
    const auto given = static_cast<ErrorCode>(code);
    const Bytes packet = pack(kProtocol, Refused{given, "why"});
    if (std::string_view(name(given)) == "unknown")
      expect_refusal(ErrorCode::protocol, {"does not exist"}, [&] { unpack<Limbo>(kProtocol, packet); });
    else expect_refusal(given, {"why"}, [&] { unpack<Limbo>(kProtocol, packet); });
  }
}

}  // namespace
}  // namespace onecopy::peer
