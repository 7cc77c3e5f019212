// SPDX-License-Identifier: Apache-2.0
// Work on one process's stream before work on another's, while both hosts go on. A host function that waits for
// a gate stands in for a kernel that takes long.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <string_view>
#include <thread>
#include <vector>

#include "core/point.h"
#include "device/order/timeline.h"
#include "onecopy/memory/copy.h"
#include "onecopy/share/share.h"
#include "onecopy/share/stats.h"
#include "share/owner/stream_releases.h"
#include "support/child.h"
#include "support/cuda_streams.h"
#include "support/limits.h"
#include "support/metronome.h"
#include "support/note.h"
#include "support/numbers.h"
#include "support/refusal.h"

namespace onecopy {
namespace {

using testing::Child;
using testing::close_with;
using testing::CudaCalls;
using testing::device_bytes;
using testing::element;
using testing::eventually;
using testing::fill;
using testing::JoinedChild;
using testing::Note;
using testing::set_element;
using testing::Shared;

using CudaOrder = testing::OnCuda;

TEST_F(CudaOrder, WhoDropsTensorsWithoutAPauseHasAFewOfThemAtATime) {
  testing::in_child([] {
    const CudaCalls cu(0);
    const auto stream = cu.stream();
    for (int i = 0; i < 200; ++i) {
      record_stream(device_bytes(4096), Stream{stream}).release();
      cu.cuStreamSynchronize(stream);
      ASSERT_LE(stats().live_blocks, 3u) << "after " << i + 1 << " tensors";
    }
  });
}

/// Marks that this process has made in its default stream so far, and one more.
std::uint64_t marks(const Tensor& any) { return share(any, {.stream = Stream{}}).fields().timeline_value; }

TEST_F(CudaOrder, ManyTensorsThatAreDroppedInTheDefaultStreamTakeFewMarks) {
  testing::in_child([] {
    const CudaCalls cu(0);
    const Tensor kept = device_bytes(4096);
    marks(kept);  // from here on it is known that streams write words
    std::vector<Tensor> many;
    for (int i = 0; i < 1000; ++i) many.push_back(record_stream(device_bytes(4096), Stream{}));
    const std::uint64_t before = marks(kept);
    many.clear();
    EXPECT_LT(marks(kept) - before, 200u);
    EXPECT_TRUE(eventually([] { return stats().live_blocks == 1; }));
  });
}

TEST_F(CudaOrder, LargeTensorsThatAreDroppedInTheDefaultStreamDoNotWaitForManyMore) {
  testing::in_child([] {
    const CudaCalls cu(0);
    marks(device_bytes(4096));
    for (int i = 0; i < 20; ++i) {
      record_stream(device_bytes(200 << 20), Stream{}).release();
      cu.cuStreamSynchronize(nullptr);
      ASSERT_LE(stats().live_blocks, 4u) << "after " << i + 1 << " tensors";
    }
  });
}

TEST_F(CudaOrder, WhatIsDroppedInTheDefaultStreamIsKeptUntilThatHasComePast) {
  testing::in_child([&] {
    const CudaCalls cu(0);
    const Tensor kept = device_bytes(4096);
    marks(kept);
    Tensor tensor = record_stream(device_bytes(4096), Stream{});
    close_with(cu, nullptr, *gate);
    tensor.release();
    collect();
    EXPECT_EQ(stats().live_blocks, 2u) << "the stream is before its end";
    gate->open = true;
    EXPECT_TRUE(eventually([] { return stats().live_blocks == 1; }));
  });
}

TEST_F(CudaOrder, WhatIsHandedOverIsWrittenBeforeItIsReadAndNoHostWaits) {
  JoinedChild owner([&] {
    const CudaCalls cu(0);
    const auto stream = cu.stream();
    const Tensor tensor = device_bytes(1 << 20);
    fill(cu, tensor, 1, nullptr);
    cu.cuCtxSynchronize();
    close_with(cu, stream, *gate);
    fill(cu, tensor, 2, stream);
    note->write(share(tensor, {.stream = Stream{stream}}).to_text());
    EXPECT_EQ(cu.cuStreamQuery(stream), testing::CUDA_ERROR_NOT_READY);
    note->reach(3);
  });
  JoinedChild borrower([&] {
    const CudaCalls cu(0);
    const auto stream = cu.stream();
    const Tensor mine = device_bytes(1 << 20);
    {
      const Tensor tensor = open(Handle::from_text(note->read()), {.stream = Stream{stream}});
      copy_into(tensor.view(), mine.view(), Stream{stream});
    }
    EXPECT_EQ(cu.cuStreamQuery(stream), testing::CUDA_ERROR_NOT_READY);
    gate->open = true;  // no stream has waited so far
    EXPECT_EQ(cu.cuStreamSynchronize(stream), testing::CUDA_SUCCESS);
    EXPECT_EQ(element<unsigned char>(mine, 0), 2);
    EXPECT_EQ(element<unsigned char>(mine, (1 << 20) - 1), 2);
    note->step = 3;
  });
}

TEST_F(CudaOrder, WhatIsGivenBackIsNotReusedBeforeTheBorrowersStreamHasReadIt) {
  JoinedChild owner([&] {
    Tensor tensor = device_bytes(1 << 20);
    note->write(share(tensor).to_text());
    note->reach(2);
    tensor.release();
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    EXPECT_EQ(stats().limbo, 1u) << "the borrower has let go, its stream has not";
    note->step = 3;
    EXPECT_TRUE(eventually([] { return stats().limbo == 0; }));
    note->step = 5;
  });
  JoinedChild borrower([&] {
    const CudaCalls cu(0);
    const auto stream = cu.stream();
    Tensor tensor = open(Handle::from_text(note->read()), {.stream = Stream{stream}});
    Tensor other = record_stream(tensor, Stream{cu.stream()});
    close_with(cu, stream, *gate);
    tensor.release();
    other.release();
    note->step = 2;
    note->reach(3);
    gate->open = true;
    note->reach(5);
  });
}

TEST_F(CudaOrder, ADeadSharersStreamLeavesNobodyWaiting) {
  Child owner([&] {
    const CudaCalls cu(0);
    const auto stream = cu.stream();
    const Tensor tensor = share_behind_gate(cu, stream);  // which never opens
    ::pause();
  });
  JoinedChild borrower([&] {
    const CudaCalls cu(0);
    const auto stream = cu.stream();
    const Tensor tensor = open(Handle::from_text(note->read()), {.stream = Stream{stream}});
    EXPECT_EQ(cu.cuStreamQuery(stream), testing::CUDA_ERROR_NOT_READY);
    note->step = 2;
    EXPECT_TRUE(eventually([&] { return cu.cuStreamQuery(stream) == testing::CUDA_SUCCESS; }));
  });
  note->reach(2);
  owner.kill();
}

TEST_F(CudaOrder, AStreamThatTakesLongIsLookedAfterEverMoreSeldom) {
  JoinedChild owner([&] {
    const CudaCalls cu(0);
    const auto stream = cu.stream();
    const Tensor tensor = share_behind_gate(cu, stream);
    note->reach(2);
    EXPECT_TRUE(testing::comes_to_look_seldom());
    note->reach(3);
    gate->open = true;
  });
  JoinedChild borrower([&] {
    const CudaCalls cu(0);
    const auto stream = cu.stream();
    open(Handle::from_text(note->read()), {.stream = Stream{stream}}).release();
    note->step = 2;
    EXPECT_TRUE(testing::comes_to_look_seldom());
    EXPECT_EQ(stats().leases, 1u) << "the stream has still to come to its end";
    note->step = 3;
    EXPECT_TRUE(eventually([] { return stats().leases == 0; }));
  });
}

TEST_F(CudaOrder, WithinOneProcessStreamsWaitForEachOther) {
  testing::in_child([&] {
    const CudaCalls cu(0);
    const auto first = cu.stream();
    const auto second = cu.stream();
    const Tensor tensor = device_bytes(4096);
    close_with(cu, first, *gate);
    const Tensor same = open(share(tensor, {.stream = Stream{first}}), {.stream = Stream{second}});
    EXPECT_EQ(cu.cuStreamQuery(second), testing::CUDA_ERROR_NOT_READY);
    gate->open = true;
    EXPECT_EQ(cu.cuStreamSynchronize(second), testing::CUDA_SUCCESS);
  });
}

std::atomic<int> about_to_enqueue{0};

void count_marks() {
  point_hook = [](const char* name) noexcept {
    if (std::string_view(name) == "timeline.mark") ++about_to_enqueue;
  };
}

/// At a mark in it, or a wait, the driver keeps the host until there is room. Later work of another stream of this
/// process may be needed to make that room.
TEST_F(CudaOrder, AStreamWithoutRoomKeepsOnlyThoseWaitingWhoUseIt) {
  if (!testing::is_simulated()) GTEST_SKIP() << "wants streams with little room";
  constexpr int kRoom = 8;
  testing::in_child_with({{"ONECOPY_SIM_CUDA_ROOM", "8"}}, [&] {
    const CudaCalls cu(0);
    const auto full = cu.stream();
    const auto busy = cu.stream();
    const auto free = cu.stream();
    const Tensor tensor = device_bytes(4096);
    for (const auto stream : {full, busy}) close_with(cu, stream, *gate);
    const Handle later = share(tensor, {.stream = Stream{busy}});
    for (int i = 0; i < kRoom; ++i) fill(cu, tensor, 1, full);
    point_hook = [](const char* name) noexcept {
      if (std::string_view(name).starts_with("timeline.")) ++about_to_enqueue;
    };
    std::jthread marker([&] { share(tensor, {.stream = Stream{full}}); });
    EXPECT_TRUE(eventually([] { return about_to_enqueue == 1; }));
    std::atomic<int> done{0};
    std::jthread others([&] {
      share(tensor, {.stream = Stream{free}});
      ++done;
    });
    EXPECT_TRUE(eventually([&] { return done == 1; })) << "while a mark waits for room";
    std::jthread waiter([&] { open(later, {.stream = Stream{full}}); });
    EXPECT_TRUE(eventually([] { return about_to_enqueue == 3; }));
    std::jthread more([&] {
      open(later, {.stream = Stream{free}});
      ++done;
    });
    EXPECT_TRUE(eventually([&] { return done == 2; })) << "while a wait waits for room";
    gate->open = true;
  });
}

std::atomic<bool> is_registering{false};
std::atomic<bool> may_register{false};

void hold_registrations() {
  point_hook = [](const char* name) noexcept {
    if (std::string_view(name) != "timeline.register") return;
    is_registering = true;
    while (!may_register) std::this_thread::yield();
  };
}

/// While any stream is full, the driver keeps callers that register memory waiting.
TEST_F(CudaOrder, ADeviceThatIsToldOfTheWordsKeepsNoOthersStreamsWaiting) {
  if (testing::cuda_devices() < 2) GTEST_SKIP() << "wants two devices";
  testing::in_child([&] {
    const CudaCalls cu;
    const auto share_on = [&](std::int16_t ordinal) {
      cu.use(ordinal);
      share(testing::device_bytes(4096, {DeviceType::cuda, ordinal}), {.stream = Stream{cu.stream()}});
    };
    share_on(0);
    hold_registrations();
    std::jthread first([&] { share_on(1); });
    EXPECT_TRUE(eventually([] { return is_registering.load(); }));
    std::atomic<bool> done{false};
    std::jthread other([&] {
      share_on(0);
      done = true;
    });
    EXPECT_TRUE(eventually([&] { return done.load(); }));
    may_register = true;
  });
}

TEST_F(CudaOrder, AForkDoesNotWaitForADriverThatIsToldOfAnothersWords) {
  JoinedChild owner([&] {
    const CudaCalls cu(0);
    const auto stream = cu.stream();
    const Tensor tensor = share_behind_gate(cu, stream);
    note->reach(2);
    gate->open = true;
    EXPECT_EQ(cu.cuStreamSynchronize(stream), testing::CUDA_SUCCESS);  // before it ends
  });
  JoinedChild borrower([&] {
    const CudaCalls cu(0);
    const auto stream = cu.stream();
    const Handle handle = Handle::from_text(note->read());
    hold_registrations();
    std::jthread opener([&] { open(handle, {.stream = Stream{stream}}); });
    EXPECT_TRUE(eventually([] { return is_registering.load(); }));
    std::atomic<bool> done{false};
    std::jthread forker([&] {
      Child child([] {});
      done = child.join() == 0;
    });
    EXPECT_TRUE(eventually([&] { return done.load(); }));
    may_register = true;
    note->step = 2;
  });
}

TEST_F(CudaOrder, WhatWouldEndInTheStreamOfAFailedDeviceIsNotLookedAfterAnyMore) {
  if (!testing::is_simulated()) GTEST_SKIP() << "breaks a device, as only a simulator can";
  testing::in_child([&] {
    const CudaCalls cu(0);
    const auto stream = cu.stream();
    Timeline timeline;
    StreamReleases releases(timeline);
    close_with(cu, stream, *gate);
    releases.order(device_bytes(4096).block(), testing::kCuda0, Stream{stream}).reset();
    EXPECT_TRUE(releases.sweep()) << "the stream has still to come past it";
    cu.sim_break(0, 700);
    timeline.poll_devices();
    EXPECT_FALSE(releases.sweep());
    EXPECT_EQ(releases.size(), 0u);
    EXPECT_EQ(stats().live_blocks, 1u) << "nobody knows what the device still does";
    gate->open = true;
  });
}

// The watch thread drops memory that another process has taken: here with a stream that has no room for the mark.
TEST_F(CudaOrder, WhatTheWatchThreadDropsKeepsNobodyFromOpening) {
  if (!testing::is_simulated()) GTEST_SKIP() << "wants streams with little room";
  constexpr int kRoom = 8;
  Shared<Note> held;
  JoinedChild owner([&] {
    ::setenv("ONECOPY_SIM_CUDA_ROOM", "8", 1);
    const CudaCalls cu(0);
    const auto full = cu.stream();
    const Tensor tensor = device_bytes(4096);
    Tensor dropped = record_stream(device_bytes(4096), Stream{full});
    const std::string handle = hold(share(dropped)).to_text();
    dropped.release();
    close_with(cu, full, *gate);
    for (int i = 0; i < kRoom; ++i) fill(cu, tensor, 1, full);
    count_marks();
    held->write(handle);
    EXPECT_TRUE(eventually([] { return about_to_enqueue == 1; })) << "a mark waits for room";
    note->write(share(tensor).to_text());
    note->reach(2);
    gate->open = true;
    EXPECT_TRUE(eventually([] { return stats().live_blocks == 1; }));
  });
  Child taker([&] { open(Handle::from_text(held->read())).release(); });  // which ends the hold
  Child opener([&] { EXPECT_TRUE(open(Handle::from_text(note->read()))); });
  EXPECT_EQ(taker.join(), 0);
  EXPECT_EQ(opener.join(), 0);
  note->step = 2;
}

// The watch thread marked them: this process answered no question until the stream went on.
TEST_F(CudaOrder, WhatIsDroppedInADefaultStreamWithoutRoomKeepsNobodyFromOpening) {
  if (!testing::is_simulated()) GTEST_SKIP() << "wants streams with little room";
  constexpr int kRoom = 8;
  JoinedChild owner([&] {
    ::setenv("ONECOPY_SIM_CUDA_ROOM", "8", 1);
    const CudaCalls cu(0);
    const Tensor tensor = device_bytes(4096);
    marks(tensor);
    Tensor dropped = record_stream(device_bytes(4096), Stream{});
    close_with(cu, nullptr, *gate);
    for (int i = 0; i < kRoom; ++i) fill(cu, tensor, 1, nullptr);
    count_marks();
    dropped.release();
    EXPECT_TRUE(eventually([] { return about_to_enqueue == 1; })) << "a mark waits for room";
    note->write(share(tensor).to_text());
    note->reach(2);
    gate->open = true;
    EXPECT_TRUE(eventually([] { return stats().live_blocks == 1; }));
  });
  Child opener([&] { EXPECT_TRUE(open(Handle::from_text(note->read()))); });
  EXPECT_EQ(opener.join(), 0);
  note->step = 2;
}

TEST_F(CudaOrder, WithoutRoomForTheWordsAMarkIsRefusedAndTheNextIsNot) {
  if (testing::kSanitized) GTEST_SKIP() << "sanitizers need addresses of their own";
  testing::in_child([] {
    const CudaCalls cu(0);
    const Stream stream{cu.stream()};
    const Tensor tensor = device_bytes(4096);  // the driver's own memory is there
    Timeline timeline;
    {
      const testing::Limit limit(RLIMIT_AS, testing::address_space_for(0));
      testing::expect_refusal(ErrorCode::out_of_mappings, {},
                              [&] { timeline.mark(testing::kCuda0, stream); });
    }
    const TimelinePoint point = timeline.mark(testing::kCuda0, stream);
    EXPECT_TRUE(eventually([&] { return timeline.has_passed(point); }));
  });
}

TEST_F(CudaOrder, ACopyThatIsDroppedIsWrittenBeforeItsMemoryIsUsedAgain) {
  testing::in_child([&] {
    const CudaCalls cu(0);
    const auto stream = cu.stream();
    const Tensor whole = device_bytes(1 << 20);
    close_with(cu, stream, *gate);
    share(whole.slice(0, 0, 4096), ShareOptions{Exact::copy, Stream{stream}});  // dropped at once
    collect();
    EXPECT_EQ(stats().live_blocks, 2u) << "the stream has still to write the copy";
    gate->open = true;
    EXPECT_TRUE(eventually([] { return stats().live_blocks == 1; }));
  });
}

TEST_F(CudaOrder, WhoIsShortOfMemoryWaitsForWhatStreamsStillUse) {
  if (!testing::is_simulated()) GTEST_SKIP() << "wants a small device";
  testing::in_child_with({{"ONECOPY_SIM_CUDA_MEMORY", "67108864"}}, [&] {
    const CudaCalls cu(0);
    const auto stream = cu.stream();
    constexpr std::int64_t kMostOfIt = 40 << 20;
    Tensor tensor = record_stream(device_bytes(kMostOfIt), Stream{stream});
    close_with(cu, stream, *gate);
    tensor.release();
    std::thread opener([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      gate->open = true;
    });
    EXPECT_NO_THROW(device_bytes(kMostOfIt));
    opener.join();
  });
}

/// A drop in a default stream is marked with others, at the next tick.
TEST_F(CudaOrder, ALargeBlockThatWasDroppedInAnIdleStreamIsUsedAgainAtOnce) {
  testing::in_child([&] {
    constexpr std::int64_t kLarge = 256 << 20;
    idle_stream_us = 20'000'000;  // the simulated stream is a thread, which may not get a processor soon
    Tensor tensor = record_stream(device_bytes(kLarge), Stream{});
    const void* const at = tensor.data();
    tensor.release();
    EXPECT_EQ(device_bytes(kLarge).data(), at);
  });
}

TEST_F(CudaOrder, TheDefaultStreamsOfTwoThreadsAreTwo) {
  testing::in_child([&] {
    const CudaCalls cu(0);
    const auto own = reinterpret_cast<testing::CUstream>(2);  // CU_STREAM_PER_THREAD
    const auto reader = cu.stream();
    const Tensor tensor = device_bytes(4096);
    close_with(cu, own, *gate);
    const Handle first = share(tensor, {.stream = Stream{own}});
    std::thread([&] {
      cu.use(0);
      const Tensor other = device_bytes(4096);
      share(other, {.stream = Stream{own}});
      cu.cuStreamSynchronize(own);
    }).join();
    const Tensor same = open(first, {.stream = Stream{reader}});
    EXPECT_EQ(cu.cuStreamQuery(reader), testing::CUDA_ERROR_NOT_READY)
        << "this thread's stream is not there";
    gate->open = true;
    EXPECT_EQ(cu.cuStreamSynchronize(reader), testing::CUDA_SUCCESS);
  });
}

TEST_F(CudaOrder, WhatIsDroppedWhileItsStreamIsCapturedIsKeptUntilTheStreamHasComePast) {
  testing::in_child([&] {
    const CudaCalls cu(0);
    const auto stream = cu.stream();
    Tensor tensor = record_stream(device_bytes(4096), Stream{stream});
    close_with(cu, stream, *gate);
    EXPECT_EQ(cu.cuStreamBeginCapture(stream, testing::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
              testing::CUDA_SUCCESS);
    tensor.release();
    collect();
    EXPECT_EQ(stats().live_blocks, 1u) << "nothing says yet how far the stream has come";
    testing::CUgraph graph = nullptr;
    EXPECT_EQ(cu.cuStreamEndCapture(stream, &graph), testing::CUDA_SUCCESS);
    collect();
    EXPECT_EQ(stats().live_blocks, 1u) << "the stream is before it";
    gate->open = true;
    EXPECT_TRUE(eventually([] { return stats().live_blocks == 0; }));
  });
}

TEST_F(CudaOrder, AStreamThatIsBeingCapturedIsRefused) {
  testing::in_child([&] {
    const CudaCalls cu(0);
    const auto stream = cu.stream();
    const Tensor tensor = device_bytes(4096);
    EXPECT_EQ(cu.cuStreamBeginCapture(stream, testing::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
              testing::CUDA_SUCCESS);
    testing::expect_refusal(ErrorCode::unsupported, {"captured"},
                            [&] { share(tensor, {.stream = Stream{stream}}); });
    testing::CUgraph graph = nullptr;
    EXPECT_EQ(cu.cuStreamEndCapture(stream, &graph), testing::CUDA_SUCCESS);
  });
}

// ---- a driver without stream memory operations

class CudaOrderWithoutWords : public CudaOrder {
 protected:
  void SetUp() override {
    CudaOrder::SetUp();
    if (!testing::is_simulated())
      GTEST_SKIP() << "takes stream memory operations away, as only a simulator can";
  }
  static void take_words_away() {
    ::setenv("ONECOPY_SIM_CUDA_MISSING", "cuStreamWriteValue64,cuStreamWaitValue64", 1);
  }
};

TEST_F(CudaOrderWithoutWords, TheOpenersHostWaitsAndTheSharersDoesNot) {
  JoinedChild owner([&] {
    take_words_away();
    const CudaCalls cu(0);
    const auto stream = cu.stream();
    const Tensor tensor = device_bytes(4096);
    fill(cu, tensor, 1, nullptr);
    cu.cuCtxSynchronize();
    close_with(cu, stream, *gate);
    fill(cu, tensor, 9, stream);
    note->write(share(tensor, {.stream = Stream{stream}}).to_text());
    EXPECT_EQ(cu.cuStreamQuery(stream), testing::CUDA_ERROR_NOT_READY);
    EXPECT_EQ(stats().host_waits, 0u);
    note->reach(2);
  });
  JoinedChild borrower([&] {
    take_words_away();
    std::thread opener([&] {
      EXPECT_TRUE(eventually([] { return stats().host_waits == 1; }));
      gate->open = true;
    });
    const Tensor tensor = open(Handle::from_text(note->read()), {.stream = Stream{}});
    opener.join();
    EXPECT_EQ(element<unsigned char>(tensor, 4095), 9);
    note->step = 2;
  });
}

TEST_F(CudaOrderWithoutWords, AnOpenerThatHasThemWaitsInItsStream) {
  JoinedChild owner([&] {
    take_words_away();
    const CudaCalls cu(0);
    const auto stream = cu.stream();
    const Tensor tensor = share_behind_gate(cu, stream);
    note->reach(2);
  });
  JoinedChild borrower([&] {
    const CudaCalls cu(0);
    const auto stream = cu.stream();
    const Tensor tensor = open(Handle::from_text(note->read()), {.stream = Stream{stream}});
    EXPECT_EQ(cu.cuStreamQuery(stream), testing::CUDA_ERROR_NOT_READY);
    EXPECT_EQ(stats().host_waits, 0u);
    gate->open = true;
    EXPECT_EQ(cu.cuStreamSynchronize(stream), testing::CUDA_SUCCESS);
    note->step = 2;
  });
}

TEST_F(CudaOrderWithoutWords, WhatIsGivenBackIsStillNotReusedEarlyAndNoHostWaits) {
  JoinedChild owner([&] {
    Tensor tensor = device_bytes(1 << 20);
    note->write(share(tensor).to_text());
    note->reach(2);
    tensor.release();
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    EXPECT_EQ(stats().limbo, 1u) << "the borrower has let go, its stream has not";
    note->step = 3;
    EXPECT_TRUE(eventually([] { return stats().limbo == 0; }));
    note->step = 4;
  });
  JoinedChild borrower([&] {
    take_words_away();
    const CudaCalls cu(0);
    const auto stream = cu.stream();
    Tensor tensor = open(Handle::from_text(note->read()), {.stream = Stream{stream}});
    close_with(cu, stream, *gate);
    tensor.release();
    EXPECT_EQ(stats().host_waits, 0u);
    note->step = 2;
    note->reach(3);
    gate->open = true;
    note->reach(4);
  });
}

TEST_F(CudaOrderWithoutWords, TheHostDoesNotWaitForADeadSharer) {
  Child owner([&] {
    take_words_away();
    const CudaCalls cu(0);
    const auto stream = cu.stream();
    const Tensor tensor = share_behind_gate(cu, stream);  // which never opens
    ::pause();
  });
  JoinedChild borrower([&] {
    take_words_away();
    std::thread watcher([&] {
      EXPECT_TRUE(eventually([] { return stats().host_waits == 1; }));
      note->step = 2;
    });
    testing::expect_refusal(ErrorCode::peer_died, {"half written"},
                            [&] { open(Handle::from_text(note->read()), {.stream = Stream{}}); });
    watcher.join();
  });
  note->reach(2);
  owner.kill();
}

}  // namespace
}  // namespace onecopy
