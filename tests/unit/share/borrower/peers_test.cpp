// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <atomic>
#include <string_view>
#include <thread>

#include "core/point.h"
#include "os/memfd.h"
#include "share/borrower/peer.h"
#include "support/eventually.h"
#include "support/limits.h"
#include "unit/os/failing_allocations.h"

namespace onecopy {
namespace {

using testing::eventually;

constexpr std::uint32_t kBlock = 5;
constexpr std::uint32_t kSegment = 1;
constexpr std::uint64_t kGeneration = 7;
constexpr std::uint64_t kSize = 4096;

/// A thread that has found a peer and not claimed its block yet, until it may go on.
std::atomic<bool> has_found{false}, may_claim{false};

void wait_at_found_peer(const char* point) noexcept {
  if (std::string_view(point) != "open.found") return;
  has_found = true;
  has_found.notify_all();
  may_claim.wait(false);
}

/// The peers of a process that has ended, one after another, each with a block that a holder has kept.
class PeersTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (HazardGuard::readers_of(this) == HazardGuard::Readers::unknown)
      GTEST_SKIP() << "wants a kernel with membarrier(2), private expedited";
    has_found = may_claim = false;
    for (std::uint32_t block = 0; block < kBlock; ++block)  // an owner uses its records in order
      table_.as<Record>()[block].word = make_word(1, BlockState::free);
    Record& record = table_.as<Record>()[kBlock];
    record.segment = kSegment;
    record.size = kSize;
    record.word = make_word(kGeneration, BlockState::exported);
    handle_.owner = ProcessId{1, 2, 3};
    handle_.block = kBlock;
    handle_.generation = kGeneration;
    memory_.as<std::uint64_t>()[0] = kGeneration;
  }
  void TearDown() override { loop_.stop(); }

  void freeze() {
    ExportedMemory memory{SegmentKind::memfd, kSize, {}, {}};
    memory.fds.push_back(file_.duplicate());
    peers_.freeze(handle_.owner, {table_file_.duplicate(), std::move(memory), true},
                  {kSegment, Access::read_write});
  }
  bool try_claim() {
    const auto [blocks, claimed] = peers_.try_claim(handle_);
    if (!claimed) return false;
    const std::span<std::byte> bytes = blocks->bytes_of(kBlock, Access::read_write);
    EXPECT_EQ(*reinterpret_cast<const std::uint64_t*>(bytes.data()), kGeneration);
    return true;
  }
  /// Drops ended peers on the thread that may destroy them.
  void sweep() {
    const int before = sweeps_;
    sweeping_.request();
    ASSERT_TRUE(eventually([&] { return sweeps_ != before; }));
  }
  bool is_closed() const { return !peers_.find_open(handle_.owner); }

  HandleFields handle_;
  EventLoop loop_;
  SegmentRetention retention_;
  Peers peers_{loop_, retention_, [] {}};

 private:
  const Fd table_file_ = create_memfd("table", kTableBytes);
  const Mapping table_ = Mapping::of(table_file_, kTableBytes, Access::read_write);
  const Fd file_ = create_memfd("segment", kSize);
  const Mapping memory_ = Mapping::of(file_, kSize, Access::read_write);
  std::atomic<int> sweeps_{0};
  Timer sweeping_{loop_, [this] {
                    peers_.sweep();
                    ++sweeps_;
                    return Timer::Pause();
                  }};
};

TEST_F(PeersTest, ThatEndUnderAClaimerStayUntilItHasLeft) {
  freeze();
  point_hook = &wait_at_found_peer;
  std::thread claimer([&] { EXPECT_FALSE(try_claim()) << "the peer has been closed"; });
  has_found.wait(false);
  sweep();
  EXPECT_TRUE(is_closed());
  EXPECT_EQ(peers_.size(), 1u) << "a thread is about to read it";
  may_claim = true;
  may_claim.notify_all();
  claimer.join();
  point_hook = nullptr;
  sweep();
  EXPECT_EQ(peers_.size(), 0u);
}

/// A sweep that finds no memory for the notices leaves them to the next sweep, and ends no process.
TEST_F(PeersTest, ThatEndWhileMemoryIsShortAreReportedToTheirKeepersLater) {
  if (testing::kSanitized) GTEST_SKIP() << "sanitizers have an operator new of their own";
  { const HazardGuard first(this); }  // allocates for this thread
  int shortages = 0;
  for (bool was_short = true; was_short; shortages += was_short ? 1 : 0) {
    freeze();
    retention_.elsewhere.add({public_name(handle_.owner), kSegment}, ProcessId{4, 5, 6});
    testing::allocations_left = shortages;
    was_short = peers_.sweep();
    testing::allocations_left = -1;
    EXPECT_FALSE(peers_.sweep());
    EXPECT_EQ(retention_.elsewhere.take_releases().size(), 1u);
    EXPECT_TRUE(is_closed());
  }
  EXPECT_GT(shortages, 0);
}

/// Every claim is of a block that can be read, or fails. A claimer that touches a destroyed peer would be a crash.
TEST_F(PeersTest, ThatEndAreClaimedWholeOrNotAtAll) {
  std::atomic<bool> over{false};
  std::atomic<int> claims{0};
  const auto claim = [&] {
    for (int n = 1; !over; ++n) {
      claims += try_claim();
      if (n % 64 == 0) std::this_thread::yield();  // or it would take long until nothing is held
    }
  };
  std::thread one(claim), two(claim);
  for (int round = 0; round < 20; ++round) {
    const int before = claims;
    freeze();
    EXPECT_TRUE(eventually([&] { return claims != before || is_closed(); }));
    EXPECT_TRUE(eventually([&] { return is_closed(); }));
  }
  over = true;
  one.join();
  two.join();
  EXPECT_GT(claims, 0);
  sweep();
  EXPECT_EQ(peers_.size(), 0u);
}

}  // namespace
}  // namespace onecopy
