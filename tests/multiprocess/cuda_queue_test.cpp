// SPDX-License-Identifier: Apache-2.0
// Tensors on a device that cross queues and pipes: never seen before they are written, never reused before they
// are read, and no host waits. A host function that waits for a gate stands in for a kernel that takes long.
#include <gtest/gtest.h>
#include <unistd.h>

#include <thread>

#include "onecopy/channel/pipe.h"
#include "onecopy/channel/queue.h"
#include "onecopy/core/error.h"
#include "onecopy/memory/copy.h"
#include "onecopy/share/stats.h"
#include "support/cuda_streams.h"
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
using testing::expect_refusal;
using testing::fill;
using testing::JoinedChild;

constexpr std::int64_t kBytes = 1 << 20;

class CudaQueueOrder : public testing::OnCuda {
 protected:
  using Put = std::function<void(Queue&, const CudaCalls&, testing::CUstream, const Tensor&)>;
  using Get = std::function<Tensor(Queue&, testing::CUstream)>;
  /// The producer's stream is held up before it writes; the consumer copies what it got, and only then may the
  /// producer's go on.
  void hand_over(testing::CUstream (*stream_of)(const CudaCalls&), const Put& put, const Get& get);
};

testing::CUstream own_stream(const CudaCalls& cu) { return cu.stream(); }
testing::CUstream default_stream(const CudaCalls&) { return nullptr; }

void CudaQueueOrder::hand_over(testing::CUstream (*stream_of)(const CudaCalls&), const Put& put,
                               const Get& get) {
  JoinedChild producer([&] {
    const CudaCalls cu(0);
    const auto stream = stream_of(cu);
    Queue queue = Queue::create();
    note->write(queue.handle().to_text());
    const Tensor tensor = device_bytes(kBytes);
    fill(cu, tensor, 1, nullptr);
    cu.cuCtxSynchronize();
    close_with(cu, stream, *gate);
    fill(cu, tensor, 2, stream);
    put(queue, cu, stream, tensor);
    EXPECT_EQ(cu.cuStreamQuery(stream), testing::CUDA_ERROR_NOT_READY) << "putting has not waited";
    note->reach(2);
  });
  JoinedChild consumer([&] {
    const CudaCalls cu(0);
    const auto stream = stream_of(cu);
    Queue queue = Queue::connect(Handle::from_text(note->read()));
    const Tensor mine = device_bytes(kBytes);
    {
      const Tensor tensor = get(queue, stream);
      copy_into(tensor.view(), mine.view(), Stream{stream});
    }
    EXPECT_EQ(cu.cuStreamQuery(stream), testing::CUDA_ERROR_NOT_READY) << "getting has not waited";
    gate->open = true;
    EXPECT_EQ(cu.cuStreamSynchronize(stream), testing::CUDA_SUCCESS);
    EXPECT_EQ(element<unsigned char>(mine, 0), 2);
    EXPECT_EQ(element<unsigned char>(mine, kBytes - 1), 2);
    note->step = 2;
  });
}

TEST_F(CudaQueueOrder, WhatIsPutIsWrittenBeforeItIsRead) {
  hand_over(
      own_stream,
      [](Queue& q, const CudaCalls&, testing::CUstream stream, const Tensor& t) {
        q.put(t, Stream{stream});
      },
      [](Queue& q, testing::CUstream stream) { return q.get_tensor(Stream{stream}); });
}

TEST_F(CudaQueueOrder, SoItIsInTheDefaultStreamsWhenNoneIsNamed) {
  hand_over(
      default_stream, [](Queue& q, const CudaCalls&, testing::CUstream, const Tensor& t) { q.put(t); },
      [](Queue& q, testing::CUstream) { return q.get_tensor(); });
}

TEST_F(CudaQueueOrder, SoItIsInAMessageOfManyWhichDoesNotFitIntoTheRing) {
  hand_over(
      own_stream,
      [](Queue& q, const CudaCalls&, testing::CUstream stream, const Tensor& t) {
        Message message{7, Bytes(500), {testing::numbers(3)}};
        for (int i = 0; i < 20; ++i) message.tensors.push_back(t.slice(0, i, kBytes));
        message.tensors.push_back(t);
        q.put(message, Stream{stream});
      },
      [](Queue& q, testing::CUstream stream) {
        Message message = q.get(Stream{stream});
        EXPECT_EQ(message.tensors.size(), 22u);
        return message.tensors.back();
      });
}

