// SPDX-License-Identifier: Apache-2.0
// Values without tensors on devices, through queues and pipes: a getter's later work comes after the work in the
// putter's streams. A host function that waits for a gate stands in for a kernel that takes long.
#include <gtest/gtest.h>
#include <unistd.h>

#include <functional>
#include <optional>
#include <thread>

#include "onecopy/channel/pipe.h"
#include "onecopy/channel/queue.h"
#include "onecopy/core/error.h"
#include "onecopy/memory/copy.h"
#include "onecopy/share/stats.h"
#include "support/child.h"
#include "support/cuda_kernel.h"
#include "support/cuda_streams.h"
#include "support/numbers.h"
#include "support/refusal.h"
#include "support/stderr_text.h"

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

constexpr std::int64_t kBytes = 1 << 16;

Message ready(std::size_t bytes = 5) { return {7, Bytes(bytes), {}}; }

class CudaValues : public testing::OnCuda {
 protected:
  struct Way {
    testing::CUstream (*stream_of)(const CudaCalls&);
    std::function<void(Queue&, Stream)> put;
    std::function<void(Queue&, Stream)> get;
    bool opens_late = false;  ///< the getter has no memory of a device before it gets the value
  };
  /// The getter has the putter's memory open when the putter's stream is held up, is to write it, and the value is put.
  void tell(const Way& way);
  void put_value(const Way& way);
  void get_value(const Way& way);
};

testing::CUstream own_stream(const CudaCalls& cu) { return cu.stream(); }
testing::CUstream default_stream(const CudaCalls&) { return nullptr; }

void CudaValues::put_value(const Way& way) {
  const CudaCalls cu(0);
  const auto stream = way.stream_of(cu);
  Queue queue = Queue::create();
  const Tensor tensor = device_bytes(kBytes);
  fill(cu, tensor, 1, nullptr);
  cu.cuCtxSynchronize();
  note->write(queue.handle().to_text() + " " + share(tensor, {.stream = Stream{}}).to_text());
  note->reach(2);
  close_with(cu, stream, *gate);
  fill(cu, tensor, 2, stream);
  way.put(queue, Stream{stream});
  EXPECT_EQ(cu.cuStreamQuery(stream), testing::CUDA_ERROR_NOT_READY) << "putting has not waited";
  note->step = 3;
  note->reach(4);
}

void CudaValues::get_value(const Way& way) {
  const CudaCalls cu(0);
  const auto stream = way.stream_of(cu);
  const std::string both = note->read();
  Queue queue = Queue::connect(Handle::from_text(both.substr(0, both.find(' '))));
  const Handle handle = Handle::from_text(both.substr(both.find(' ') + 1));
  Tensor theirs;
  if (!way.opens_late) theirs = open(handle, {.stream = Stream{stream}});
  note->step = 2;
  note->reach(3);
  way.get(queue, Stream{stream});
  if (way.opens_late) theirs = open(handle, {.stream = Stream{stream}});
  const Tensor mine = device_bytes(kBytes);
  copy_into(theirs.view(), mine.view(), Stream{stream});
  EXPECT_EQ(cu.cuStreamQuery(stream), testing::CUDA_ERROR_NOT_READY) << "getting has not waited";
  gate->open = true;
  EXPECT_EQ(cu.cuStreamSynchronize(stream), testing::CUDA_SUCCESS);
  EXPECT_EQ(element<unsigned char>(mine, 0), 2);
  EXPECT_EQ(element<unsigned char>(mine, kBytes - 1), 2);
  note->step = 4;
}

void CudaValues::tell(const Way& way) {
  JoinedChild putter([&] { put_value(way); });
  JoinedChild getter([&] { get_value(way); });
}

void get_ready(Queue& queue, Stream stream) { EXPECT_EQ(queue.get(stream).tag, 7u); }

TEST_F(CudaValues, AGettersWorkComesAfterThePuttersWorkBeforeThePut) {
  tell({own_stream, [](Queue& q, Stream stream) { q.put(ready(), stream); }, get_ready});
}

TEST_F(CudaValues, SoItIsInTheDefaultStreamsWhenNoneIsNamed) {
  tell({default_stream, [](Queue& q, Stream) { q.put(ready()); },
        [](Queue& q, Stream) { EXPECT_EQ(q.get().tag, 7u); }});
}

TEST_F(CudaValues, SoItIsWithAMessageThatDoesNotFitIntoTheRing) {
  tell({own_stream, [](Queue& q, Stream stream) { q.put(ready(500), stream); }, get_ready});
}

