// SPDX-License-Identifier: Apache-2.0
// Queues through which more segments go than their directory has entries.
#include "channel/codec/segment_directory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <string>
#include <thread>

#include "channel/queue/channel.h"
#include "onecopy/channel/queue.h"
#include "onecopy/share/share.h"
#include "support/child.h"
#include "support/die_at.h"
#include "support/note.h"
#include "support/numbers.h"
#include "support/watchdog.h"

namespace onecopy {
namespace {

using testing::Child;
using testing::Note;
using testing::number;
using testing::number_in;
using testing::Shared;
using testing::Watchdog;

/// The directory of a queue that this process has open.
class Directory {
 public:
  explicit Directory(const Queue& queue) : channel_(Channel::connect(queue.handle())) {}
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;
  ~Directory() { channel_.leave(); }

  std::uint32_t epoch() { return SegmentDirectory(channel_.ring()).epoch(); }
  /// Enters segments until a half is full, or there is no room.
  void fill() {
    while (const auto index = append())
      if (*index % 32'768 == SegmentDirectory::kHalf - 1) return;
  }
  /// Enters segments until the next epoch has begun, or there is no room.
  void turn() {
    const std::uint32_t now = epoch();
    while (append() && epoch() == now) {
    }
  }

 private:
  std::optional<std::uint16_t> append() {
    SegmentOrigin other;
    other.segment = ++last_;
    other.segment_size = 4096;
    std::optional<std::uint16_t> index;
    channel_.ring().exclusively(
        kForever, [&] { index = SegmentDirectory(channel_.ring()).append(other, Access::read_write); });
    return index;
  }

  std::uint32_t last_ = 1'000'000;
  Channel& channel_;
};

/// Of the pool of named files: another segment than that of number().
Tensor number_in_a_file(std::int64_t value) {
  set_strategy(Strategy::file_system);
  Tensor tensor = number(value);
  set_strategy(Strategy::file_descriptor);
  return tensor;
}

TEST(QueueDirectory, MayTurnAsOftenAsItLikes) {
  Watchdog watchdog;
  Shared<Note> note;
  Child getter([&] {
    Queue queue = Queue::connect(Handle::from_text(note->read()));
    for (std::int64_t i = 0; i < 12; ++i) EXPECT_EQ(number_in(queue.get_tensor()), i);
  });
  Queue queue = Queue::create();
  Directory directory(queue);
  note->write(queue.handle().to_text());
  for (std::int64_t i = 0; i < 12; i += 4) {
    queue.put(number(i));
    queue.put(number_in_a_file(i + 1));
    while (!queue.empty()) std::this_thread::yield();
    directory.turn();
    queue.put(number_in_a_file(i + 2));
    queue.put(number(i + 3));
  }
  EXPECT_EQ(getter.join(), 0);
  EXPECT_EQ(directory.epoch(), 3U);
}

TEST(QueueDirectory, DoesNotTurnWhileItemsOfTheLastEpochAreLeft) {
  Queue queue = Queue::create();
  Directory directory(queue);
  queue.put(number(0));
  directory.turn();
  queue.put(number(1));
  directory.turn();
  for (std::int64_t i = 2; i < 5; ++i) queue.put(number_in_a_file(i));  // whole handles
  EXPECT_EQ(directory.epoch(), 1U);
  for (std::int64_t i = 0; i < 5; ++i) EXPECT_EQ(number_in(queue.get_tensor()), i);
  queue.put(number_in_a_file(5));
  EXPECT_EQ(directory.epoch(), 2U);
  EXPECT_EQ(number_in(queue.get_tensor()), 5);
}

TEST(QueueDirectory, MessagesThatLieElsewhereComeThroughATurn) {
  Queue queue = Queue::create();
  Directory directory(queue);
  for (std::int64_t i = 0; i < 4; ++i) {
    Message message;
    for (std::int64_t j = 0; j < 20; ++j) message.tensors.push_back(number(100 * i + j));
    queue.put(message);
    directory.turn();
    if (i == 1) {
      EXPECT_EQ(number_in(queue.get().tensors.at(19)), 19);
      EXPECT_EQ(number_in(queue.get().tensors.at(19)), 119);
    }
  }
  EXPECT_EQ(number_in(queue.get().tensors.at(7)), 207);
  EXPECT_EQ(number_in(queue.get().tensors.at(7)), 307);
}

class DirectoryTurns : public ::testing::TestWithParam<const char*> {};

TEST_P(DirectoryTurns, HoweverFarADeadPutterCame) {
  Watchdog watchdog;
  Shared<Note> note;
  Child victim([&] {
    Queue queue = Queue::connect(Handle::from_text(note->read()));
    testing::die_at(GetParam());
    queue.put(number(1));
  });
  Queue queue = Queue::create();
  Directory directory(queue);
  queue.put(number(0));
  directory.fill();
  note->write(queue.handle().to_text());
  EXPECT_EQ(victim.join(), -SIGKILL) << "the point was not reached";
  queue.put(number(2));
  directory.fill();
  EXPECT_EQ(number_in(queue.get_tensor()), 0);
  EXPECT_EQ(number_in(queue.get_tensor()), 2);
  queue.put(number_in_a_file(3));
  queue.put(number(4));
  EXPECT_EQ(number_in(queue.get_tensor()), 3);
  EXPECT_EQ(number_in(queue.get_tensor()), 4);
  EXPECT_EQ(directory.epoch(), 2U);
}

INSTANTIATE_TEST_SUITE_P(Points, DirectoryTurns,
                         ::testing::Values("queue.segment.ended", "queue.segment.turned",
                                           "queue.segment.written", "queue.segment.counted"),
                         [](const auto& point) {
                           std::string name = point.param;
                           std::replace(name.begin(), name.end(), '.', '_');
                           return name;
                         });

TEST(QueueOptions, OfASmallRangeTakeFewerItems) {
  QueueOptions options;
  options.range = 1 << 20;
  Queue queue = Queue::create(options);
  const Tensor tensor = number(7);
  std::uint64_t items = 0;
  try {
    for (; items < 100'000; ++items) queue.put(tensor);
    FAIL() << "a range of 1 MiB holds all of them";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::out_of_memory);
  }
  EXPECT_GE(items, 2'000U);
  EXPECT_EQ(number_in(queue.get_tensor()), 7);
}

TEST(QueueOptions, ThatLetWaitsSleepHoldForAllThatConnect) {
  Watchdog watchdog;
  QueueOptions options;
  options.may_spin = false;
  Queue there = Queue::create(options);
  Queue back = Queue::create(options);
  Child other([&] {
    Queue in = Queue::connect(there.handle());
    Queue out = Queue::connect(back.handle());
    for (int i = 0; i < 20; ++i) out.put(in.get_tensor());
  });
  for (std::int64_t i = 0; i < 20; ++i) {
    there.put(number(i));
    EXPECT_EQ(number_in(back.get_tensor()), i);
  }
  EXPECT_EQ(other.join(), 0);
  Channel& channel = Channel::connect(there.handle());
  EXPECT_TRUE(SegmentDirectory(channel.ring()).sleeps());
  channel.leave();
}

}  // namespace
}  // namespace onecopy
