// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <mutex>
#include <thread>

#include "conformance/scratch_directory.h"
#include "device/cpu/file_pages.h"
#include "device/reserve_listener.h"
#include "memory/pool.h"
#include "onecopy/core/error.h"

namespace onecopy {
namespace {

constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

/// Memory that refuses to be reserved beyond a budget, as a full machine does.
class ScarceBackend final : public Backend {
 public:
  DeviceType type() const noexcept override { return DeviceType::cpu; }
  std::vector<DeviceInfo> devices() const override { return backend(DeviceType::cpu).devices(); }
  std::size_t granularity() const noexcept override { return 4096; }
  std::unique_ptr<DeviceMemory> create(int, std::size_t bytes, SegmentKind, const std::string&,
                                       std::uint32_t) override {
    if (bytes > largest_segment) throw Error(ErrorCode::out_of_mappings, "no address space");
    return std::make_unique<Memory>(*this, bytes);
  }
  std::unique_ptr<DeviceMemory> open(int, ExportedMemory, Access, int) override { return nullptr; }
  BackendTraits traits() const noexcept override { return {}; }
  ExportedMemory duplicate(const ExportedMemory&, Access) const override { return {}; }
  void copy(const Transfer&, Stream) override {}
  void synchronize(int, Stream) override {}
  ForeignMemory find_foreign(const void*, std::size_t) override { return {}; }
  std::unique_ptr<DeviceMemory> adopt(const ForeignMemory&) override { return nullptr; }

  struct Stopped {};  ///< of a listener

  std::atomic<std::uint64_t> budget = 0;
  bool stops_halfway = false;
  std::function<void()> before_decommit = [] {};
  std::uint64_t largest_segment = ~std::uint64_t{0};

 private:
  class Memory final : public DeviceMemory {
   public:
    Memory(ScarceBackend& owner, std::size_t bytes)
        : DeviceMemory(Access::read_write), owner_(owner), bytes_(bytes) {}
    ~Memory() override { owner_.budget += committed_; }
    std::byte* data() const noexcept override { return nullptr; }
    std::size_t size() const noexcept override { return bytes_; }
    SegmentKind kind() const noexcept override { return SegmentKind::memfd; }
    std::size_t present() const noexcept override { return committed_; }
    void decommit(std::size_t offset, std::size_t bytes) noexcept override {
      owner_.before_decommit();
      const std::lock_guard lock(mutex_);
      if (const auto missing = missing_.extract(offset)) bytes -= missing.mapped();
      const std::uint64_t there = std::min<std::uint64_t>(bytes, committed_);
      owner_.budget += there;
      committed_ -= there;
    }

   private:
    void do_commit(std::size_t, std::size_t bytes) override {
      if (bytes > owner_.budget) throw Error(ErrorCode::out_of_memory, "the budget is used up");
      if (owner_.stops_halfway) bytes /= 2;
      owner_.budget -= bytes;
      committed_ += bytes;
      if (owner_.stops_halfway) throw Stopped{};
    }
    /// Reserved pages stay reserved, until they are given back.
    void do_populate(std::size_t offset, std::size_t bytes) override {
      if (bytes <= owner_.budget) return do_commit(offset, bytes);
      const std::uint64_t there = owner_.budget.exchange(0);
      const std::lock_guard lock(mutex_);
      missing_[offset] = bytes - there;
      committed_ += there;
      throw Error(ErrorCode::out_of_memory, "the budget is used up");
    }
    ExportedMemory do_export(Access) const override { return {}; }

