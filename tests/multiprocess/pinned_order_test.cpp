// SPDX-License-Identifier: Apache-2.0
// Pinned memory that a copy from a card still fills, when it is handed over: a receiver reads it after the copy. A host
// function that waits for a gate stands in for a kernel that takes long.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <thread>

#include "device/order/timeline.h"
#include "onecopy/channel/queue.h"
#include "onecopy/share/bundle.h"
#include "onecopy/share/pin.h"
#include "onecopy/share/share.h"
#include "support/cuda_streams.h"

namespace onecopy {
namespace {

using testing::Child;
using testing::CudaCalls;
using testing::CUstream;
using testing::device_bytes;
using testing::in_child;
using testing::JoinedChild;
using testing::kCuda0;

constexpr std::int64_t kBytes = 1 << 20;

void expect_bytes(const Tensor& tensor, int value) {
  const auto* const bytes = tensor.as<unsigned char>();
  EXPECT_TRUE(std::all_of(bytes, bytes + tensor.nbytes(), [&](unsigned char b) { return b == value; }))
      << "begins with " << int{bytes[0]};
}

class PinnedOrder : public testing::OnCuda {
 protected:
  /// Pinned memory of ones, which a copy fills with nines once the gate is open.
  Tensor to_be_filled(const CudaCalls& cu, CUstream stream, const Tensor& nines) {
    Tensor here = empty(Layout(DType::u8, {kBytes}), {.pinned = true});
    std::memset(here.data(), 1, here.nbytes());
    close_with(cu, stream, *gate);
    copy_bytes({here.data(), kCpu, nines.data(), kCuda0, kBytes}, Stream{stream});
    return here;
  }
  /// Calls `open` and opens the gate once the host waits.
  Tensor while_the_host_waits(const std::function<Tensor()>& open) {
    std::atomic<bool> is_done{false};
    std::thread opener([&] {
      while (host_waits == 0 && !is_done) std::this_thread::yield();
      gate->open = true;
    });
    const Tensor opened = open();
    expect_bytes(opened, 9);
    is_done = true;
    opener.join();
    return opened;
  }
  using Give = std::function<void(const Tensor&, Stream)>;
  void hand_over(const Give& give, const std::function<Tensor()>& take) {
    JoinedChild giver([&] {
      const CudaCalls cu(0);
      const CUstream stream = cu.stream();
      const Tensor nines = device_bytes(kBytes);
      fill(cu, nines, 9, stream);
      const Tensor here = to_be_filled(cu, stream, nines);
      give(here, Stream{stream});
      EXPECT_EQ(host_waits, 0u) << "the giver does not wait";
      note->serve_until(3);
    });
    JoinedChild taker([&] {
      while_the_host_waits(take);
      note->step = 3;
    });
  }
};

TEST_F(PinnedOrder, AHandleIsOpenedOnceTheCopyIsDone) {
  hand_over(
      [&](const Tensor& here, Stream stream) { note->write(share(here, {.stream = stream}).to_text()); },
      [&] { return open(Handle::from_text(note->read())); });
}

TEST_F(PinnedOrder, ATensorOfABundleIsOpenedOnceTheCopyIsDone) {
  hand_over(
      [&](const Tensor& here, Stream stream) {
        note->write(share_bundle(std::vector<NamedTensor>{{"x", here}}, {}, stream).to_text());
      },
      [&] { return Bundle::open(Handle::from_text(note->read())).tensor(0); });
}

TEST_F(PinnedOrder, AnItemIsGotOnceTheCopyIsDone) {
  std::optional<Queue> queue;
  hand_over(
      [&](const Tensor& here, Stream stream) {
        queue = Queue::create();
        EXPECT_TRUE(queue->try_put(Message{7, {}, {here}}, std::chrono::seconds(10), stream));
        note->write(queue->handle().to_text());
      },
      [&] {
        queue = Queue::connect(Handle::from_text(note->read()));
        auto message = queue->try_get(std::chrono::seconds(30));
        return message ? message->tensors.at(0) : Tensor();
      });
}

TEST_F(PinnedOrder, NothingWaitsForMemoryThatIsNotPinnedOrForIdleStreams) {
  JoinedChild giver([&] {
    const CudaCalls cu(0);
    const CUstream stream = cu.stream();
    const Tensor pinned = empty(Layout(DType::u8, {40 << 20}), {.pinned = true});
    const Handle idle = share(pinned, {.stream = Stream{stream}});
    EXPECT_EQ(idle.fields().timeline_value, 0u);
    close_with(cu, stream, *gate);
    const Tensor other = empty(Layout(DType::u8, {40 << 20}));
    EXPECT_FALSE(is_pinned(other));
    const Handle plain = share(other, {.stream = Stream{stream}});
    EXPECT_EQ(plain.fields().timeline_value, 0u);
    const Handle busy = share(pinned, {.stream = Stream{stream}});
    EXPECT_NE(busy.fields().timeline_value, 0u);
    gate->open = true;
    EXPECT_EQ(cu.cuStreamSynchronize(stream), testing::CUDA_SUCCESS);
  });
}

/// The memory would never be filled.
TEST_F(PinnedOrder, AGiverThatDiesBeforeTheCopyIsDoneIsReported) {
  Child giver([&] {
    const CudaCalls cu(0);
    const CUstream stream = cu.stream();
    const Tensor nines = device_bytes(kBytes);
    const Tensor here = to_be_filled(cu, stream, nines);
    note->write(share(here, {.stream = Stream{stream}}).to_text());
    note->serve_until(100);
  });
  JoinedChild taker([&] {
    const Handle handle = Handle::from_text(note->read());
    std::thread killer([&] {
      while (host_waits == 0) std::this_thread::yield();
      note->step = 2;
    });
    try {
      open(handle);
      ADD_FAILURE() << "it was opened";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::peer_died) << error.what();
    }
    killer.join();
  });
  note->reach(2);
  giver.kill();
}

}  // namespace
}  // namespace onecopy
