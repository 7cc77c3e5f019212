// SPDX-License-Identifier: Apache-2.0
#include "share/borrower/segment_retention.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <string>

#include "onecopy/core/error.h"
#include "os/memfd.h"
#include "os/process.h"
#include "os/program_mark.h"
#include "share/owner/claim_memory.h"
#include "support/child.h"
#include "support/eventually.h"
#include "support/limits.h"

namespace onecopy {
namespace {

using testing::Child;
using Added = RetainedSegments::Added;

constexpr std::uint64_t kQueue = 77;

/// A queue with so many items put and taken; closed when `open` is false.
struct Progress {
  std::uint64_t put = 0;
  std::uint64_t taken = 0;
  bool open = true;

  QueueHooks hooks() {
    return {[this] { return open ? std::optional(QueueProgress{put, taken}) : std::nullopt; }, nullptr};
  }
};

class RetainedSegmentsTest : public ::testing::Test {
 protected:
  ExportedMemory segment() {
    ExportedMemory memory{SegmentKind::memfd, 4096, {}, {}};
    memory.fds.push_back(create_memfd("segment", 4096));
    return memory;
  }
  /// From this process, or from one that gone() has returned.
  RetainedSegments::Added add(const SegmentKey& key, const ProcessOrigin& origin,
                              std::uint64_t queue = kQueue, std::optional<RetainRequest> request = {}) {
    const Fd& table = origin.pid == ::getpid() ? table_ : table_of_gone_;
    return segments_.add(key, origin, table.duplicate(), segment(), queue, request);
  }
  /// A process that has ended, and lived when `during` was called.
  ProcessOrigin gone(const std::function<void(const ProcessOrigin&)>& during = {}) {
    Child child([this] {
      const ProgramMark mark(table_of_gone_);
      ::pause();
    });
    const ProcessOrigin origin{child.pid(), process_start_time(child.pid())};
    const std::uint64_t inode = inode_of(table_of_gone_);
    const auto runs = [&] { return may_be_marked(table_of_gone_, inode); };
    EXPECT_TRUE(testing::eventually(runs));
    if (during) during(origin);
    child.kill();
    return origin;
  }