TEST_F(CudaQueueOrder, SoItIsWhenTheOwnerGetsBackWhatABorrowerWrote) {
  JoinedChild owner([&] {
    const CudaCalls cu(0);
    const auto stream = cu.stream();
    Queue there = Queue::create();
    Queue back = Queue::create();
    note->write(there.handle().to_text() + " " + back.handle().to_text());
    Tensor mine = device_bytes(kBytes);
    fill(cu, mine, 1, stream);
    there.put(mine, Stream{stream});
    const Tensor same = back.get_tensor(Stream{stream});
    EXPECT_EQ(same.data(), mine.data());
    const Tensor seen = device_bytes(kBytes);
    copy_into(same.view(), seen.view(), Stream{stream});
    EXPECT_EQ(cu.cuStreamQuery(stream), testing::CUDA_ERROR_NOT_READY);
    gate->open = true;
    EXPECT_EQ(cu.cuStreamSynchronize(stream), testing::CUDA_SUCCESS);
    EXPECT_EQ(element<unsigned char>(seen, kBytes - 1), 2);
    note->step = 2;
  });
  JoinedChild borrower([&] {
    const CudaCalls cu(0);
    const auto stream = cu.stream();
    const std::string both = note->read();
    Queue there = Queue::connect(Handle::from_text(both.substr(0, both.find(' '))));
    Queue back = Queue::connect(Handle::from_text(both.substr(both.find(' ') + 1)));
    const Tensor tensor = there.get_tensor(Stream{stream});
    close_with(cu, stream, *gate);
    fill(cu, tensor, 2, stream);
    back.put(tensor, Stream{stream});
    note->reach(2);
  });
}

TEST_F(CudaQueueOrder, WhatWasTakenIsNotReusedBeforeTheTakersStreamHasReadIt) {
  JoinedChild producer([&] {
    Queue queue = Queue::create();
    note->write(queue.handle().to_text());
    queue.put(device_bytes(kBytes));
    note->reach(2);
    EXPECT_TRUE(eventually([] { return stats().limbo == 1; })) << "a tick finds that it is not in transit";
    collect();
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    EXPECT_EQ(stats().limbo, 1u) << "the taker has let go, its stream has not";
    note->step = 3;
    EXPECT_TRUE(eventually([] { return stats().limbo == 0; }));
    note->step = 4;
  });
  JoinedChild consumer([&] {
    const CudaCalls cu(0);
    const auto stream = cu.stream();
    Queue queue = Queue::connect(Handle::from_text(note->read()));
    Tensor tensor = queue.get_tensor(Stream{stream});
    close_with(cu, stream, *gate);
    tensor.release();
    EXPECT_EQ(cu.cuStreamQuery(stream), testing::CUDA_ERROR_NOT_READY) << "letting go has not waited";
    note->step = 2;
    note->reach(3);
    gate->open = true;
    note->reach(4);
  });
}

TEST_F(CudaQueueOrder, AThousandTensorsThroughSlowStreamsAreNeverSeenEarly) {
  constexpr int kTensors = 1000;
  const auto slow = [] {
    if (testing::is_simulated()) ::setenv("ONECOPY_SIM_CUDA_DELAY_US", "200", 1);
  };
  JoinedChild producer([&] {
    slow();
    const CudaCalls cu(0);
    const auto stream = cu.stream();
    Queue queue = Queue::create({64});
    note->write(queue.handle().to_text());
    for (int i = 0; i < kTensors; ++i) {
      Tensor tensor = device_bytes(4096);
      fill(cu, tensor, static_cast<unsigned char>(i), stream);
      queue.put(std::move(tensor), Stream{stream});
    }
    note->reach(2);
    EXPECT_TRUE(eventually([] { return stats().limbo == 0 && stats().live_blocks <= 1; }));
  });
  JoinedChild consumer([&] {
    slow();
    const CudaCalls cu(0);
    const auto stream = cu.stream();
    Queue queue = Queue::connect(Handle::from_text(note->read()));
    const Tensor seen = device_bytes(kTensors);
    for (int i = 0; i < kTensors; ++i) {
      const Tensor tensor = queue.get_tensor(Stream{stream});
      copy_into(tensor.slice(0, 4095, 4096).view(), seen.slice(0, i, i + 1).view(), Stream{stream});
    }
    cu.cuStreamSynchronize(stream);
    for (int i = 0; i < kTensors; ++i)
      ASSERT_EQ(element<unsigned char>(seen, i), static_cast<unsigned char>(i)) << i;
    note->step = 2;
  });
}

