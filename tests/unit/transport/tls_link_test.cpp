// SPDX-License-Identifier: Apache-2.0
// What a link to another host does with messages that the connection does not take at once.
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "onecopy/core/error.h"
#include "onecopy/share/share.h"
#include "rpc/message.h"
#include "support/limits.h"
#include "support/numbers.h"
#include "support/refusal.h"
#include "support/watchdog.h"
#include "transport/tls/tls_link.h"
#include "unit/rpc/meeting.h"
#include "unit/rpc/tls_environment.h"

namespace onecopy::transport {
namespace {

using namespace rpc;
using namespace std::chrono_literals;
using testing::Child;
using testing::eventually;
using testing::filled_bytes;
using testing::Shared;
using testing::Watchdog;

bool holds(const Tensor& tensor, int value) {
  const auto* begin = tensor.as<const std::uint8_t>();
  return std::all_of(begin, begin + tensor.nbytes(), [&](std::uint8_t byte) { return byte == value; });
}

/// A link without an event loop: the test sends and receives.
class ALinkAlone : public ::testing::Test {
 protected:
  /// `room`: of what the other host has not read; 0: as usual.
  explicit ALinkAlone(int room = 0) {
    const StreamSocket listener = listen_with(room);
    auto client =
        std::make_unique<TlsStream>(context_, StreamSocket::connect(listener.address(), 10s), Side::client);
    auto there = std::make_unique<TlsStream>(context_, accept_from(listener), Side::listener);
    std::thread proving([&] { client->handshake(kForever); });
    there->handshake(kForever);
    proving.join();
    link_ = std::make_unique<TlsLink>(std::move(client), Side::client, 30s, [this](int) { ++asked_; });
    there_ = std::move(there);
  }

  static StreamSocket listen_with(int room) {
    StreamSocket listener = StreamSocket::listen("tcp:127.0.0.1:0");
    if (room != 0) ::setsockopt(listener.fd(), SOL_SOCKET, SO_RCVBUF, &room, sizeof room);
    return listener;
  }
  static StreamSocket accept_from(const StreamSocket& listener) {
    return const_cast<StreamSocket&>(listener).accept(10s);
  }
  /// Takes messages until it has that many.
  void receive(std::size_t count) {
    while (arrived_.messages.size() < count) {
      link_->on_ready();
      there_->begin_turn();
      while (const std::size_t got = there_->read(inbox_.room())) inbox_.take(got, arrived_);
    }
  }
  static Message note_with(Tensor tensor) {
    Message message{tag_of(Form::note, 0, true), {}, {std::move(tensor)}};
    append_tail(message.data, NoteTail{});
    return message;
  }