  const Fd table_ = create_memfd("onecopy-blocks", 4096);
  const Fd table_of_gone_ = create_memfd("onecopy-blocks", 4096);
  std::optional<ProgramMark> mark_{std::in_place, table_};
  SegmentRetention retention_;
  RetainedSegments& segments_ = retention_.segments;
  Progress queue_;
  const SegmentKey key_{"0123456789abcdef0123456789abcdef", 3};
};

TEST_F(RetainedSegmentsTest, AreRetainedForQueuesThatAreOpenHereOnly) {
  EXPECT_EQ(add(key_, this_process_origin()), Added::queue_is_closed);
  EXPECT_EQ(segments_.size(), 0u);
  retention_.queues.add(kQueue, queue_.hooks());
  EXPECT_EQ(add(key_, this_process_origin()), Added::yes);
  EXPECT_EQ(segments_.size(), 1u);
  EXPECT_EQ(add(key_, this_process_origin(), kQueue + 1), Added::queue_is_closed);
  EXPECT_EQ(segments_.size(), 1u);
}

/// Its claims have ended before it, so no other event asks for a sweep.
TEST_F(RetainedSegmentsTest, OfAnOwnerThatEndsAreLookedAt) {
  std::atomic<int> asked{0};
  EventLoop loop;
  segments_.watch(loop, [&] { ++asked; });
  retention_.queues.add(kQueue, queue_.hooks());
  gone([&](const ProcessOrigin& owner) {
    EXPECT_EQ(add(key_, owner), Added::yes);
    EXPECT_FALSE(segments_.sweep());
    EXPECT_EQ(asked, 0);
  });
  EXPECT_TRUE(testing::eventually([&] { return asked == 1; }));
  segments_.sweep();
  EXPECT_EQ(segments_.size(), 0u);
}

TEST_F(RetainedSegmentsTest, OfDevicesAreKeptUpToANumberOfDescriptorsAndOthersAreNot) {
  retention_.queues.add(kQueue, queue_.hooks());
  const auto add_chunks = [&](std::uint32_t segment, std::size_t chunks) {
    ExportedMemory memory{SegmentKind::cuda_vmm, chunks * 4096, {}, {}};
    for (std::size_t i = 0; i < chunks; ++i) memory.fds.push_back(create_memfd("chunk", 4096));
    return segments_.add({key_.first, segment}, this_process_origin(), create_memfd("table", 4096),
                         std::move(memory), kQueue);
  };
  EXPECT_EQ(add_chunks(1, RetainedSegments::kMaxOfDevices - 1), Added::yes);
  EXPECT_EQ(add_chunks(2, 2), Added::no_room);
  EXPECT_EQ(segments_.size(), 1u);
  EXPECT_EQ(add_chunks(3, 1), Added::yes);
  EXPECT_EQ(segments_.size(), 2u);
  add({key_.first, 4}, this_process_origin());
  add({key_.first, 5}, this_process_origin());
  EXPECT_EQ(segments_.size(), 4u) << "files of the host have no such bound";
}

TEST_F(RetainedSegmentsTest, OpenAsTheSegmentAndItsTableWithOrWithoutTheRightToWrite) {
  retention_.queues.add(kQueue, queue_.hooks());
  add(key_, this_process_origin());
  for (const Access access : {Access::read_write, Access::read_only}) {
    const auto opened = segments_.open(key_, access);
    ASSERT_TRUE(opened);
    EXPECT_TRUE(opened->table);
    EXPECT_FALSE(opened->owner_gone);
    EXPECT_EQ(opened->memory.size, 4096u);
    const Fd& file = opened->memory.fds.at(0);
    EXPECT_EQ(::write(file.get(), "x", 1), access == Access::read_write ? 1 : -1);
  }
  EXPECT_FALSE(segments_.open({key_.first, 4}, Access::read_only));
  EXPECT_FALSE(segments_.open({"another", 3}, Access::read_only));
}

/// The process is in the state after exec.
TEST_F(RetainedSegmentsTest, OfAProcessWhoseProgramHasEndedGoAsADeadOnesUnlessTheyAreOfADevice) {
  retention_.queues.add(kQueue, queue_.hooks());
  const SegmentKey device{key_.first, 9};
  ExportedMemory chunk{SegmentKind::cuda_vmm, 4096, {}, {}};
  chunk.fds.push_back(create_memfd("chunk", 4096));
  ASSERT_EQ(add(key_, this_process_origin()), Added::yes);
  ASSERT_EQ(segments_.add(device, this_process_origin(), table_.duplicate(), std::move(chunk), kQueue),
            Added::yes);
  mark_.reset();
  EXPECT_TRUE(segments_.open(key_, Access::read_write)->owner_gone);
  EXPECT_FALSE(segments_.sweep());
  EXPECT_FALSE(segments_.open(key_, Access::read_write));
  EXPECT_EQ(segments_.size(), 1u);
}

TEST_F(RetainedSegmentsTest, StayWhileTheirOwnerLivesHoweverFarTheQueueIs) {
  retention_.queues.add(kQueue, queue_.hooks());
  add(key_, this_process_origin());
  queue_ = {5, 5, true};
  EXPECT_FALSE(segments_.sweep());
  EXPECT_EQ(segments_.size(), 1u);
}

TEST_F(RetainedSegmentsTest, OfADeadOwnerStayUntilTheLastItemPutBeforeIsTaken) {
  retention_.queues.add(kQueue, queue_.hooks());
  queue_ = {10, 7, true};
  gone([&](const ProcessOrigin& origin) { add(key_, origin); });
  EXPECT_TRUE(segments_.sweep());
  EXPECT_TRUE(segments_.open(key_, Access::read_only)->owner_gone);
  queue_ = {20, 9, true};  // later items are not the dead owner's
  EXPECT_TRUE(segments_.sweep());
  EXPECT_EQ(segments_.size(), 1u);
  queue_ = {20, 10, true};
  EXPECT_FALSE(segments_.sweep());
  EXPECT_EQ(segments_.size(), 0u);
}

TEST_F(RetainedSegmentsTest, OfAnOwnerThatWasGoneWhenTheyCameAreKeptAsWell) {
  retention_.queues.add(kQueue, queue_.hooks());
  queue_ = {1, 0, true};
  add(key_, gone());
  EXPECT_TRUE(segments_.sweep());
  EXPECT_TRUE(segments_.open(key_, Access::read_only)->owner_gone);
}

/// It may put more of the segment at any time, and does not hand it over again.
TEST_F(RetainedSegmentsTest, OfADeadOwnerStayWhileAPutterHasNotReleaseOfThem) {
  retention_.queues.add(kQueue, queue_.hooks());
  const int one = 0, two = 0;
  add(key_, gone(), kQueue, RetainRequest{&one, 5});
  add(key_, this_process_origin(), kQueue, RetainRequest{&two, 1});
  queue_ = {3, 3, true};
  EXPECT_FALSE(segments_.sweep()) << "no item is waited for";
  EXPECT_EQ(segments_.size(), 1u);
  segments_.release(key_, {&one, 4});  // of the deposits before
  segments_.release_all_by(&two);
  EXPECT_FALSE(segments_.sweep());
  EXPECT_EQ(segments_.size(), 1u);
  queue_ = {7, 5, true};
  segments_.release(key_, {&one, 5});
  EXPECT_TRUE(segments_.sweep()) << "what was put before is still in the queue";
  queue_.taken = 7;
  EXPECT_FALSE(segments_.sweep());
  EXPECT_EQ(segments_.size(), 0u);
}

TEST_F(RetainedSegmentsTest, OfADeadOwnerAreNotKeptForAPutterThatHasClosedTheQueue) {
  Progress other;
  retention_.queues.add(kQueue, queue_.hooks());
  retention_.queues.add(kQueue + 1, other.hooks());
  const int putter = 0;
  const ProcessOrigin owner = gone();
  add(key_, owner, kQueue, RetainRequest{&putter, 1});
  add(key_, owner, kQueue + 1, RetainRequest{&putter, 2});
  segments_.release_all_by(&putter, kQueue);
  segments_.sweep();
  EXPECT_EQ(segments_.size(), 1u) << "the other queue needs it";
  segments_.release_all_by(&putter, kQueue + 1);
  segments_.sweep();
  EXPECT_EQ(segments_.size(), 0u);
}

TEST_F(RetainedSegmentsTest, AskedForAgainWhileTheirQueueEmptiesWaitForWhatIsPutSince) {
  retention_.queues.add(kQueue, queue_.hooks());
  queue_ = {2, 1, true};
  const ProcessOrigin owner = gone();
  add(key_, owner);
  EXPECT_TRUE(segments_.sweep());
  const int putter = 0;
  add(key_, owner, kQueue, RetainRequest{&putter, 1});
  queue_ = {3, 2, true};
  segments_.release_all_by(&putter);
  EXPECT_TRUE(segments_.sweep());
  queue_.taken = 3;
  EXPECT_FALSE(segments_.sweep());
}

TEST_F(RetainedSegmentsTest, OfThisProcessAreReleaseWithItsLastBlockOfThatOwner) {
  retention_.queues.add(kQueue, queue_.hooks());
  add(key_, gone(), kQueue, RetainRequest{});
  segments_.sweep();
  EXPECT_EQ(segments_.size(), 1u);
  retention_.release_all_of(key_.first);
  segments_.sweep();
  EXPECT_EQ(segments_.size(), 0u);
}

TEST_F(RetainedSegmentsTest, WaitForEveryQueueTheyWereMadeFor) {
  Progress other;
  retention_.queues.add(kQueue, queue_.hooks());
  retention_.queues.add(kQueue + 1, other.hooks());
  queue_ = {1, 0, true};
  other = {1, 0, true};
  gone([&](const ProcessOrigin& origin) {
    add(key_, origin);
    add(key_, origin, kQueue + 1);
  });
  EXPECT_EQ(segments_.size(), 1u);
  EXPECT_TRUE(segments_.sweep());
  queue_.taken = 1;
  EXPECT_TRUE(segments_.sweep());
  other.open = false;
  EXPECT_FALSE(segments_.sweep());
  EXPECT_EQ(segments_.size(), 0u);
}

TEST_F(RetainedSegmentsTest, GoWithTheirQueue) {
  retention_.queues.add(kQueue, queue_.hooks());
  retention_.queues.add(kQueue + 1, queue_.hooks());
  add(key_, this_process_origin());
  add({key_.first, 4}, this_process_origin());
  add({key_.first, 4}, this_process_origin(), kQueue + 1);
  retention_.remove_queue(kQueue);
  EXPECT_FALSE(segments_.open(key_, Access::read_only));
  EXPECT_TRUE(segments_.open({key_.first, 4}, Access::read_only));
  retention_.remove_queue(kQueue + 1);
  EXPECT_EQ(segments_.size(), 0u);
}

TEST_F(RetainedSegmentsTest, ThatAreRefusedForWantOfDescriptorsCanBeAskedForAgain) {
  if (testing::kSanitized) GTEST_SKIP() << "sanitizers need descriptors of their own";
  retention_.queues.add(kQueue, queue_.hooks());
  Fd table = create_memfd("table", 4096);
  ExportedMemory memory = segment();
  {
    const testing::Limit limit(RLIMIT_NOFILE, testing::descriptors_for(0));
    EXPECT_THROW(segments_.add(key_, this_process_origin(), std::move(table), std::move(memory), kQueue),
                 Error);
  }
  EXPECT_EQ(segments_.size(), 0u);
  EXPECT_FALSE(segments_.open(key_, Access::read_only));
  add(key_, this_process_origin());
  EXPECT_TRUE(segments_.open(key_, Access::read_only)->table);
}

}  // namespace
}  // namespace onecopy