TEST_F(CudaQueueOrder, WhatAKilledPuttersStreamHadNotWrittenIsAnErrorAndTheQueueGoesOn) {
  JoinedChild creator([&] {
    const CudaCalls cu(0);
    const auto stream = cu.stream();
    Queue queue = Queue::create();
    note->write(queue.handle().to_text());
    EXPECT_TRUE(queue.get_tensor(Stream{stream})) << "from here on its streams are known";
    note->step = 2;
    note->reach(4);
    expect_refusal(ErrorCode::peer_died, {"half written"}, [&] { queue.get_tensor(Stream{stream}); });
    queue.put(device_bytes(16));
    EXPECT_TRUE(queue.get_tensor(Stream{stream}));
  });
  Child putter([&] {
    const CudaCalls cu(0);
    const auto stream = cu.stream();
    Queue queue = Queue::connect(Handle::from_text(note->read()));
    close_with(cu, stream, *gate);
    queue.put(device_bytes(kBytes), Stream{stream});
    note->reach(2);
    queue.put(device_bytes(kBytes), Stream{stream});
    note->step = 3;
    ::pause();
  });
  note->reach(3);
  putter.kill();
  note->step = 4;
}

TEST_F(CudaQueueOrder, EveryBorrowerOfTheKilledLearnsIt) {
  const auto borrow = [&](int step) {
    const CudaCalls cu(0);
    const Handle handle = Handle::from_text(note->read());
    const Tensor tensor = open(handle, {.stream = Stream{cu.stream()}});
    note->step.fetch_add(1);
    note->reach(step);
    EXPECT_TRUE(eventually([&] {
      try {
        open(handle, {.stream = Stream{cu.stream()}});
        return false;
      } catch (const Error& error) {
        return error.code() == ErrorCode::peer_died;
      }
    }));
    note->step.fetch_add(1);
  };
  Child owner([&] {
    const CudaCalls cu(0);
    const auto stream = cu.stream();
    const Tensor tensor = share_behind_gate(cu, stream);
    ::pause();
  });
  Child first([&] { borrow(10); });
  JoinedChild second([&] { borrow(11); });
  note->reach(3);
  owner.kill();
  note->step = 10;
  EXPECT_EQ(first.join(), 0);
}

TEST_F(CudaQueueOrder, WhatIsReadyIsDeliveredAlthoughItsPutterWasKilled) {
  JoinedChild creator([&] {
    Queue queue = Queue::create();
    note->write(queue.handle().to_text());
    note->reach(3);
    const Tensor tensor = queue.get_tensor();
    EXPECT_EQ(element<unsigned char>(tensor, kBytes - 1), 5);
  });
  Child putter([&] {
    const CudaCalls cu(0);
    Queue queue = Queue::connect(Handle::from_text(note->read()));
    const Tensor tensor = device_bytes(kBytes);
    fill(cu, tensor, 5, nullptr);
    queue.put(tensor);
    cu.cuCtxSynchronize();
    note->step = 2;
    ::pause();
  });
  note->reach(2);
  putter.kill();
  note->step = 3;
}

/// The allocation is open already, so that the tensor's place in it is found without a question to another process.
TEST_F(CudaQueueOrder, WhatEndedWithItsPutterIsAnErrorOnceAndTheQueueGoesOn) {
  JoinedChild creator([&] {
    Queue queue = Queue::create();
    note->write(queue.handle().to_text());
    const Tensor first = queue.get_tensor();
    const Handle handle = Handle::from_text(note->read(2));
    note->step = 3;
    note->reach(4);
    EXPECT_TRUE(eventually([&] {
      try {
        open(handle);
        return false;
      } catch (const Error& error) {
        return error.code() == ErrorCode::owner_died;
      }
    }));
    expect_refusal(ErrorCode::owner_died, {"is lost"}, [&] { queue.get_tensor(); });
    queue.put(device_bytes(16));
    EXPECT_TRUE(queue.get_tensor());
  });
  Child putter([&] {
    const CudaCalls cu(0);
    Queue queue = Queue::connect(Handle::from_text(note->read()));
    const auto at = cu.memory(2 * kBytes);
    const auto part = [&](std::int64_t offset) {
      return adopt({reinterpret_cast<void*>(at + offset), Layout(DType::u8, {kBytes}), testing::kCuda0,
                    Access::read_write},
                   nullptr);
    };
    const Tensor first = part(0);
    const Tensor second = part(kBytes);
    queue.put(first);
    queue.put(second);
    cu.cuCtxSynchronize();
    note->write(share(first).to_text(), 2);
    ::pause();
  });
  note->reach(3);
  putter.kill();
  note->step = 4;
}

