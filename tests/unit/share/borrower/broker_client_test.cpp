// SPDX-License-Identifier: Apache-2.0
#include "share/borrower/broker_client.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <utility>
#include <vector>

#include "onecopy/core/error.h"
#include "os/deadline_scope.h"
#include "support/eventually.h"
#include "support/refusal.h"

namespace onecopy {
namespace {

using testing::eventually;
using testing::expect_refusal;

Bytes question() { return wire::pack(wire::AskLimbo{1, 0}); }

Bytes answer(const Packet& asked, bool yes) {
  Bytes bytes = wire::pack(wire::Limbo{yes});
  peer::set_serial(bytes, peer::serial_of(asked.bytes));
  return bytes;
}

Bytes retired(std::uint32_t segment) { return wire::pack(wire::Retire{segment}); }

class BrokerClientTest : public ::testing::Test {
 protected:
  BrokerClientTest() {
    conversation.on_unsolicited = [this](const Packet& packet) {
      last_retired = wire::unpack<wire::Retire>(packet.bytes).segment;
    };
  }
  ~BrokerClientTest() override { reply_timeout_ms = 10'000; }
  bool ask() {
    return wire::unpack<wire::Limbo>(conversation.request(question(), wire::Type::limbo).bytes).yes;
  }
  Packet hear_question() { return broker.receive(testing::kPatience); }

  std::pair<UnixSocket, UnixSocket> sockets = UnixSocket::pair();
  UnixSocket& broker = sockets.second;
  std::atomic<std::uint32_t> last_retired{0};
  BrokerClient conversation{std::move(sockets.first), 1};
  EventLoop loop;
};

std::vector<Bytes> questions(std::size_t count) { return std::vector<Bytes>(count, question()); }

TEST_F(BrokerClientTest, AsksTheNextQuestionsBeforeTheFirstIsAnswered) {
  std::thread broker_thread([&] {
    std::vector<Packet> asked;
    for (int i = 0; i < 8; ++i) asked.push_back(hear_question());
    broker.send(retired(7), {}, testing::kPatience);
    for (std::size_t i = 0; i < 20; ++i) {
      broker.send(answer(asked[i], i % 2 == 0), {}, testing::kPatience);
      if (asked.size() < 20) asked.push_back(hear_question());
    }
  });
  std::vector<bool> heard;
  conversation.request_all(questions(20), 8, [&](std::size_t at, const Packet& packet) {
    EXPECT_EQ(at, heard.size());
    heard.push_back(wire::unpack<wire::Limbo>(packet.bytes).yes);
  });
  broker_thread.join();
  ASSERT_EQ(heard.size(), 20U);
  for (std::size_t i = 0; i < heard.size(); ++i) EXPECT_EQ(heard[i], i % 2 == 0) << i;
  EXPECT_EQ(last_retired, 7U);
}

TEST_F(BrokerClientTest, LeavesTheAnswersBehindThatComeAfterASilence) {
  reply_timeout_ms = 50;
  std::size_t heard = 0;
  const auto count = [&](std::size_t, const Packet&) { ++heard; };
  std::vector<Packet> asked;
  std::thread first([&] {
    asked.push_back(hear_question());
    broker.send(answer(asked[0], true), {}, testing::kPatience);
  });
  expect_refusal(ErrorCode::timeout, {"process 1", "did not answer"},
                 [&] { conversation.request_all(questions(4), 8, count); });
  first.join();
  EXPECT_EQ(heard, 1U);
  reply_timeout_ms = 10'000;
  std::thread goes_on([&] {
    for (int i = 0; i < 3; ++i) broker.send(answer(hear_question(), false), {}, testing::kPatience);
    broker.send(answer(hear_question(), true), {}, testing::kPatience);
  });
  EXPECT_TRUE(ask());
  goes_on.join();
}

TEST_F(BrokerClientTest, ThatIsOverAnswersNoneOfManyQuestions) {
  broker = UnixSocket();
  expect_refusal(ErrorCode::peer_died, {}, [&] {
    conversation.request_all(questions(3), 8,
                             [](std::size_t, const Packet&) { ADD_FAILURE() << "heard something"; });
  });
}

TEST_F(BrokerClientTest, GivesEachQuestionItsOwnAnswerAlsoWhenOneComesTooLate) {
  reply_timeout_ms = 50;
  expect_refusal(ErrorCode::timeout, {"process 1", "did not answer"}, [&] { ask(); });
  EXPECT_TRUE(conversation.is_silent());
  expect_refusal(ErrorCode::timeout, {"earlier question"}, [&] {
    conversation.request(question(), wire::Type::limbo, {}, BrokerClient::WhenSilent::leave);
  });
  reply_timeout_ms = 10'000;
  std::thread goes_on([&] {
    for (const bool yes : {false, false, true})
      broker.send(answer(hear_question(), yes), {}, testing::kPatience);
  });
  EXPECT_TRUE(ask());
  EXPECT_FALSE(conversation.is_silent());
  goes_on.join();
}

TEST_F(BrokerClientTest, HearsNewsWhileAnAnswerIsAwaitedAndOnTheWatchThread) {
  std::thread brokers([&] {
    const Packet asked = hear_question();
    broker.send(retired(3), {}, testing::kPatience);
    broker.send(answer(asked, true), {}, testing::kPatience);
  });
  EXPECT_TRUE(ask());
  EXPECT_EQ(last_retired, 3u);
  brokers.join();
  conversation.watch(loop);
  broker.send(retired(4), {}, testing::kPatience);
  EXPECT_TRUE(eventually([&] { return last_retired == 4; }));
}

TEST_F(BrokerClientTest, IsOverOnceTheBrokerHasHungUpAndAllItSaidIsHeard) {
  broker.send(retired(5), {}, testing::kPatience);
  broker = UnixSocket();
  EXPECT_FALSE(conversation.is_over());
  conversation.watch(loop);
  EXPECT_TRUE(eventually([&] { return conversation.is_over(); }));
  EXPECT_EQ(last_retired, 5u);
  expect_refusal(ErrorCode::peer_died, {"gone"}, [&] { ask(); });
  EXPECT_FALSE(conversation.notify(wire::Acknowledge{1}));
}

TEST_F(BrokerClientTest, CanBeLockedForAForkWhileAnAnswerIsAwaited) {
  std::atomic<bool> is_over{false};
  std::thread asker([&] {
    try {
      EXPECT_TRUE(ask());
    } catch (const Error& error) {
      ADD_FAILURE() << error.what();
    }
    is_over = true;
  });
  const Packet asked = hear_question();
  conversation.lock();
  EXPECT_FALSE(is_over);
  conversation.unlock();
  broker.send(answer(asked, true), {}, testing::kPatience);
  asker.join();
}

TEST_F(BrokerClientTest, LetsOneThreadAskAtATime) {
  std::thread brokers([&] {
    for (int i = 0; i < 200; ++i) broker.send(answer(hear_question(), true), {}, testing::kPatience);
  });
  std::thread other([&] {
    for (int i = 0; i < 100; ++i) EXPECT_TRUE(ask());
  });
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(ask());
  other.join();
  brokers.join();
}

TEST(BrokerClient, WithoutASocketIsOverFromTheStart) {
  BrokerClient conversation(UnixSocket(), 1);
  EXPECT_TRUE(conversation.is_over());
  EXPECT_FALSE(conversation.notify(wire::Acknowledge{1}));
}

/// Its descriptor's number may be another's at once: ThreadSanitizer sees threads that still look at it.
TEST(BrokerClient, MayBeClosedWhileSomebodyAsks) {
  for (int round = 0; round < 20; ++round) {
    EventLoop loop;
    auto [ours, theirs] = UnixSocket::pair();
    BrokerClient conversation(std::move(ours), 1);
    conversation.watch(loop);
    theirs = UnixSocket();
    ASSERT_TRUE(eventually([&] { return conversation.is_over(); }));
    std::atomic<int> asked{0};
    std::thread asker([&] {
      for (; asked < 100; ++asked)
        expect_refusal(ErrorCode::peer_died, {"gone"},
                       [&] { conversation.request(question(), wire::Type::limbo); });
    });
    EXPECT_TRUE(eventually([&] { return asked > 0; }));
    conversation.close();
    asker.join();
  }
}

}  // namespace
}  // namespace onecopy
