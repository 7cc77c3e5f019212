// SPDX-License-Identifier: Apache-2.0
// Frames that another process replays, cuts, reorders or alters are refused.
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "device/backend.h"
#include "onecopy/share/share.h"
#include "rpc/far/far_link.h"
#include "rpc/message.h"
#include "share/session.h"
#include "support/refusal.h"

namespace onecopy::rpc {
namespace {

using testing::expect_refusal;

Digest key_of(const char* text) {
  return sha256(std::as_bytes(std::span(text, std::char_traits<char>::length(text))));
}

Message note_of(std::size_t bytes) {
  Message message{tag_of(Form::note, 0, true), Bytes(bytes, std::byte{7}), {}};
  append_tail(message.data, NoteTail{});
  return message;
}

/// Frames go in at one end; the bytes between the ends are the test's.
class FramesOnTheWay : public ::testing::Test {
 protected:
  FramesOnTheWay() {
    for (auto* pair : {&sent_, &received_}) {
      int fds[2];
      EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
      (*pair)[0] = Fd(fds[0]);
      (*pair)[1] = Fd(fds[1]);
    }
    sender_.emplace(sent_[0].get(), key_);
    receiver_.emplace(received_[1].get(), key_, true);
  }

  /// The bytes of the frames of a message.
  Bytes frames_of(Message&& message) {
    sender_->put(std::move(message));
    Bytes all;
    bool has_more = true;
    while (has_more) {
      has_more = sender_->send();
      std::array<std::byte, 65536> part;
      for (ssize_t got; (got = ::recv(sent_[1].get(), part.data(), part.size(), MSG_DONTWAIT)) > 0;)
        all.insert(all.end(), part.begin(), part.begin() + got);
    }
    return all;
  }
  void deliver(ByteSpan bytes) {
    while (!bytes.empty()) {
      const ssize_t put = ::send(received_[0].get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
      if (put > 0) bytes = bytes.subspan(static_cast<std::size_t>(put));
      receiver_->receive(
          {[](ByteSpan) {}, [this](Message&& message) { messages_.push_back(std::move(message)); }});
    }
    receiver_->receive(
        {[](ByteSpan) {}, [this](Message&& message) { messages_.push_back(std::move(message)); }});
  }

  const Digest key_ = key_of("of a connection");
  std::array<Fd, 2> sent_, received_;
  std::optional<FrameSender> sender_;
  std::optional<FrameReceiver> receiver_;
  std::vector<Message> messages_;
};

TEST_F(FramesOnTheWay, ArriveAsTheyWereSent) {
  deliver(frames_of(note_of(10)));
  deliver(frames_of(note_of(2'000'000)));
  Message with_tensor = note_of(5);
  with_tensor.tensors.push_back(empty(Layout(DType::f32, {1000, 300})));
  deliver(frames_of(std::move(with_tensor)));
  ASSERT_EQ(messages_.size(), 3U);
  EXPECT_EQ(messages_[1].data, note_of(2'000'000).data);
  EXPECT_EQ(messages_[2].tensors.at(0).layout(), Layout(DType::f32, {1000, 300}));
}

/// Bytes of shared memory that this process has in use.
std::size_t shared_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("RssShmem:")) return std::stoull(line.substr(9)) * 1024;
  throw std::runtime_error("the system does not say how much shared memory a process uses");
}

/// All of it at once took longer than three seconds from 3 GiB on, and the sender ended the connection.
TEST(AnArrivingMessage, HasMemoryForALargeTensorAsItsBytesCome) {
  constexpr std::size_t kBytes = (std::size_t{512} << 20) + 4096, kStep = kMostFrameBytes;
  const Layout layout(DType::u8, {static_cast<std::int64_t>(kBytes)});
  Message message = note_of(0);
  message.tensors.push_back(Session::current().adopt(
      backend(DeviceType::cpu).create(0, kBytes, SegmentKind::memfd, "of a test", 0), kBytes));
  Parcel parcel(std::move(message));
  Assembly assembly(kMostMessageBytes);
  const std::size_t before = shared_bytes();
  assembly.begin(parcel.next().value());
  assembly.fill(assembly.room(sizeof(NoteTail)).size());
  for (std::size_t at = 0; at < kBytes; at += kStep) {
    const auto room = assembly.room(std::min(kStep, kBytes - at));
    room[0] = static_cast<std::byte>(at / kStep);
    assembly.fill(room.size());
    ASSERT_LT(shared_bytes() - before, at + (std::size_t{32} << 20));
  }
  const auto arrived = assembly.take();
  ASSERT_TRUE(arrived.has_value());
  ASSERT_EQ(arrived->tensors.at(0).layout(), layout);
  for (std::size_t at = 0; at < kBytes; at += kStep)
    ASSERT_EQ(arrived->tensors[0].as<std::byte>()[at], static_cast<std::byte>(at / kStep));
}

TEST_F(FramesOnTheWay, ArriveInPieces) {
  const Bytes frames = frames_of(note_of(300));
  for (const std::byte& byte : frames) deliver({&byte, 1});
  ASSERT_EQ(messages_.size(), 1U);
  EXPECT_EQ(messages_[0].data, note_of(300).data);
}

TEST_F(FramesOnTheWay, AreRefusedWhenReplayed) {
  const Bytes frame = frames_of(note_of(10));
  deliver(frame);
  expect_refusal(ErrorCode::protocol, {"replayed"}, [&] { deliver(frame); });
  EXPECT_EQ(messages_.size(), 1U);
}

TEST_F(FramesOnTheWay, AreRefusedWhenOneIsMissing) {
  frames_of(note_of(10));
  expect_refusal(ErrorCode::protocol, {"missing"}, [&] { deliver(frames_of(note_of(10))); });
}

TEST_F(FramesOnTheWay, AreRefusedWhereverTheyWereAltered) {
  const Bytes frame = frames_of(note_of(10));
  for (std::size_t i = 0; i < frame.size(); ++i) {
    if (i < 3) continue;  // another length: it is waited for, or refused as too long
    FramesOnTheWay::receiver_.emplace(received_[1].get(), key_, true);
    Bytes altered = frame;
    altered[i] ^= std::byte{1};
    expect_refusal(ErrorCode::protocol, {}, [&] { deliver(altered); });
    std::array<std::byte, 4096> rest;
    while (::recv(received_[1].get(), rest.data(), rest.size(), MSG_DONTWAIT) > 0) continue;
  }
  EXPECT_TRUE(messages_.empty());
}

TEST_F(FramesOnTheWay, AreRefusedWithAnotherConnectionsKey) {
  receiver_.emplace(received_[1].get(), key_of("of another connection"), true);
  expect_refusal(ErrorCode::protocol, {"does not know the key"}, [&] { deliver(frames_of(note_of(10))); });
}

TEST_F(FramesOnTheWay, AreRefusedBeforeTheirSenderHasANumber) {
  receiver_.emplace(received_[1].get(), key_, false);
  expect_refusal(ErrorCode::protocol, {"which member"}, [&] { deliver(frames_of(note_of(10))); });
}

TEST_F(FramesOnTheWay, AreRefusedWhenTheyWithdrawNothing) {
  FrameSeal seal(key_);
  const FrameHead head = seal.head(FrameKind::withdrawn, 0);
  const ShortMac mac = seal.mac(head, {});
  Bytes bytes(sizeof head + sizeof mac);
  store(bytes.data(), head);
  store(bytes.data() + sizeof head, mac);
  expect_refusal(ErrorCode::protocol, {"withdraws no message"}, [&] { deliver(bytes); });
}

TEST_F(FramesOnTheWay, EndWithTheConnectionWhenCut) {
  Bytes frame = frames_of(note_of(10));
  frame.pop_back();
  deliver(frame);
  received_[0].reset();
  expect_refusal(ErrorCode::peer_died, {}, [&] { deliver({}); });
  EXPECT_TRUE(messages_.empty());
}

}  // namespace
}  // namespace onecopy::rpc
