// SPDX-License-Identifier: Apache-2.0
// Where malloc fails: dropped memory goes nevertheless, and nothing ends the process.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <new>
#include <string_view>
#include <vector>

#include "core/point.h"
#include "device/pinned_ranges.h"
#include "onecopy/core/error.h"
#include "onecopy/share/pin.h"
#include "onecopy/share/share.h"
#include "onecopy/share/stats.h"
#include "share/runtime/runtime.h"
#include "support/child.h"
#include "support/eventually.h"
#include "support/limits.h"
#include "support/note.h"
#include "support/simulated_devices.h"
#include "unit/os/failing_allocations.h"

namespace onecopy {
namespace {

using testing::allocations_left;
using testing::Child;
using testing::eventually;
using testing::JoinedChild;
using testing::Note;
using testing::Shared;

constexpr std::int64_t kOwnSegment = std::int64_t{40} << 20;

Tensor bytes(std::int64_t count) { return empty(Layout(DType::u8, {count})); }

/// `f`  with this many allocations.
template <class F>
void with_allocations(int count, F&& f) {
  allocations_left = count;
  f();
  allocations_left = -1;
}

TEST(MemoryShortage, TensorsAreLetGoOf) {
  if (testing::kSanitized) GTEST_SKIP() << "sanitizers have an operator new of their own";
  JoinedChild child([] {
    const std::size_t before = Runtime::current().ledger().live();
    for (const std::int64_t size : {std::int64_t{100}, std::int64_t{1} << 20, kOwnSegment}) {
      std::vector<Tensor> one_by_one, shared;
      for (int i = 0; i < 10; ++i) one_by_one.push_back(bytes(size));
      for (int i = 0; i < 10; ++i) share(shared.emplace_back(bytes(size)));
      with_allocations(0, [&] {
        for (Tensor& tensor : one_by_one) tensor.release();
        for (Tensor& tensor : shared) tensor.release();
      });
    }
    EXPECT_EQ(Runtime::current().ledger().live(), before);
  });
}

TEST(MemoryShortage, TensorsInTheOrderOfAStreamAreLetGoOf) {
  if (testing::kSanitized) GTEST_SKIP() << "sanitizers have an operator new of their own";
  JoinedChild child([] {
    testing::use_simulated_devices();
    const Device card{DeviceType::cuda, 0};
    const Tensor kept = empty(Layout(DType::u8, {100}), card);
    share(kept, {.stream = Stream{}});
    for (int allocations = 0; allocations < 20; ++allocations) {
      std::vector<Tensor> dropped;
      for (int i = 0; i < 70; ++i)  // more than share a mark
        dropped.push_back(record_stream(empty(Layout(DType::u8, {100}), card), Stream{}));
      with_allocations(allocations, [&] {
        for (Tensor& tensor : dropped) tensor.release();
      });
    }
    EXPECT_TRUE(eventually([] { return stats().live_blocks == 1; }));
  });
}

/// A piece that cannot be unpinned yet, since another block lies in it, is put back.
TEST(MemoryShortage, PinnedMemoryStaysKnown) {
  if (testing::kSanitized) GTEST_SKIP() << "sanitizers have an operator new of their own";
  JoinedChild child([] {
    testing::use_simulated_devices();
    const Tensor first = bytes(1 << 20), beside = bytes(1 << 20);
    for (int allocations = 0; allocations < 40; ++allocations) {
      pin(first);
      ASSERT_TRUE(is_pinned(beside)) << "in the same piece";
      with_allocations(allocations, [&] {
        try {
          unpin(first);
        } catch (const std::bad_alloc&) {  // nothing was changed then
        }
      });
      EXPECT_TRUE(is_pinned(first)) << "with " << allocations << " allocations";
    }
    EXPECT_EQ(stats().pinned_bytes, kPinUnit);
  });
}

TEST(MemoryShortage, BorrowersHearOfSegmentsThatWereGivenBackMeanwhile) {
  if (testing::kSanitized) GTEST_SKIP() << "sanitizers have an operator new of their own";
  constexpr int kRounds = 40;
  Shared<Note> note;  // steps: 2 n + 1 the owner has shared a segment, 2 n + 2 the borrower has opened it
  Child borrower([&] {
    for (int round = 0; round < kRounds; ++round) {
      Tensor tensor = open(Handle::from_text(note->read(2 * round + 1)));
      EXPECT_EQ(stats().foreign_segments, 1u);
      tensor.release();
      note->step = 2 * round + 2;
      EXPECT_TRUE(eventually([] { return stats().foreign_segments == 0; })) << "round " << round;
    }
  });
  JoinedChild owner([&] {
    for (int round = 0; round < kRounds; ++round) {
      Tensor tensor = bytes(kOwnSegment);
      note->write(share(tensor).to_text(), 2 * round + 1);
      note->reach(2 * round + 2);
      tensor.release();
      EXPECT_TRUE(eventually([] { return stats().limbo == 0; }));
      with_allocations(round, [] {
        try {
          trim();
        } catch (const std::bad_alloc&) {  // the rest is for the next
        }
      });
      trim();
    }
    note->serve_until(kRounds * 2 + 1);
  });
  EXPECT_EQ(borrower.join(), 0);
  note->step = kRounds * 2 + 1;
}

std::atomic<int> burials{0}, put_off{0};

/// Leaves the first burial without memory, as long as it lasts.
void bury_without_memory_first(const char* point) noexcept {
  if (std::string_view(point) == "broker.burial" && burials++ == 0) allocations_left = 0;
  if (std::string_view(point) != "broker.burial.put_off") return;
  allocations_left = -1;
  ++put_off;
}

TEST(MemoryShortage, AnItemOfADeadBorrowerStaysForItsReceiver) {
  if (testing::kSanitized) GTEST_SKIP() << "sanitizers have an operator new of their own";
  Shared<Note> note;  // step 1: the owner has shared a tensor, 2: the borrower has put it into a queue
  Child borrower([&] {
    const Tensor tensor = open(Handle::from_text(note->read(1)));
    as_shared(*tensor.block().group()).begin_transit(tensor.block().number(), 77);
    note->step = 2;
    note->serve_until(3);
  });
  JoinedChild owner([&] {
    Tensor tensor = bytes(kOwnSegment);
    note->write(share(tensor).to_text(), 1);
    note->reach(2);
    tensor.release();
    EXPECT_TRUE(eventually([] { return stats().limbo == 1; }));
    point_hook = bury_without_memory_first;
    ::kill(borrower.pid(), SIGKILL);
    EXPECT_TRUE(eventually([] { return burials == 2; })) << "the next look tries again";
    EXPECT_TRUE(eventually([] { return stats().in_transit == 1; }));
    point_hook = nullptr;
    EXPECT_EQ(put_off, 1);
    EXPECT_EQ(stats().limbo, 1u) << "a receiver may still come for it";
  });
}

/// The number of failures in a child that is forked with so many allocations; minus a signal.
int fork_with(int allocations, const Tensor& inherited) {
  allocations_left = allocations;
  const pid_t pid = ::fork();
  allocations_left = -1;
  if (pid == 0) {
    ::alarm(60);
    try {
      if (inherited.as<char>()[0] != 7) ::_exit(2);
      bytes(100);
    } catch (const Error&) {
    }
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

TEST(MemoryShortage, AForkedChildIsNotAborted) {
  if (testing::kSanitized) GTEST_SKIP() << "sanitizers have an operator new of their own";
  JoinedChild parent([] {
    const Tensor tensor = bytes(100);
    tensor.as<char>()[0] = 7;
    share(tensor);
    for (int allocations = 0; allocations < 150; ++allocations)
      EXPECT_GE(fork_with(allocations, tensor), 0) << "with " << allocations << " allocations";
    bytes(100);
  });
}

}  // namespace
}  // namespace onecopy
