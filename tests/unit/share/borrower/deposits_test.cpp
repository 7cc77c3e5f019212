// SPDX-License-Identifier: Apache-2.0
#include "share/borrower/deposits.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <string>

#include "onecopy/core/error.h"
#include "os/mapping.h"
#include "os/memfd.h"
#include "os/process.h"
#include "support/child.h"
#include "support/eventually.h"
#include "support/limits.h"

namespace onecopy {
namespace {

using testing::Child;

constexpr std::uint64_t kQueue = 77;

/// A queue with so many items put and taken; closed when `open` is false.
struct Progress {
  std::uint64_t put = 0;
  std::uint64_t taken = 0;
  bool open = true;

  ChannelHooks hooks() {
    return {[this] { return open ? std::optional(std::pair(put, taken)) : std::nullopt; }, nullptr};
  }
};

class DepositsTest : public ::testing::Test {
 protected:
  ExportedMemory segment() {
    ExportedMemory memory{SegmentKind::memfd, 4096, {}, {}};
    memory.fds.push_back(create_memfd("segment", 4096));
    return memory;
  }
  bool add(const DepositKey& key, const ProcessOrigin& origin, std::uint64_t queue = kQueue,
           std::optional<DepositClaim> claim = {}) {
    return deposits_.add(key, origin, table_.duplicate(), segment(), queue, claim);
  }
  DepositsTest() {
    deposits_.on_news = [this] { ++news_; };
  }
  /// Whether keepers elsewhere have to hear of it.
  bool retire(const DepositKey& key) {
    const int before = news_;
    deposits_.retire(key);
    return news_ != before;
  }
  bool let_go_of(const std::string& owner) {
    const int before = news_;
    deposits_.let_go_of(owner);
    return news_ != before;
  }
  /// A process that has ended, and lived when `during` was called.
  ProcessOrigin gone(const std::function<void(const ProcessOrigin&)>& during = {}) {
    Child child([] { ::pause(); });
    const ProcessOrigin origin{child.pid(), process_start_time(child.pid())};
    if (during) during(origin);
    child.kill();
    return origin;
  }