    std::mutex mutex_;
    /// Ranges that could not be reserved whole, by offset.
    std::map<std::size_t, std::uint64_t> missing_;
    ScarceBackend& owner_;
    std::size_t bytes_;
    std::uint64_t committed_ = 0;
  };
};

struct PoolShortage : ::testing::Test {
  ScarceBackend scarce;
  SegmentTable segments;
  Pool pool{scarce, 0, SegmentKind::memfd, "00", segments};
};

TEST_F(PoolShortage, IsAnErrorAndThenItWorksAgainWhenThereIsRoom) {
  scarce.budget = 40 * kMiB;
  const Extent first = pool.allocate(20 * kMiB);
  const PoolStats before = pool.stats();
  for (const std::uint64_t bytes : {30 * kMiB, 64 * kMiB}) {
    try {
      pool.allocate(bytes);
      FAIL() << bytes;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::out_of_memory);
      EXPECT_NE(std::string(error.what()).find(std::to_string(bytes)), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find(std::to_string(20 * kMiB)), std::string::npos)
          << error.what();
    }
  }
  EXPECT_EQ(pool.stats().committed_bytes, before.committed_bytes);
  EXPECT_EQ(pool.stats().live_bytes, before.live_bytes);
  EXPECT_EQ(scarce.budget.load(), 20 * kMiB);
  pool.free(first);
  EXPECT_EQ(pool.allocate(30 * kMiB).size, 30 * kMiB);
}

TEST_F(PoolShortage, WarmMemoryIsGivenBackBeforeARefusal) {
  scarce.budget = 40 * kMiB;
  pool.free(pool.allocate(36 * kMiB));
  EXPECT_EQ(pool.allocate(20 * kMiB).size, 20 * kMiB);
  EXPECT_EQ(pool.allocate(19 * kMiB).size, 19 * kMiB);
}

/// Ctrl-C of Python's: it came back after 0.3 to 0.7 s of 2 GiB, as its thread gave all back first.
TEST_F(PoolShortage, WhatAListenerEndedIsGivenBackByTrimmingAndNotByItsCaller) {
  scarce.budget = 100 * kMiB;
  scarce.stops_halfway = true;
  bool is_told = false;
  pool.on_idle = [&] { is_told = true; };
  EXPECT_THROW(pool.allocate(64 * kMiB), ScarceBackend::Stopped);
  EXPECT_TRUE(is_told) << "somebody has to trim";
  EXPECT_EQ(scarce.budget.load(), 68 * kMiB);
  EXPECT_EQ(pool.stats().live_blocks, 0u);
  int times = 0;
  while (pool.trim(std::chrono::steady_clock::now(), 8 * kMiB).waiting) ++times;
  EXPECT_GE(times, 3);
  EXPECT_EQ(scarce.budget.load(), 100 * kMiB);
  EXPECT_TRUE(segments.list().empty());
  scarce.stops_halfway = false;
  EXPECT_EQ(pool.allocate(90 * kMiB).size, 90 * kMiB);
}

/// The whole segment counted as shared until its last part had been given back.
TEST_F(PoolShortage, CountsOfAnInterruptedReservationThePagesThatAreThere) {
  scarce.budget = 100 * kMiB;
  scarce.stops_halfway = true;
  EXPECT_THROW(pool.allocate(64 * kMiB), ScarceBackend::Stopped);
  ASSERT_EQ(segments.list().size(), 1u);
  EXPECT_EQ(segments.list()[0].committed, 32 * kMiB);
  pool.trim(std::chrono::steady_clock::now(), 8 * kMiB);
  EXPECT_EQ(segments.list()[0].committed, 24 * kMiB);
}

TEST(PoolOfFiles, CountsOfAnInterruptedReservationThePagesThatAreThere) {
  struct Stopped {};
  SegmentTable segments;
  Pool pool(backend(DeviceType::cpu), 0, SegmentKind::memfd, "00", segments);
  std::size_t told = 0;
  const ReserveListener listener([&](std::size_t done, std::size_t) {
    told = done;
    throw Stopped{};
  });
  EXPECT_THROW(pool.allocate(128 * kMiB), Stopped);
  EXPECT_GT(told, 0u);
  ASSERT_EQ(segments.list().size(), 1u);
  const std::size_t committed = segments.list()[0].committed;
  EXPECT_GE(committed, told) << "other threads end their pieces";
  EXPECT_LT(committed, 128 * kMiB);
  const auto memory = segments.export_memory(segments.list()[0].number, Access::read_only);
  EXPECT_EQ(committed, present_pages(memory.fds.front(), memory.size));
  pool.trim_all();
  EXPECT_TRUE(segments.list().empty());
}

TEST_F(PoolShortage, WhatAListenerEndedIsGivenBackBeforeARefusal) {
  scarce.budget = 100 * kMiB;
  scarce.stops_halfway = true;
  EXPECT_THROW(pool.allocate(64 * kMiB), ScarceBackend::Stopped);
  scarce.stops_halfway = false;
  EXPECT_EQ(pool.allocate(90 * kMiB).size, 90 * kMiB);
}

/// The watch thread works on a part of the memory, which is in no list during this time.
TEST_F(PoolShortage, MemoryThatIsOnItsWayBackIsWaitedForBeforeARefusal) {
  scarce.budget = 40 * kMiB;
  pool.free(pool.allocate(36 * kMiB));
  std::atomic<bool> on_its_way = false, may_arrive = false;
  scarce.before_decommit = [&] {
    on_its_way = true;
    while (!may_arrive) std::this_thread::yield();
  };
  std::thread giver([&] { pool.trim(std::chrono::steady_clock::now() + std::chrono::hours(1), 8 * kMiB); });
  while (!on_its_way) std::this_thread::yield();
  std::thread taker([&] { EXPECT_NO_THROW(EXPECT_EQ(pool.allocate(20 * kMiB).size, 20 * kMiB)); });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // for it to be refused, or to wait
  may_arrive = true;
  giver.join();
  taker.join();
}

TEST_F(PoolShortage, ReservingAheadNeverMakesASmallRequestFail) {
  scarce.budget = 70 * kMiB + 64 * 1024;
  const Extent most = pool.allocate(70 * kMiB);
  EXPECT_EQ(pool.allocate(64).size, 64u);
  pool.free(most);
}

TEST_F(PoolShortage, ScarceAddressSpaceMeansSmallerSegments) {
  scarce.budget = 100 * kMiB;
  scarce.largest_segment = 8 * kMiB;
  EXPECT_EQ(pool.allocate(6 * kMiB).size, 6 * kMiB);
  EXPECT_EQ(pool.allocate(6 * kMiB).size, 6 * kMiB);
  EXPECT_EQ(segments.list().size(), 2u);
  EXPECT_THROW(pool.allocate(20 * kMiB), Error);
}

/// Runs `body` in a child whose limit is lowered; its exit status.
int status_with_limit(int resource, rlim_t limit, const std::function<int()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    const rlimit both{limit, limit};
    ::setrlimit(static_cast<__rlimit_resource_t>(resource), &both);
    try {
      ::_exit(body());
    } catch (const std::exception&) {
      ::_exit(100);
    }
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + status;
}

/// Allocates until it is refused with `expected`; then frees one and must get it again.
int exhaust(std::uint64_t bytes, ErrorCode expected) {
  SegmentTable segments;
  Pool pool(backend(DeviceType::cpu), 0, SegmentKind::memfd, "00", segments);
  std::vector<Extent> extents;
  extents.reserve(10'000);
  for (;;) try {
      extents.push_back(pool.allocate(bytes));
      if (extents.size() == extents.capacity()) return 1;
    } catch (const Error& error) {
      if (error.code() != expected) return 10 + static_cast<int>(error.code());
      break;
    }
  if (extents.empty()) return 2;
  const std::uint64_t live = pool.stats().live_bytes;
  pool.free(extents.back());
  extents.back() = pool.allocate(bytes);
  return pool.stats().live_bytes == live ? 0 : 3;
}

TEST(PoolLimits, AnExhaustedAddressSpaceIsOutOfMappings) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer needs terabytes of address space";
  EXPECT_EQ(status_with_limit(RLIMIT_AS, 512 * kMiB,
                              [] { return exhaust(40 * kMiB, ErrorCode::out_of_mappings); }),
            0);
  EXPECT_EQ(status_with_limit(RLIMIT_AS, 512 * kMiB,
                              [] { return exhaust(5 * kMiB, ErrorCode::out_of_mappings); }),
            0);
}

TEST(PoolLimits, ExhaustedDescriptorsAreOutOfDescriptors) {
  EXPECT_EQ(status_with_limit(RLIMIT_NOFILE, 12,
                              [] { return exhaust(32 * kMiB, ErrorCode::out_of_descriptors); }),
            0);
}

}  // namespace
}  // namespace onecopy
