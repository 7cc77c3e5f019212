// SPDX-License-Identifier: Apache-2.0
// The order of messages whose pieces come in any order over UCX.
#include "transport/ucx/ucx_inbox.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "device/backend.h"
#include "onecopy/share/share.h"
#include "rpc/message.h"
#include "share/session.h"
#include "support/refusal.h"

namespace onecopy::transport {
namespace {

using namespace rpc;
using testing::expect_refusal;

constexpr auto kAnswer = static_cast<std::uint32_t>(Form::answer);

/// A message whose data is its number, with a tensor of so many bytes of that value.
Message message(std::uint64_t number, std::uint32_t tag, std::int64_t bytes) {
  Message made{tag, Bytes(sizeof number), {}};
  write_value(made.data.data(), number);
  if (bytes == 0) return made;
  made.tensors.push_back(empty(Layout(DType::u8, {bytes})));
  std::fill_n(made.tensors[0].as<std::uint8_t>(), bytes, static_cast<std::uint8_t>(number));
  return made;
}

std::uint64_t number_of(const Message& message) { return load<std::uint64_t>(message.data.data()); }

UcxHead head_of(std::uint64_t number, std::uint32_t piece, std::uint32_t part = 0) {
  return {0, number, piece, part};
}

/// The pieces of a message, and the inbox into which they go.
struct Pieces {
  std::uint64_t number;
  Message message;
  Bytes beginning;

