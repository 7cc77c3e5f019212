// SPDX-License-Identifier: Apache-2.0
#include "onecopy/channel/pipe.h"

#include <gtest/gtest.h>

#include <thread>

#include "onecopy/core/error.h"
#include "onecopy/share/share.h"
#include "support/footprint.h"
#include "support/refusal.h"
#include "support/watchdog.h"

namespace onecopy {
namespace {

using namespace std::chrono_literals;
using testing::expect_refusal;
using testing::expect_soon;
using testing::Footprint;
using testing::Watchdog;

TEST(Pipe, DeliversToTheOtherEnd) {
  auto [a, b] = Pipe::create();
  const Tensor tensor = empty(Layout(DType::u8, {4}));
  a.send(tensor);
  b.send(Message{7, {}, {}});
  EXPECT_EQ(b.recv_tensor().data(), tensor.data());
  EXPECT_EQ(a.recv().tag, 7u);
  EXPECT_FALSE(a.try_recv());
  EXPECT_FALSE(b.try_recv(1ms));
}

TEST(Pipe, PollSaysWhetherReceivingWouldWait) {
  auto [a, b] = Pipe::create();
  EXPECT_FALSE(a.poll());
  EXPECT_FALSE(a.poll(1ms));
  b.send(Message{});
  EXPECT_TRUE(a.poll());
  a.recv();
  b.close();
  EXPECT_TRUE(a.poll(20s));
}

TEST(Pipe, DrainsAndThenIsClosedWhenTheOtherEndIs) {
  Watchdog watchdog;
  auto [a, b] = Pipe::create();
  b.send(Message{1, {}, {}});
  b.close();
  EXPECT_TRUE(b.is_closed());
  expect_refusal(ErrorCode::closed, {"closed"}, [&, &end = b] { end.send(Message{}); });
  EXPECT_EQ(a.recv().tag, 1u);
  expect_refusal(ErrorCode::closed, {"closed"}, [&, &end = a] { end.recv(); });
  expect_refusal(ErrorCode::closed, {"closed"}, [&, &end = a] { end.send(Message{}); });
}

TEST(Pipe, AnotherObjectOfTheSameEndKeepsItOpen) {
  auto [a, b] = Pipe::create();
  std::optional<PipeHandle> handle = b.handle();
  b.close();
  EXPECT_FALSE(a.poll());
  Pipe c = Pipe::connect(PipeHandle::from_text(handle->to_text()));
  handle.reset();
  EXPECT_FALSE(a.poll(150ms));
  a.send(Message{5, {}, {}});
  EXPECT_EQ(c.recv().tag, 5u);
  c.close();
  EXPECT_TRUE(a.poll(20s));
}

TEST(Pipe, AWaitingReceiverIsWokenByTheClose) {
  Watchdog watchdog;
  auto ends = Pipe::create();
  std::thread receiver([&] { expect_refusal(ErrorCode::closed, {}, [&] { ends.first.recv(); }); });
  ends.second.close();
  receiver.join();
}

TEST(Pipe, LeavesNothingBehind) {
  { auto warm = Pipe::create(); }
  const Footprint before = Footprint::unchanging();
  {
    auto [a, b] = Pipe::create();
    for (int i = 0; i < 1000; ++i) {
      a.send(empty(Layout(DType::u8, {100'000})));
      b.recv();
    }
  }
  expect_soon(before);
}

TEST(PipeHandle, ThatIsWrongIsRefused) {
  auto [a, b] = Pipe::create();
  const Bytes good = a.handle().to_bytes();
  for (std::size_t size = 0; size < good.size(); ++size)
    expect_refusal(ErrorCode::bad_handle, {}, [&] { PipeHandle::from_bytes(ByteSpan(good).first(size)); });
  Bytes other = good;
  other[4] = std::byte{9};
  expect_refusal(ErrorCode::version_mismatch, {"version 9"}, [&] { PipeHandle::from_bytes(other); });
  other = good;
  other[6] = std::byte{2};
  expect_refusal(ErrorCode::bad_handle, {"end"}, [&] { PipeHandle::from_bytes(other); });
  expect_refusal(ErrorCode::bad_handle, {"onecopy-pipe:"}, [&] { PipeHandle::from_text("onecopy:AAAA"); });
}

}  // namespace
}  // namespace onecopy