  Watchdog watchdog_;
  std::atomic<int> asked_{0};  ///< turns of the loop
  const std::shared_ptr<const TlsContext> context_ = std::make_shared<const TlsContext>(ByteSpan{});
  std::unique_ptr<TlsLink> link_;
  std::unique_ptr<TlsStream> there_;
  Inbox inbox_{true};
  Inbox::Arrived arrived_;
};

TEST_F(ALinkAlone, SendsWhatTensorsHeldWhenTheyWerePut) {
  constexpr std::int64_t kBytes = 12 << 20;
  for (int value = 1; value <= 3; ++value) {
    Tensor tensor = filled_bytes(kBytes, value);
    std::thread putter([&] {
      link_->put(note_with(tensor), {});
      std::fill_n(tensor.as<std::uint8_t>(), kBytes, std::uint8_t{99});
    });
    if (value > 1) receive(static_cast<std::size_t>(value) - 1);
    putter.join();
  }
  receive(3);
  for (int value = 1; value <= 3; ++value)
    EXPECT_TRUE(holds(arrived_.messages[static_cast<std::size_t>(value) - 1].tensors.at(0), value))
        << value;
}

TEST_F(ALinkAlone, TakesNoMoreThanItHasRoomFor) {
  constexpr std::int64_t kBytes = 1 << 20;
  constexpr std::size_t kMessages = 64;
  std::atomic<std::size_t> put{0};
  std::thread putter([&] {
    for (std::size_t i = 0; i < kMessages; ++i, ++put) link_->put(note_with(filled_bytes(kBytes, 1)), {});
  });
  EXPECT_TRUE(eventually([&] { return link_->waiters() == 1; }));
  EXPECT_LT(put.load(), kMessages);
  receive(kMessages);
  putter.join();
  EXPECT_EQ(put.load(), kMessages);
  EXPECT_TRUE(link_->has_sent_all());
}

/// Messages that are in order come behind all that was put before them.
TEST_F(ALinkAlone, SendsSmallMessagesBetweenThePartsOfALargeOne) {
  Message answer{tag_of(Form::answer, 0, false), {}, {}};
  append_tail(answer.data, AnswerTail{});
  std::thread putter([&] { link_->put(note_with(filled_bytes(64 << 20, 1)), {}); });
  EXPECT_TRUE(eventually([&] { return link_->waiters() == 1; }));
  std::thread second([&] { link_->put(note_with(filled_bytes(10, 2)), {}); });
  EXPECT_TRUE(eventually([&] { return link_->waiters() == 2; }));
  link_->put(answer, {});
  receive(3);
  putter.join();
  second.join();
  EXPECT_EQ(arrived_.messages[0].tag, answer.tag);
  EXPECT_TRUE(holds(arrived_.messages[1].tensors.at(0), 1));
  EXPECT_TRUE(holds(arrived_.messages[2].tensors.at(0), 2));
}

TEST_F(ALinkAlone, LeavesSmallMessagesThatFollowEachOtherCloselyToTheLoop) {
  if (onecopy::testing::kSanitized)
    GTEST_SKIP() << "with a sanitizer, messages do not follow each other closely";
  std::size_t count = 0;
  while (link_->has_sent_all() && count < 10'000) {
    Message note{tag_of(Form::note, 0, true), {}, {}};
    append_bytes(note.data, std::as_bytes(std::span(&count, 1)));
    append_tail(note.data, NoteTail{});
    ++count;
    link_->put(note, {});
  }
  EXPECT_EQ(asked_.load(), 1);
  receive(count);
  EXPECT_TRUE(link_->has_sent_all());
  for (std::size_t i = 0; i < count; ++i) EXPECT_EQ(load<std::size_t>(arrived_.messages[i].data.data()), i);
}

TEST_F(ALinkAlone, LetsGoOfThreadsThatWaitForRoomWhenItEnds) {
  std::thread putter([&] { link_->put(note_with(filled_bytes(64 << 20, 1)), {}); });
  EXPECT_TRUE(eventually([&] { return link_->waiters() == 1; }));
  link_->end();
  putter.join();
}

/// At once: no bytes of the connection are read.
void expect_withdrawn(TlsLink& link, const Message& message) {
  testing::expect_refusal(ErrorCode::timeout, {"has not taken the message in time"},
                          [&] { link.put(message, {}, kNow); });
}

TEST_F(ALinkAlone, WithdrawsAtItsDeadlineWhatHasBegun) {
  Tensor tensor = filled_bytes(64 << 20, 1);
  expect_withdrawn(*link_, note_with(tensor));
  std::fill_n(tensor.as<std::uint8_t>(), tensor.nbytes(), std::uint8_t{99});
  std::thread putter([&] { link_->put(note_with(filled_bytes(20 << 20, 2)), {}); });
  receive(1);
  putter.join();
  EXPECT_TRUE(holds(arrived_.messages[0].tensors.at(0), 2));
  EXPECT_TRUE(link_->has_sent_all());
}

TEST_F(ALinkAlone, WithdrawsAtItsDeadlineWhatHasNotBegun) {
  std::thread putter([&] { link_->put(note_with(filled_bytes(64 << 20, 1)), {}); });
  EXPECT_TRUE(eventually([&] { return link_->waiters() == 1; }));
  expect_withdrawn(*link_, note_with(filled_bytes(1000, 2)));
  expect_withdrawn(*link_, note_with(filled_bytes(1 << 20, 2)));
  receive(1);
  putter.join();
  link_->put(note_with(filled_bytes(1000, 3)), {});
  receive(2);
  EXPECT_TRUE(holds(arrived_.messages[0].tensors.at(0), 1));
  EXPECT_TRUE(holds(arrived_.messages[1].tensors.at(0), 3));
}

/// Whose other host takes a few KiB before it reads.
class ALinkToASmallReceiver : public ALinkAlone {
 protected:
  ALinkToASmallReceiver() : ALinkAlone(4096) {}
};

TEST_F(ALinkToASmallReceiver, KnowsWhatOnlyItsOwnSocketHasTaken) {
  link_->put(note_with(filled_bytes(256 << 10, 1)), {});
  EXPECT_TRUE(link_->has_sent_all());
  EXPECT_FALSE(link_->has_arrived());
  receive(1);
  EXPECT_TRUE(eventually([&] { return link_->has_arrived(); }));
}

class ATlsMember : public TlsMembers {};

/// The member is stopped, so most of the tensor is still here when call_async() returns.
TEST_F(ATlsMember, GetsTheTensorAsItWasAtTheCall) {
  Child callee = serve(meeting_);
  Agent agent({.name = "caller"});
  meeting_->join(agent, 1);
  agent.call("callee", "echo");
  for (int value = 1; value <= 3; ++value) {
    Tensor tensor = filled_bytes(12 << 20, value);
    callee.signal(SIGSTOP);
    Future future = agent.call_async("callee", "echo", {{}, {tensor}});
    std::fill_n(tensor.as<std::uint8_t>(), tensor.nbytes(), std::uint8_t{99});
    callee.signal(SIGCONT);
    EXPECT_TRUE(holds(future.get().tensors.at(0), value)) << value;
  }
  meeting_->step = 1;
  EXPECT_EQ(callee.join(), 0);
}

TEST_F(ATlsMember, IsCalledAgainAfterATensorThatItHasNotTakenInTime) {
  Child callee = serve(meeting_);
  Agent agent({.name = "caller"});
  meeting_->join(agent, 1);
  EXPECT_EQ(number_of(agent.call("callee", "add one", number(1))), 2);
  callee.signal(SIGSTOP);
  testing::expect_refusal(ErrorCode::timeout, {"has not taken the message in time"}, [&] {
    agent.call("callee", "echo", {{}, {filled_bytes(64 << 20, 1)}}, 200ms);
  });
  callee.signal(SIGCONT);
  EXPECT_EQ(number_of(agent.call("callee", "add one", number(2))), 3);
  EXPECT_TRUE(holds(agent.call("callee", "echo", {{}, {filled_bytes(20 << 20, 5)}}).tensors.at(0), 5));
  EXPECT_EQ(agent.calls_under_way(), 0u);
  meeting_->step = 1;
  EXPECT_EQ(callee.join(), 0);
}

TEST_F(ATlsMember, IsSentMoreThanThereIsRoomForByManyThreads) {
  Child callee = serve(meeting_);
  Agent agent({.name = "caller"});
  meeting_->join(agent, 1);
  std::vector<std::jthread> threads;
  for (int t = 1; t <= 4; ++t)
    threads.emplace_back([&agent, t] {
      std::vector<Future> futures;
      Tensor tensor = filled_bytes(6 << 20, 0);
      for (int i = 0; i < 4; ++i) {
        std::fill_n(tensor.as<std::uint8_t>(), tensor.nbytes(), static_cast<std::uint8_t>(10 * t + i));
        futures.push_back(agent.call_async("callee", "echo", {{}, {tensor}}));
      }
      for (int i = 0; i < 4; ++i)
        EXPECT_TRUE(holds(futures[static_cast<std::size_t>(i)].get().tensors.at(0), 10 * t + i));
    });
  threads.clear();
  meeting_->step = 1;
  EXPECT_EQ(callee.join(), 0);
}

}  // namespace
}  // namespace onecopy::transport