TEST_F(CudaValues, SoItIsWithATensorOfTheHost) {
  tell({own_stream, [](Queue& q, Stream stream) { q.put(testing::numbers(3), stream); },
        [](Queue& q, Stream stream) { EXPECT_EQ(q.get_tensor(stream).nbytes(), 24u); }});
}

TEST_F(CudaValues, SoItIsForAGetterThatOpensTheMemoryLater) {
  tell({own_stream, [](Queue& q, Stream stream) { q.put(ready(), stream); }, get_ready, true});
}

/// Or asks, if it does not know yet whose words they are.
TEST_F(CudaValues, AQuickLookOrdersItToo) {
  tell({own_stream, [](Queue& q, Stream stream) { q.put(ready(), stream); },
        [](Queue& q, Stream stream) {
          auto message = q.try_get_at_once(stream);
          if (!message) message = q.get(stream);
          EXPECT_EQ(message->tag, 7u);
        }});
}

TEST_F(CudaValues, AnIdleStreamIsGivenNothing) {
  testing::in_child([] {
    const CudaCalls cu(0);
    const auto stream = cu.stream();
    const Tensor kept = device_bytes(16);
    Queue queue = Queue::create();
    const auto marks = [&] { return share(kept, {.stream = Stream{stream}}).fields().timeline_value; };
    const std::uint64_t before = marks();
    EXPECT_EQ(cu.cuStreamSynchronize(stream), testing::CUDA_SUCCESS);
    for (int i = 0; i < 100; ++i) queue.put(ready(), Stream{stream});
    EXPECT_EQ(marks() - before, 1u) << "the one that asks";
  });
}

TEST_F(CudaValues, InAStreamThatWaitsForTheLegacyOneAreOrderedBehindItsWork) {
  testing::in_child([&] {
    const CudaCalls cu(0);
    const auto waiting = cu.stream(0), apart = cu.stream();
    const Tensor kept = device_bytes(16);
    const auto marks = [&](testing::CUstream stream) {
      Queue queue = Queue::create();
      const std::uint64_t before = share(kept, {.stream = Stream{stream}}).fields().timeline_value;
      EXPECT_EQ(cu.cuStreamSynchronize(stream), testing::CUDA_SUCCESS);
      close_with(cu, nullptr, *gate);
      queue.put(ready(), Stream{stream});
      gate->open = true;
      EXPECT_EQ(cu.cuCtxSynchronize(), testing::CUDA_SUCCESS);
      gate->open = false;
      return share(kept, {.stream = Stream{stream}}).fields().timeline_value - before;
    };
    EXPECT_EQ(marks(waiting), 2U) << "that of the value, and the one that asks";
    EXPECT_EQ(marks(apart), 1U) << "the one that asks";
  });
}

TEST_F(CudaValues, AProcessThatSharedNothingOnADeviceOrdersNothing) {
  testing::in_child([&] {
    const CudaCalls cu(0);
    const auto stream = cu.stream();
    close_with(cu, stream, *gate);
    Queue queue = Queue::create();
    queue.put(ready(), Stream{stream});
    EXPECT_EQ(queue.get(Stream{stream}).tag, 7u);
    gate->open = true;
    cu.cuCtxSynchronize();
    EXPECT_EQ(share(device_bytes(16), {.stream = Stream{stream}}).fields().timeline_value, 1u)
        << "the first mark of all";
  });
}

TEST_F(CudaValues, APipeKeepsItToo) {
  testing::in_child([&] {
    const CudaCalls cu(0);
    const auto first = cu.stream();
    const auto second = cu.stream();
    const Handle uses = share(device_bytes(16), {.stream = Stream{first}});
    cu.cuCtxSynchronize();
    auto [here, there] = Pipe::create();
    close_with(cu, first, *gate);
    here.send(ready(), Stream{first});
    EXPECT_EQ(there.recv(Stream{second}).tag, 7u);
    EXPECT_EQ(cu.cuStreamQuery(second), testing::CUDA_ERROR_NOT_READY);
    gate->open = true;
    EXPECT_EQ(cu.cuStreamSynchronize(second), testing::CUDA_SUCCESS);
  });
}

TEST_F(CudaValues, ACapturedStreamDoesNotKeepAValueFromBeingPut) {
  testing::in_child([&] {
    const CudaCalls cu(0);
    const auto captured = cu.stream();
    const Handle uses = share(device_bytes(16), {.stream = Stream{captured}});
    Queue queue = Queue::create();
    EXPECT_EQ(cu.cuStreamBeginCapture(captured, testing::CU_STREAM_CAPTURE_MODE_GLOBAL),
              testing::CUDA_SUCCESS);
    queue.put(ready(), Stream{captured});
    testing::CUgraph graph = nullptr;
    EXPECT_EQ(cu.cuStreamEndCapture(captured, &graph), testing::CUDA_SUCCESS)
        << "the capture is not harmed";
    EXPECT_EQ(queue.get().tag, 7u);
  });
}