  /// Mapped here, as the table of an owner is, and in children.
  const Fd table_ = create_memfd("onecopy-blocks", 4096);
  Mapping mapped_ = Mapping::of(table_, 4096, Access::read_write);
  int news_ = 0;
  Deposits deposits_;
  Progress queue_;
  const DepositKey key_{"0123456789abcdef0123456789abcdef", 3};
};

TEST_F(DepositsTest, AreKeptForQueuesThatAreOpenHereOnly) {
  EXPECT_FALSE(add(key_, this_process_origin()));
  EXPECT_EQ(deposits_.size(), 0u);
  deposits_.add_channel(kQueue, queue_.hooks());
  EXPECT_TRUE(add(key_, this_process_origin()));
  EXPECT_EQ(deposits_.size(), 1u);
  EXPECT_FALSE(add(key_, this_process_origin(), kQueue + 1));
  EXPECT_EQ(deposits_.size(), 1u);
}

/// Its claims have ended before it, so no other event asks for a sweep.
TEST_F(DepositsTest, OfAnOwnerThatEndsAreLookedAt) {
  std::atomic<int> asked{0};
  EventLoop loop;
  deposits_.watch(loop);
  deposits_.on_due = [&] { ++asked; };
  deposits_.add_channel(kQueue, queue_.hooks());
  gone([&](const ProcessOrigin& owner) {
    EXPECT_TRUE(add(key_, owner));
    EXPECT_FALSE(deposits_.sweep());
    EXPECT_EQ(asked, 0);
  });
  EXPECT_TRUE(testing::eventually([&] { return asked == 1; }));
  deposits_.sweep();
  EXPECT_EQ(deposits_.size(), 0u);
}

TEST_F(DepositsTest, ElsewhereOfASegmentThatEndsAllHearOfIt) {
  const ProcessId one{1}, two{2};
  deposits_.add_elsewhere(key_, one);
  EXPECT_TRUE(retire(key_));
  deposits_.add_elsewhere(key_, two);  // before a keeper could be told
  EXPECT_TRUE(retire(key_));
  EXPECT_FALSE(retire(key_));
  EXPECT_EQ(deposits_.take_retired(), (std::map<DepositKey, std::set<ProcessId>>{{key_, {one, two}}}));
}

/// Nothing is retired any more, and notes about it would stay for ever.
TEST_F(DepositsTest, ElsewhereOfAnOwnerOfWhichNothingIsHeldAreToBeLetGo) {
  const DepositKey other{"fedcba9876543210fedcba9876543210", 3};
  for (const DepositKey& key : {key_, {key_.first, 9}, other}) deposits_.add_elsewhere(key, ProcessId{1});
  EXPECT_TRUE(let_go_of(key_.first));
  EXPECT_FALSE(retire(key_));
  EXPECT_FALSE(retire({key_.first, 9}));
  EXPECT_TRUE(retire(other));
  std::vector<LetGo> told = deposits_.take_let_go();
  ASSERT_EQ(told.size(), 2u);
  EXPECT_EQ(told[0].key, key_);
  EXPECT_EQ(told[0].keeper, ProcessId{1});
  EXPECT_LT(told[0].number, told[1].number);
  EXPECT_TRUE(deposits_.take_let_go().empty());
  deposits_.let_go_later(std::move(told[0]));
  EXPECT_EQ(deposits_.take_let_go().size(), 1u);
  EXPECT_FALSE(let_go_of(key_.first));
}

TEST_F(DepositsTest, OfDevicesAreKeptUpToANumberOfDescriptorsAndOthersAreNot) {
  deposits_.add_channel(kQueue, queue_.hooks());
  const auto add_chunks = [&](std::uint32_t segment, std::size_t chunks) {
    ExportedMemory memory{SegmentKind::cuda_vmm, chunks * 4096, {}, {}};
    for (std::size_t i = 0; i < chunks; ++i) memory.fds.push_back(create_memfd("chunk", 4096));
    deposits_.add({key_.first, segment}, this_process_origin(), create_memfd("table", 4096),
                  std::move(memory), kQueue);
  };
  add_chunks(1, Deposits::kMostOfDevices - 1);
  add_chunks(2, 2);
  EXPECT_EQ(deposits_.size(), 1u) << "two more are too many";
  add_chunks(3, 1);
  EXPECT_EQ(deposits_.size(), 2u);
  add({key_.first, 4}, this_process_origin());
  add({key_.first, 5}, this_process_origin());
  EXPECT_EQ(deposits_.size(), 4u) << "files of the host have no such bound";
}

TEST_F(DepositsTest, OpenAsTheSegmentAndItsTableWithOrWithoutTheRightToWrite) {
  deposits_.add_channel(kQueue, queue_.hooks());
  add(key_, this_process_origin());
  for (const Access access : {Access::read_write, Access::read_only}) {
    const auto opened = deposits_.open(key_, access);
    ASSERT_TRUE(opened);
    EXPECT_TRUE(opened->table);
    EXPECT_FALSE(opened->owner_gone);
    EXPECT_EQ(opened->memory.size, 4096u);
    const Fd& file = opened->memory.fds.at(0);
    EXPECT_EQ(::write(file.get(), "x", 1), access == Access::read_write ? 1 : -1);
  }
  EXPECT_FALSE(deposits_.open({key_.first, 4}, Access::read_only));
  EXPECT_FALSE(deposits_.open({"another", 3}, Access::read_only));
}

/// As after exec, when the new program has borrowed what the old one lent.
TEST_F(DepositsTest, OfAnOwnerThatLivesAndCannotWriteItsTableGoAsADeadOnesUnlessTheyAreOfADevice) {
  deposits_.add_channel(kQueue, queue_.hooks());
  const DepositKey device{key_.first, 9};
  ExportedMemory chunk{SegmentKind::cuda_vmm, 4096, {}, {}};
  chunk.fds.push_back(create_memfd("chunk", 4096));
  ASSERT_TRUE(add(key_, this_process_origin()));
  ASSERT_TRUE(deposits_.add(device, this_process_origin(), table_.duplicate(), std::move(chunk), kQueue));
  mapped_ = Mapping::of(table_, 4096, Access::read_only);
  EXPECT_TRUE(deposits_.open(key_, Access::read_write)->owner_gone);
  EXPECT_FALSE(deposits_.sweep());
  EXPECT_FALSE(deposits_.open(key_, Access::read_write));
  EXPECT_EQ(deposits_.size(), 1u);
}

TEST_F(DepositsTest, StayWhileTheirOwnerLivesHoweverFarTheQueueIs) {
  deposits_.add_channel(kQueue, queue_.hooks());
  add(key_, this_process_origin());
  queue_ = {5, 5, true};
  EXPECT_FALSE(deposits_.sweep());
  EXPECT_EQ(deposits_.size(), 1u);
}

TEST_F(DepositsTest, OfADeadOwnerStayUntilTheLastItemPutBeforeIsTaken) {
  deposits_.add_channel(kQueue, queue_.hooks());
  queue_ = {10, 7, true};
  gone([&](const ProcessOrigin& origin) { add(key_, origin); });
  EXPECT_TRUE(deposits_.sweep());
  EXPECT_TRUE(deposits_.open(key_, Access::read_only)->owner_gone);
  queue_ = {20, 9, true};  // later items are not the dead owner's
  EXPECT_TRUE(deposits_.sweep());
  EXPECT_EQ(deposits_.size(), 1u);
  queue_ = {20, 10, true};
  EXPECT_FALSE(deposits_.sweep());
  EXPECT_EQ(deposits_.size(), 0u);
}

TEST_F(DepositsTest, OfAnOwnerThatWasGoneWhenTheyCameAreKeptAsWell) {
  deposits_.add_channel(kQueue, queue_.hooks());
  queue_ = {1, 0, true};
  add(key_, gone());
  EXPECT_TRUE(deposits_.sweep());
  EXPECT_TRUE(deposits_.open(key_, Access::read_only)->owner_gone);
}

/// It may put more of the segment at any time, and does not hand it over again.
TEST_F(DepositsTest, OfADeadOwnerStayWhileADepositorHasNotLetGoOfThem) {
  deposits_.add_channel(kQueue, queue_.hooks());
  const int one = 0, two = 0;
  add(key_, gone(), kQueue, DepositClaim{&one, 5});
  add(key_, this_process_origin(), kQueue, DepositClaim{&two, 1});
  queue_ = {3, 3, true};
  EXPECT_FALSE(deposits_.sweep()) << "no item is waited for";
  EXPECT_EQ(deposits_.size(), 1u);
  deposits_.let_go(key_, {&one, 4});  // of the deposits before
  deposits_.leave(&two);
  EXPECT_FALSE(deposits_.sweep());
  EXPECT_EQ(deposits_.size(), 1u);
  queue_ = {7, 5, true};
  deposits_.let_go(key_, {&one, 5});
  EXPECT_TRUE(deposits_.sweep()) << "what was put before is still in the queue";
  queue_.taken = 7;
  EXPECT_FALSE(deposits_.sweep());
  EXPECT_EQ(deposits_.size(), 0u);
}

TEST_F(DepositsTest, OfADeadOwnerAreNotKeptForADepositorThatHasClosedTheQueue) {
  Progress other;
  deposits_.add_channel(kQueue, queue_.hooks());
  deposits_.add_channel(kQueue + 1, other.hooks());
  const int depositor = 0;
  const ProcessOrigin owner = gone();
  add(key_, owner, kQueue, DepositClaim{&depositor, 1});
  add(key_, owner, kQueue + 1, DepositClaim{&depositor, 2});
  deposits_.leave(&depositor, kQueue);
  deposits_.sweep();
  EXPECT_EQ(deposits_.size(), 1u) << "the other queue needs it";
  deposits_.leave(&depositor, kQueue + 1);
  deposits_.sweep();
  EXPECT_EQ(deposits_.size(), 0u);
}

TEST_F(DepositsTest, MadeAgainWhileTheirQueueEmptiesWaitForWhatIsPutSince) {
  deposits_.add_channel(kQueue, queue_.hooks());
  queue_ = {2, 1, true};
  const ProcessOrigin owner = gone();
  add(key_, owner);
  EXPECT_TRUE(deposits_.sweep());
  const int depositor = 0;
  add(key_, owner, kQueue, DepositClaim{&depositor, 1});
  queue_ = {3, 2, true};
  deposits_.leave(&depositor);
  EXPECT_TRUE(deposits_.sweep());
  queue_.taken = 3;
  EXPECT_FALSE(deposits_.sweep());
}

TEST_F(DepositsTest, OfThisProcessAreLetGoWithItsLastBlockOfThatOwner) {
  deposits_.add_channel(kQueue, queue_.hooks());
  add(key_, gone(), kQueue, DepositClaim{});
  deposits_.sweep();
  EXPECT_EQ(deposits_.size(), 1u);
  EXPECT_FALSE(let_go_of(key_.first)) << "nobody else keeps it for us";
  deposits_.sweep();
  EXPECT_EQ(deposits_.size(), 0u);
}

TEST_F(DepositsTest, WaitForEveryQueueTheyWereMadeFor) {
  Progress other;
  deposits_.add_channel(kQueue, queue_.hooks());
  deposits_.add_channel(kQueue + 1, other.hooks());
  queue_ = {1, 0, true};
  other = {1, 0, true};
  gone([&](const ProcessOrigin& origin) {
    add(key_, origin);
    add(key_, origin, kQueue + 1);
  });
  EXPECT_EQ(deposits_.size(), 1u);
  EXPECT_TRUE(deposits_.sweep());
  queue_.taken = 1;
  EXPECT_TRUE(deposits_.sweep());
  other.open = false;
  EXPECT_FALSE(deposits_.sweep());
  EXPECT_EQ(deposits_.size(), 0u);
}

TEST_F(DepositsTest, GoWithTheirQueue) {
  deposits_.add_channel(kQueue, queue_.hooks());
  deposits_.add_channel(kQueue + 1, queue_.hooks());
  add(key_, this_process_origin());
  add({key_.first, 4}, this_process_origin());
  add({key_.first, 4}, this_process_origin(), kQueue + 1);
  deposits_.remove_channel(kQueue);
  EXPECT_FALSE(deposits_.open(key_, Access::read_only));
  EXPECT_TRUE(deposits_.open({key_.first, 4}, Access::read_only));
  deposits_.remove_channel(kQueue + 1);
  EXPECT_EQ(deposits_.size(), 0u);
}

TEST_F(DepositsTest, ThatCannotBeKeptForWantOfDescriptorsCanBeMadeAgain) {
  if (testing::kSanitized) GTEST_SKIP() << "sanitizers need descriptors of their own";
  deposits_.add_channel(kQueue, queue_.hooks());
  Fd table = create_memfd("table", 4096);
  ExportedMemory memory = segment();
  {
    const testing::Limit limit(RLIMIT_NOFILE, testing::descriptors_for(0));
    EXPECT_THROW(deposits_.add(key_, this_process_origin(), std::move(table), std::move(memory), kQueue),
                 Error);
  }
  EXPECT_EQ(deposits_.size(), 0u);
  EXPECT_FALSE(deposits_.open(key_, Access::read_only));
  add(key_, this_process_origin());
  EXPECT_TRUE(deposits_.open(key_, Access::read_only)->table);
}

TEST_F(DepositsTest, TellTheQueueHowManyUseIt) {
  std::vector<std::pair<int, std::size_t>> told;
  ChannelHooks hooks = queue_.hooks();
  hooks.users = [&](std::uint8_t role, std::size_t users) { told.emplace_back(role, users); };
  deposits_.add_channel(kQueue, hooks);
  deposits_.report_users(kQueue, 1, 3);
  deposits_.report_users(kQueue + 1, 1, 9);
  EXPECT_EQ(told, (std::vector<std::pair<int, std::size_t>>{{1, 3}}));
}

}  // namespace
}  // namespace onecopy