  Pieces(std::uint64_t n, std::uint32_t tag, std::int64_t bytes)
      : number(n), message(transport::message(n, tag, bytes)), beginning(encode_first_piece(message)) {}
  void begin(UcxInbox& inbox) const { inbox.begin(number, beginning); }
  void fill(UcxInbox& inbox) const {
    const std::size_t bytes = message.tensors[0].nbytes();
    const Tensor into = inbox.room(head_of(number, 1), bytes);
    std::copy_n(message.tensors[0].as<std::byte>(), bytes, into.as<std::byte>());
    inbox.fill(number, bytes);
  }
};

std::vector<std::uint64_t> numbers(std::vector<UcxInbox::Arrived> arrived) {
  std::vector<std::uint64_t> found;
  for (const auto& one : arrived) found.push_back(one.is_question ? 0 : number_of(one.message));
  return found;
}

TEST(AUcxInbox, GivesASmallMessageOutAtOnce) {
  UcxInbox inbox;
  Pieces(1, kAnswer, 100).begin(inbox);
  const auto arrived = inbox.take();
  ASSERT_EQ(arrived.size(), 1U);
  EXPECT_EQ(number_of(arrived[0].message), 1U);
  EXPECT_EQ(arrived[0].message.tensors.at(0).as<std::uint8_t>()[99], 1);
  EXPECT_FALSE(inbox.has_arrived());
}

TEST(AUcxInbox, PutsATensorForACardThatIsNotThereIntoTheHostsMemory) {
  UcxInbox inbox;
  Bytes beginning = encode_first_piece(message(1, kAnswer, 100'000));
  beginning[16 + 2] = std::byte{201};  // the card, in the row behind the head: see rpc-stream-v1.md
  inbox.begin(1, beginning, true);
  EXPECT_EQ(inbox.room(head_of(1, 1), 100'000).device(), kCpu);
}

TEST(AUcxInbox, LetsSmallMessagesOvertakeLargeOnesUnlessTheyAreInOrder) {
  UcxInbox inbox;
  const Pieces large(1, kAnswer, 100'000);
  large.begin(inbox);
  Pieces(2, kAnswer, 0).begin(inbox);
  Pieces(3, kAnswer | kInOrder, 0).begin(inbox);
  Pieces(4, kAnswer, 0).begin(inbox);
  EXPECT_EQ(numbers(inbox.take()), (std::vector<std::uint64_t>{2, 4}));
  large.fill(inbox);
  EXPECT_EQ(numbers(inbox.take()), (std::vector<std::uint64_t>{1, 3}));
}

TEST(AUcxInbox, AnswersAQuestionBehindAllThatWasSentBefore) {
  UcxInbox inbox;
  const Pieces large(1, kAnswer, 100'000);
  inbox.begin(2, encode_question());
  EXPECT_FALSE(inbox.has_arrived());
  large.begin(inbox);
  large.fill(inbox);
  EXPECT_EQ(numbers(inbox.take()), (std::vector<std::uint64_t>{1, 0}));
}

TEST(AUcxInbox, GivesAllOutOnceAndThoseThatAreInOrderBehindTheirPredecessors) {
  std::mt19937 random(7);  // NOLINT(cert-msc51-cpp): a failure repeats
  for (int round = 0; round < 200; ++round) {
    std::vector<Pieces> all;
    std::vector<std::pair<std::size_t, bool>> events;  // (message, is it its tensor)
    for (std::uint64_t n = 1; n <= 20; ++n) {
      const std::int64_t bytes = random() % 2 != 0 ? 20'000 : 0;
      all.emplace_back(n, random() % 2 != 0 ? kAnswer | kInOrder : kAnswer, bytes);
      events.emplace_back(n - 1, false);
    }
    std::ranges::shuffle(events, random);
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (all[i].message.tensors.empty()) continue;
      const auto begun = std::ranges::find(events, std::pair(i, false));
      const auto behind = static_cast<std::size_t>(events.end() - begun);
      events.insert(begun + 1 + static_cast<std::ptrdiff_t>(random() % behind), {i, true});
    }
    UcxInbox inbox;
    std::vector<std::uint64_t> out;
    for (const auto& [i, is_tensor] : events) {
      if (is_tensor) all[i].fill(inbox);
      else all[i].begin(inbox);
      for (const std::uint64_t number : numbers(inbox.take())) {
        if ((all[number - 1].message.tag & kInOrder) != 0) {
          EXPECT_EQ(std::ranges::count_if(out, [&](std::uint64_t n) { return n < number; }),
                    static_cast<std::ptrdiff_t>(number - 1));
        }
        out.push_back(number);
      }
    }
    std::ranges::sort(out);
    std::vector<std::uint64_t> expected(all.size());
    std::iota(expected.begin(), expected.end(), 1);
    EXPECT_EQ(out, expected);
  }
}

/// All of it at once takes a second a GiB, in which the event loop serves nobody else.
TEST(AUcxInbox, ReservesTheMemoryOfALargeTensorAsItsPartsCome) {
  UcxInbox inbox;
  constexpr std::size_t kBytes = (std::size_t{512} << 20) + 4096;
  constexpr std::uint32_t kLast = kBytes / UcxHead::kPartBytes;
  Message message = transport::message(1, kAnswer, 0);
  message.tensors.push_back(Session::current().adopt(
      backend(DeviceType::cpu).create(0, kBytes, SegmentKind::memfd, "of a test", 0), kBytes));
  inbox.begin(1, encode_first_piece(message));
  EXPECT_TRUE(inbox.reserve(head_of(1, 1, 0)));
  EXPECT_FALSE(inbox.reserve(head_of(1, 1, kLast)));
  while (!inbox.reserve(head_of(1, 1, kLast))) continue;
  for (std::uint32_t part = 0; part <= kLast; ++part) {
    const std::size_t bytes = part == kLast ? 4096 : UcxHead::kPartBytes;
    expect_refusal(ErrorCode::protocol, {"no message"},
                   [&] { inbox.room(head_of(1, 1, part), bytes - 1); });
    inbox.room(head_of(1, 1, part), bytes);
    EXPECT_FALSE(inbox.has_arrived());
    inbox.fill(1, bytes);
  }
  expect_refusal(ErrorCode::protocol, {"no message"}, [&] { inbox.room(head_of(1, 1, kLast + 1), 4096); });
  EXPECT_EQ(numbers(inbox.take()), (std::vector<std::uint64_t>{1}));
}

TEST(AUcxInbox, RefusesWhatNoMemberSends) {
  UcxInbox inbox;
  const Pieces large(1, kAnswer, 100'000);
  large.begin(inbox);
  expect_refusal(ErrorCode::protocol, {"again"}, [&] { large.begin(inbox); });
  expect_refusal(ErrorCode::protocol, {"no message"}, [&] { inbox.room(head_of(1, 1), 99'999); });
  expect_refusal(ErrorCode::protocol, {"no message"}, [&] { inbox.room(head_of(1, 2), 100'000); });
  inbox.room(head_of(1, 1), 100'000);
  expect_refusal(ErrorCode::protocol, {"no message"}, [&] { inbox.room(head_of(1, 1), 100'000); });
  const Pieces small(2, kAnswer, 100);
  for (std::size_t size = 0; size < small.beginning.size(); ++size)
    expect_refusal(ErrorCode::protocol, {}, [&] { inbox.begin(2, ByteSpan(small.beginning).first(size)); });
  small.begin(inbox);
  EXPECT_EQ(numbers(inbox.take()), (std::vector<std::uint64_t>{2}));
}

}  // namespace
}  // namespace onecopy::transport