TEST_F(CudaQueueOrder, AProcessThatExitsFinishesFirstWhatItHasPut) {
  JoinedChild creator([&] {
    Queue queue = Queue::create();
    note->write(queue.handle().to_text());
    EXPECT_TRUE(queue.get_tensor()) << "from here on the putter's streams are known";
    note->step = 2;
    note->reach(4);
    EXPECT_EQ(element<unsigned char>(queue.get_tensor(), kBytes - 1), 5);
  });
  Child putter([&] {
    const CudaCalls cu(0);
    const auto stream = cu.stream();
    Queue queue = Queue::connect(Handle::from_text(note->read()));
    queue.put(device_bytes(kBytes), Stream{stream});
    note->reach(2);
    const Tensor tensor = device_bytes(kBytes);
    close_with(cu, stream, *gate);
    fill(cu, tensor, 5, stream);
    queue.put(tensor, Stream{stream});
    note->step = 3;
    std::exit(0);
  });
  note->reach(3);
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_FALSE(putter.has_ended());
  gate->open = true;
  EXPECT_EQ(putter.join(), 0);
  note->step = 4;
}

TEST_F(CudaQueueOrder, ACapturedStreamLeavesTheItemWhereItIs) {
  testing::in_child([&] {
    const CudaCalls cu(0);
    const auto stream = cu.stream();
    const auto captured = cu.stream();
    Queue queue = Queue::create();
    close_with(cu, stream, *gate);
    queue.put(device_bytes(16), Stream{stream});
    EXPECT_EQ(cu.cuStreamBeginCapture(captured, testing::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
              testing::CUDA_SUCCESS);
    expect_refusal(ErrorCode::unsupported, {"captured"}, [&] { queue.get_tensor(Stream{captured}); });
    expect_refusal(ErrorCode::unsupported, {"captured"},
                   [&] { queue.put(device_bytes(16), Stream{captured}); });
    testing::CUgraph graph = nullptr;
    EXPECT_EQ(cu.cuStreamEndCapture(captured, &graph), testing::CUDA_SUCCESS);
    EXPECT_EQ(queue.size(), 1u);
    gate->open = true;
    EXPECT_TRUE(queue.get_tensor(Stream{captured}));
  });
}

/// It is for callers with an interpreter's lock, which the work in the other stream may need.
TEST_F(CudaQueueOrder, AQuickLookNeverWaitsForAStreamOnTheHost) {
  if (!testing::is_simulated()) GTEST_SKIP() << "takes stream memory operations away";
  JoinedChild producer([&] {
    const CudaCalls cu(0);
    const auto stream = cu.stream();
    Queue queue = Queue::create();
    note->write(queue.handle().to_text());
    const Tensor tensor = device_bytes(kBytes);
    queue.put(tensor, Stream{stream});
    note->reach(2);
    close_with(cu, stream, *gate);
    fill(cu, tensor, 2, stream);
    queue.put(tensor, Stream{stream});
    note->step = 3;
    note->reach(4);
  });
  JoinedChild consumer([&] {
    ::setenv("ONECOPY_SIM_CUDA_MISSING", "cuStreamWriteValue64,cuStreamWaitValue64", 1);
    Queue queue = Queue::connect(Handle::from_text(note->read()));
    queue.get_tensor();  // whose memory and whose stream it is, is known from now on
    note->step = 2;
    note->reach(3);
    EXPECT_FALSE(queue.try_get_at_once());
    EXPECT_EQ(queue.size(), 1u);
    gate->open = true;
    EXPECT_EQ(element<unsigned char>(queue.get_tensor(), 0), 2);
    note->step = 4;
  });
}

TEST_F(CudaQueueOrder, APipeKeepsItToo) {
  testing::in_child([&] {
    const CudaCalls cu(0);
    const auto first = cu.stream();
    const auto second = cu.stream();
    auto [here, there] = Pipe::create();
    close_with(cu, first, *gate);
    here.send(device_bytes(16), Stream{first});
    const Tensor tensor = there.recv_tensor(Stream{second});
    EXPECT_EQ(cu.cuStreamQuery(second), testing::CUDA_ERROR_NOT_READY);
    gate->open = true;
    EXPECT_EQ(cu.cuStreamSynchronize(second), testing::CUDA_SUCCESS);
  });
}

TEST_F(CudaQueueOrder, AMessageOnTwoDevicesHasNoOneStream) {
  if (testing::cuda_devices() < 2) GTEST_SKIP() << "one device only";
  testing::in_child([&] {
    const CudaCalls cu(0);
    Queue queue = Queue::create();
    const Message message{0, {}, {device_bytes(16), device_bytes(16, {DeviceType::cuda, 1})}};
    expect_refusal(ErrorCode::invalid_argument, {"two messages"},
                   [&] { queue.put(message, Stream{cu.stream()}); });
    EXPECT_TRUE(queue.empty());
    queue.put(message);
    EXPECT_EQ(queue.get().tensors[1].device(), (Device{DeviceType::cuda, 1}));
  });
}

}  // namespace
}  // namespace onecopy