/// A graph would wait for the same word at every launch.
TEST_F(CudaValues, TheHostWaitsForAStreamThatIsBeingCaptured) {
  testing::in_child([&] {
    const CudaCalls cu(0);
    const auto busy = cu.stream();
    const auto captured = cu.stream();
    const Tensor tensor = device_bytes(kBytes);
    const Handle uses = share(tensor, {.stream = Stream{busy}});
    Queue queue = Queue::create();
    close_with(cu, busy, *gate);
    fill(cu, tensor, 3, busy);
    queue.put(ready(), Stream{busy});
    EXPECT_EQ(cu.cuStreamBeginCapture(captured, testing::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL),
              testing::CUDA_SUCCESS);
    EXPECT_FALSE(queue.try_get_at_once(Stream{captured})) << "who keeps others waiting does not wait";
    std::thread opener([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      gate->open = true;
    });
    EXPECT_EQ(queue.get(Stream{captured}).tag, 7u);
    EXPECT_TRUE(gate->open);
    opener.join();
    testing::CUgraph graph = nullptr;
    EXPECT_EQ(cu.cuStreamEndCapture(captured, &graph), testing::CUDA_SUCCESS)
        << "the capture is not harmed";
    EXPECT_EQ(element<unsigned char>(tensor, kBytes - 1), 3);
  });
}

TEST_F(CudaValues, WhatAKilledProcessPutIsDeliveredAlthoughItsStreamHadNotDoneItsWork) {
  JoinedChild getter([&] {
    const CudaCalls cu(0);
    Queue queue = Queue::create();
    note->write(queue.handle().to_text());
    EXPECT_TRUE(queue.get_tensor()) << "from here on the putter's streams are known";
    note->step = 2;
    note->reach(4);
    testing::StderrText said;
    EXPECT_EQ(queue.get().tag, 7u);
    EXPECT_TRUE(said.says("before the work of its putter's stream was done"));
    queue.put(ready());
    EXPECT_EQ(queue.get().tag, 7u) << "the queue goes on";
  });
  Child putter([&] {
    const CudaCalls cu(0);
    const auto stream = cu.stream();
    Queue queue = Queue::connect(Handle::from_text(note->read()));
    queue.put(device_bytes(16), Stream{stream});
    note->reach(2);
    close_with(cu, stream, *gate);
    queue.put(ready(), Stream{stream});
    note->step = 3;
    ::pause();
  });
  note->reach(3);
  putter.kill();
  note->step = 4;
}

TEST_F(CudaValues, AProcessWhoseDeviceHasFailedSaysSoThroughAQueue) {
  testing::in_child([&] {
    const CudaCalls cu(0);
    testing::CopyByte kernel(cu);
    const auto stream = cu.stream();
    const Handle uses = share(device_bytes(16), {.stream = Stream{stream}});
    Queue queue = Queue::create();
    kernel.fail(stream);
    EXPECT_TRUE(eventually([&] {
      return cu.cuStreamQuery(stream) != testing::CUDA_SUCCESS &&
             cu.cuStreamQuery(stream) != testing::CUDA_ERROR_NOT_READY;
    }));
    queue.put(ready(), Stream{stream});
    EXPECT_EQ(queue.get().tag, 7u);
    std::_Exit(::testing::Test::HasFailure());  // the device no longer works
  });
}

TEST_F(CudaValues, AStreamIsOfOneOfSeveralDevices) {
  if (testing::cuda_devices() < 2) GTEST_SKIP() << "one device only";
  testing::in_child([&] {
    const CudaCalls cu(0);
    const auto stream = cu.stream();
    const Handle first = share(device_bytes(16), {.stream = Stream{}});
    const Handle second = share(device_bytes(16, {DeviceType::cuda, 1}), {.stream = Stream{}});
    cu.cuCtxSynchronize();
    Queue queue = Queue::create();
    expect_refusal(ErrorCode::invalid_argument, {"a stream is of one of the 2"},
                   [&] { queue.put(ready(), Stream{stream}); });
    EXPECT_TRUE(queue.empty());
    close_with(cu, nullptr, *gate);
    queue.put(ready());
    EXPECT_EQ(queue.get().tag, 7u);
    gate->open = true;
    cu.cuCtxSynchronize();
  });
}

}  // namespace
}  // namespace onecopy
