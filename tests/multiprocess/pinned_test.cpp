// SPDX-License-Identifier: Apache-2.0
// Memory that cards copy at the speed of the link. Memory that a driver has pinned is not given back (F2), not
// unmapped (F3), and not used again while a copy still reads it (F4); captures are never spoilt (F5). Facts seen on
// an H100.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "device/backend.h"
#include "device/capture_gate.h"
#include "device/pinned_ranges.h"
#include "onecopy/core/error.h"
#include "onecopy/memory/copy.h"
#include "onecopy/share/pin.h"
#include "onecopy/share/share.h"
#include "onecopy/share/stats.h"
#include "share/runtime/runtime.h"
#include "support/cuda_streams.h"
#include "support/numbers.h"
#include "support/refusal.h"

namespace onecopy {
namespace {

using testing::Child;
using testing::CudaCalls;
using testing::CUstream;
using testing::device_bytes;
using testing::element;
using testing::eventually;
using testing::expect_refusal;
using testing::filled_bytes;
using testing::in_child;
using testing::in_child_with;
using testing::JoinedChild;
using testing::kCuda0;

constexpr std::int64_t kBytes = 1 << 20;
constexpr std::int64_t kLarge = 40 << 20;  // a segment of its own

using Pinned = testing::OnCuda;

/// Everywhere the same byte, as a card has it.
void expect_bytes(const Tensor& there, int value) {
  std::vector<unsigned char> here(there.nbytes());
  copy_bytes_and_wait({here.data(), kCpu, there.data(), there.device(), here.size()});
  EXPECT_TRUE(std::all_of(here.begin(), here.end(), [&](unsigned char b) { return b == value; }))
      << "begins with " << int{here.front()} << ", ends with " << int{here.back()};
}

void copy_in(const CudaCalls&, CUstream stream, const Tensor& to, const Tensor& from) {
  copy_bytes({to.data(), to.device(), from.data(), kCpu, from.nbytes()}, Stream{stream});
}

/// The bytes of a tensor that is gone are used again as soon as they may be, at the latest by the `most`th tensor.
bool is_used_again(const void* at, std::int64_t bytes, int most = 8) {
  std::vector<Tensor> kept;
  for (int i = 0; i < most; ++i) {
    kept.push_back(filled_bytes(bytes, 7));
    if (kept.back().data() == at) return true;
  }
  return false;
}

TEST_F(Pinned, WhatIsPinnedIsKnownToTheDriverAndCountedAsPinned) {
  in_child([] {
    const Tensor small = filled_bytes(100, 1, true);
    EXPECT_TRUE(is_pinned(small));
    EXPECT_EQ(stats().pinned_bytes, kPinUnit);
    const Tensor beside = filled_bytes(kBytes, 2);
    EXPECT_TRUE(is_pinned(beside)) << "it lies in the same piece";
    const Tensor large = filled_bytes(kLarge, 3);
    EXPECT_FALSE(is_pinned(large));
    pin(large);
    pin(large);
    EXPECT_TRUE(is_pinned(large));
    EXPECT_EQ(stats().pinned_bytes, kPinUnit + kLarge);
    const Tensor there = device_bytes(kBytes);
    copy_bytes_and_wait({there.data(), kCuda0, beside.data(), kCpu, kBytes});
    expect_bytes(there, 2);
    EXPECT_EQ(stats().pageable_copies, 1u) << "expect_bytes() has a vector";
    EXPECT_EQ(stats().cut_copies, 0u);
  });
}

TEST_F(Pinned, BorrowersPinWhatTheyHaveMappedAlsoForReading) {
  JoinedChild owner([&] {
    const Tensor tensor = filled_bytes(kBytes, 5);
    note->write(share(tensor).to_text());
    note->serve_until(3);
    EXPECT_EQ(stats().pinned_bytes, 0u) << "each process pins for itself";
  });
  for (const Access access : {Access::read_write, Access::read_only}) {
    Child borrower([&] {
      const Tensor opened = open(Handle::from_text(note->read()), {.access = access, .pinned = true});
      EXPECT_TRUE(is_pinned(opened));
      const Tensor there = device_bytes(kBytes);
      copy_bytes_and_wait({there.data(), kCuda0, opened.data(), kCpu, kBytes});
      EXPECT_EQ(stats().pageable_copies, 0u);
      expect_bytes(there, 5);
    });
    EXPECT_EQ(borrower.join(), 0);
    ++note->step;
  }
}

/// The owner would give back the pages of `freed`, which lies beside a tensor that a borrower has pinned.
TEST_F(Pinned, F2ABorrowersPinKeepsTheOwnerFromGivingPagesBackUntilItEnds) {
  JoinedChild owner([&] {
    const Tensor kept = filled_bytes(kBytes, 1);
    Tensor freed = filled_bytes(16 * kBytes, 2);
    note->write(share(kept).to_text());
    note->reach(2);  // pinned
    const std::uint64_t before = stats().bytes_shared;
    freed.release();
    trim();
    EXPECT_EQ(stats().bytes_shared, before) << "a card may read them";
    const Tensor again = filled_bytes(16 * kBytes, 9);
    note->step = 3;
    note->reach(4);  // unpinned
    EXPECT_TRUE(eventually([&] { return trim(), true; }));
    Tensor more = filled_bytes(16 * kBytes, 3);
    more.release();
    EXPECT_TRUE(eventually([&] { return trim() > 0; }));
    note->step = 5;
  });
  JoinedChild borrower([&] {
    const Tensor opened = open(Handle::from_text(note->read()), {.pinned = true});
    note->step = 2;
    note->reach(3);
    unpin(opened);
    EXPECT_TRUE(eventually([] { return stats().pinned_bytes == 0; }));
    note->step = 4;
    note->reach(5);
  });
}

/// Another thread may be copying the neighbour, and unpinning the neighbour during the copy makes all work of the
/// process fail.
TEST_F(Pinned, UnpinLeavesAPieceWithOtherBlocks) {
  in_child([] {
    Tensor first = filled_bytes(kBytes, 1);
    Tensor second = filled_bytes(kBytes, 2);
    pin(first);
    ASSERT_TRUE(is_pinned(second)) << "in the same piece";
    unpin(first);
    trim();
    EXPECT_TRUE(is_pinned(second));
    second.release();
    pin(first);
    unpin(first);
    EXPECT_TRUE(eventually([] { return trim(), stats().pinned_bytes == 0; }));
  });
}

/// A real driver ended the work of the soak's processes there (719), once in ten thousand steps.
TEST_F(Pinned, CopiesBesideUnpinningAreRight) {
  in_child([] {
    for (std::uint8_t round = 0; round < 200; ++round) {
      const Tensor first = filled_bytes(kBytes, round);
      pin(first);
      unpin(first);
      const Tensor there = empty(first.layout(), kCuda0);
      copy_into(first.view(), there.view());
      const Tensor back = empty(first.layout());
      copy_into(there.view(), back.view());
      EXPECT_EQ(element<std::uint8_t>(back, kBytes - 1), round);
    }
  });
}

TEST_F(Pinned, F2ADeadBorrowersPinsAreGone) {
  JoinedChild owner([&] {
    const Tensor kept = filled_bytes(kBytes, 1);
    Tensor freed = filled_bytes(16 * kBytes, 2);
    note->write(share(kept).to_text());
    note->reach(2);
    freed.release();
    EXPECT_EQ(trim(), 0u);
    note->step = 3;
    EXPECT_TRUE(eventually([] { return trim() > 0; }));
  });
  Child borrower([&] {
    const Tensor opened = open(Handle::from_text(note->read()), {.pinned = true});
    note->step = 2;
    note->serve_until(100);
  });
  note->reach(3);
  borrower.kill();
}

/// The owner gives the whole segment back, and its borrower is to unmap it.
TEST_F(Pinned, F3NothingIsUnmappedWhileItIsPinned) {
  JoinedChild owner([&] {
    Tensor large = filled_bytes(kLarge, 1);
    note->write(share(large).to_text());
    note->reach(2);  // opened, pinned, released
    large.release();
    EXPECT_TRUE(eventually([] { return trim() > 0; }));
    note->step = 3;
    note->serve_until(4);
  });
  JoinedChild borrower([&] {
    Tensor opened = open(Handle::from_text(note->read()), {.pinned = true});
    const void* const at = opened.data();
    opened.release();
    EXPECT_TRUE(PinnedRanges::get().is_pinned(at, kLarge));
    note->step = 2;
    note->reach(3);
    EXPECT_TRUE(eventually([&] { return !PinnedRanges::get().is_pinned(at, 1); }))
        << "unpinned, then unmapped";
    EXPECT_TRUE(eventually([] { return stats().pinned_bytes == 0; }));
    note->step = 4;
  });
}

TEST_F(Pinned, F4AnOwnTensorIsUsedAgainOnlyOnceItsCopyIsDone) {
  in_child([&] {
    const CudaCalls cu(0);
    const CUstream stream = cu.stream();
    const Tensor there = device_bytes(kBytes);
    Tensor here = filled_bytes(kBytes, 4, true);
    const void* const at = here.data();
    close_with(cu, stream, *gate);
    copy_in(cu, stream, there, here);
    here.release();
    EXPECT_FALSE(is_used_again(at, kBytes));
    gate->open = true;
    EXPECT_EQ(cu.cuStreamSynchronize(stream), testing::CUDA_SUCCESS);
    expect_bytes(there, 4);
    EXPECT_TRUE(eventually([&] { return is_used_again(at, kBytes); }));
    EXPECT_GE(stats().late_releases, 1u);
  });
}

/// A loader whose workers refill at once: the batch is dropped long before the card reads it.
TEST_F(Pinned, F4ABorrowedTensorIsUsedAgainOnlyOnceItsCopyIsDone) {
  JoinedChild owner([&] {
    Tensor batch = filled_bytes(kBytes, 6);
    const void* const at = batch.data();
    note->write(share(batch).to_text());
    note->reach(2);  // it has been opened, copied from, and dropped
    batch.release();
    EXPECT_FALSE(is_used_again(at, kBytes));
    note->step = 3;
    note->reach(4);
    EXPECT_TRUE(eventually([&] { return is_used_again(at, kBytes); }));
    note->step = 5;
  });
  JoinedChild borrower([&] {
    const CudaCalls cu(0);
    const CUstream stream = cu.stream();
    const Tensor there = device_bytes(kBytes);
    Tensor opened = open(Handle::from_text(note->read()), {.pinned = true});
    close_with(cu, stream, *gate);
    copy_in(cu, stream, there, opened);
    opened.release();
    note->step = 2;
    note->reach(3);
    gate->open = true;
    EXPECT_EQ(cu.cuStreamSynchronize(stream), testing::CUDA_SUCCESS);
    expect_bytes(there, 6);
    note->step = 4;
    note->reach(5);
  });
}

TEST_F(Pinned, F4WorkThatComesAfterTheReleaseIsNotWaitedFor) {
  in_child([&] {
    const CudaCalls cu(0);
    const CUstream stream = cu.stream();
    Tensor here = filled_bytes(kBytes, 4, true);
    const void* const at = here.data();
    here.release();
    close_with(cu, stream, *gate);
    EXPECT_TRUE(eventually([&] { return is_used_again(at, kBytes); }));
    gate->open = true;
    cu.cuStreamSynchronize(stream);
  });
}

TEST_F(Pinned, F5ReleasesWaitWhileAStreamIsCapturedAndSpoilNoCapture) {
  in_child([] {
    const CudaCalls cu(0);
    const CUstream stream = cu.stream();
    const Tensor there = device_bytes(kBytes);
    for (int i = 0; i < 20; ++i) {
      Tensor here = filled_bytes(kBytes, 4, true);
      const void* const at = here.data();
      CaptureGate::get().begin();
      EXPECT_EQ(cu.cuStreamBeginCapture(stream, testing::CU_STREAM_CAPTURE_MODE_GLOBAL),
                testing::CUDA_SUCCESS);
      fill(cu, there, 3, stream);
      here.release();
      collect();
      EXPECT_FALSE(is_used_again(at, kBytes));
      testing::CUgraph graph = nullptr;
      EXPECT_EQ(cu.cuStreamEndCapture(stream, &graph), testing::CUDA_SUCCESS);
      CaptureGate::get().end();
      cu.cuGraphDestroy(graph);
      EXPECT_TRUE(eventually([&] { return is_used_again(at, kBytes); }));
    }
  });
}

TEST_F(Pinned, ADriverWithoutEventsOfAContextIsWaitedForByAThread) {
  if (!testing::is_simulated()) GTEST_SKIP() << "wants the simulated driver: a real one has what it has";
  in_child_with({{"ONECOPY_SIM_CUDA_MISSING", "cuCtxRecordEvent"}}, [&] {
    const CudaCalls cu(0);
    const CUstream stream = cu.stream();
    const Tensor there = device_bytes(kBytes);
    Tensor here = filled_bytes(kBytes, 4, true);
    const void* const at = here.data();
    close_with(cu, stream, *gate);
    copy_in(cu, stream, there, here);
    here.release();
    EXPECT_FALSE(is_used_again(at, kBytes));
    gate->open = true;
    // The thread looks every 20 ms, and the tensors of a look wait, too: the next ones lie elsewhere.
    constexpr int kWholePiece = static_cast<int>(kPinUnit / kBytes) + 1;
    EXPECT_TRUE(eventually([&] { return is_used_again(at, kBytes, kWholePiece); }));
    expect_bytes(there, 4);
  });
}

TEST_F(Pinned, P7AForkedChildHasPinnedNothingAndKeepsNothing) {
  in_child_with({{"ONECOPY_ASCEND_RUNTIME", "libnot-there.so.2"}}, [&] {
    const CudaCalls cu(0);
    const CUstream stream = cu.stream();
    const Tensor kept = filled_bytes(kBytes, 1, true);
    Tensor dropped = filled_bytes(kBytes, 2, true);
    const void* const at = dropped.data();
    close_with(cu, stream, *gate);
    dropped.release();
    JoinedChild child([&] {
      EXPECT_FALSE(is_pinned(kept));
      EXPECT_EQ(stats().pinned_bytes, 0u);
      EXPECT_EQ(*kept.as<unsigned char>(), 1);
      expect_refusal(ErrorCode::unsupported, {"fork"}, [&] { pin(kept); });
      note->step = 1;
      note->serve_until(2);
    });
    note->reach(1);
    gate->open = true;
    EXPECT_TRUE(eventually([&] { return is_used_again(at, kBytes); })) << "the child has let go of it";
    note->step = 2;
  });
}

TEST_F(Pinned, TrimUnpinsWhatNothingLiesInAndGivesItBack) {
  in_child([] {
    Tensor large = filled_bytes(kLarge, 1, true);
    const Tensor kept = filled_bytes(100, 1, true);
    large.release();
    EXPECT_EQ(stats().pinned_bytes, kPinUnit + kLarge);
    EXPECT_TRUE(eventually([] { return trim(), stats().pinned_bytes == kPinUnit; }));
    EXPECT_LE(stats().bytes_shared, kPinUnit + 2 * kBytes);
    EXPECT_TRUE(is_pinned(kept));
  });
}

TEST_F(Pinned, BeyondTheLimitNothingIsPinnedAndWhatIsIdleMakesRoom) {
  in_child_with({{"ONECOPY_PIN_LIMIT", "100M"}}, [] {
    Tensor first = filled_bytes(kLarge, 1, true);
    const Tensor second = filled_bytes(2 * kLarge, 2);
    expect_refusal(ErrorCode::out_of_memory, {"83886080", "41943040", "104857600", "ONECOPY_PIN_LIMIT"},
                   [&] { pin(second); });
    EXPECT_FALSE(is_pinned(second));
    first.release();
    EXPECT_TRUE(eventually([&] {
      try {
        pin(second);
      } catch (const Error&) {
      }
      return is_pinned(second);
    }));
    EXPECT_EQ(stats().pinned_bytes, 2u * kLarge);
  });
  in_child_with({{"ONECOPY_PIN_LIMIT", "plenty"}}, [] {
    expect_refusal(ErrorCode::invalid_argument, {"plenty", "K, M or G"}, [] { filled_bytes(1, 1, true); });
  });
}

TEST_F(Pinned, WithoutACardThatIsSaid) {
  in_child_with(
      {{"ONECOPY_CUDA_DRIVER", "libnot-there.so.1"}, {"ONECOPY_ASCEND_RUNTIME", "libnot-there.so.2"}}, [] {
        expect_refusal(ErrorCode::unsupported, {"sees none", "libnot-there.so.1", "Ascend", "doctor"},
                       [] { filled_bytes(1, 1, true); });
        const Tensor tensor = filled_bytes(1, 1);
        EXPECT_FALSE(is_pinned(tensor));
        unpin(tensor);
      });
}

TEST_F(Pinned, MemoryOfOthersIsRefused) {
  in_child([] {
    std::vector<char> bytes(100);
    const Tensor theirs(BlockRef(), bytes.data(), Layout(DType::u8, {100}), kCpu, Access::read_write);
    expect_refusal(ErrorCode::invalid_argument, {"another library"}, [&] { pin(theirs); });
    const Tensor there = device_bytes(100);
    expect_refusal(ErrorCode::invalid_argument, {"cuda:0", "own already"}, [&] { pin(there); });
    expect_refusal(ErrorCode::invalid_argument, {"cuda:0", "not pinned"},
                   [&] { empty(Layout(DType::u8, {1}), {.pinned = true, .device = kCuda0}); });
  });
}

TEST_F(Pinned, ACardReadsAndWritesTheHostsMemoryInPlaceThroughAView) {
  in_child([] {
    const CudaCalls cu(0);
    const CUstream stream = cu.stream();
    const Tensor here = filled_bytes(kBytes, 4);
    const Tensor view = view_on(here, kCuda0);
    EXPECT_TRUE(is_view(view));
    EXPECT_FALSE(is_view(here));
    EXPECT_TRUE(is_pinned(here));
    EXPECT_EQ(view.device(), kCuda0);
    EXPECT_EQ(view.layout(), here.layout());
    expect_bytes(view, 4);
    fill(cu, view, 5, stream);
    EXPECT_EQ(cu.cuStreamSynchronize(stream), testing::CUDA_SUCCESS);
    EXPECT_EQ(here.as<unsigned char>()[kBytes - 1], 5);
    EXPECT_EQ(stats().bytes_shared, std::uint64_t{kBytes})
        << "nothing is copied, and the card has no memory of ours";
  });
}

/// The block belongs to another process, which frees it while a card still works on it.
TEST_F(Pinned, AViewKeepsTheClaimUntilTheCardHasDoneItsWork) {
  JoinedChild owner([&] {
    Tensor pages = filled_bytes(kBytes, 6);
    const void* const at = pages.data();
    note->write(share(pages).to_text());
    note->reach(2);
    pages.release();
    EXPECT_FALSE(is_used_again(at, kBytes)) << "the view holds it";
    note->step = 3;
    note->reach(4);
    EXPECT_FALSE(is_used_again(at, kBytes)) << "the card works on it";
    note->step = 5;
    note->reach(6);
    EXPECT_TRUE(eventually([&] { return is_used_again(at, kBytes); }));
    note->step = 7;
  });
  JoinedChild borrower([&] {
    const CudaCalls cu(0);
    const CUstream stream = cu.stream();
    const Tensor there = device_bytes(kBytes);
    Tensor opened = open(Handle::from_text(note->read()));
    Tensor view = view_on(opened, kCuda0);
    opened.release();
    note->step = 2;
    note->reach(3);
    close_with(cu, stream, *gate);
    copy_bytes({there.data(), kCuda0, view.data(), kCuda0, kBytes}, Stream{stream});
    view.release();
    note->step = 4;
    note->reach(5);
    gate->open = true;
    EXPECT_EQ(cu.cuStreamSynchronize(stream), testing::CUDA_SUCCESS);
    expect_bytes(there, 6);
    note->step = 6;
    note->reach(7);
  });
}

TEST_F(Pinned, UnpinLeavesWhatACardHasAViewOf) {
  in_child([] {
    Tensor here = filled_bytes(kLarge, 4);
    Tensor view = view_on(here, kCuda0);
    unpin(here);
    Runtime::current().pinning().end_left();
    EXPECT_TRUE(is_pinned(here));
    expect_bytes(view, 4);
    here.release();
    view.release();
    EXPECT_TRUE(eventually([] { return trim(), stats().pinned_bytes == 0; })) << "the last of them is gone";
  });
}

TEST_F(Pinned, AViewIsRefusedWhereItCannotBeAndIsNotShared) {
  in_child([] {
    const Tensor here = filled_bytes(kBytes, 4);
    expect_refusal(ErrorCode::invalid_argument, {"for a card"}, [&] { view_on(here, kCpu); });
    expect_refusal(ErrorCode::invalid_argument, {"cuda:9"}, [&] { view_on(here, {DeviceType::cuda, 9}); });
    expect_refusal(ErrorCode::invalid_argument, {"cuda:0", "own already"},
                   [&] { view_on(device_bytes(10), kCuda0); });
    EXPECT_FALSE(is_pinned(here));
    const Tensor view = view_on(here, kCuda0);
    expect_refusal(ErrorCode::invalid_argument, {"cuda:0's view", "share the tensor"},
                   [&] { share(view); });
    std::vector<char> bytes(100);
    const Tensor theirs(BlockRef(), bytes.data(), Layout(DType::u8, {100}), kCpu, Access::read_write);
    expect_refusal(ErrorCode::invalid_argument, {"another library"}, [&] { view_on(theirs, kCuda0); });
  });
}

/// A pinner and an owner that gives pages back again and again: the counts end where they began.
TEST_F(Pinned, PinsAndHolesPassEachOther) {
  JoinedChild owner([&] {
    const Tensor kept = filled_bytes(kBytes, 1);
    note->write(share(kept).to_text());
    while (note->step < 2) {
      filled_bytes(8 * kBytes, 2).release();
      trim();
    }
  });
  JoinedChild borrower([&] {
    const Tensor opened = open(Handle::from_text(note->read()));
    const Tensor there = device_bytes(kBytes);
    for (int i = 0; i < 50; ++i) {
      pin(opened);
      copy_bytes_and_wait({there.data(), kCuda0, opened.data(), kCpu, kBytes});
      EXPECT_TRUE(is_pinned(opened));
      unpin(opened);
      Runtime::current().pinning().end_left();
      EXPECT_FALSE(is_pinned(opened));
    }
    expect_bytes(there, 1);
    note->step = 2;
  });
}

}  // namespace
}  // namespace onecopy
