// SPDX-License-Identifier: Apache-2.0
#include "onecopy/channel/pipe.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "onecopy/core/error.h"
#include "onecopy/share/share.h"
#include "onecopy/share/stats.h"
#include "support/child.h"
#include "support/note.h"
#include "support/numbers.h"
#include "support/peer_group.h"
#include "support/processes_test.h"
#include "support/refusal.h"
#include "support/watchdog.h"

namespace onecopy {
namespace {

using namespace std::chrono_literals;
using testing::Body;
using testing::Child;
using testing::eventually;
using testing::expect_refusal;
using testing::Form;
using testing::JoinedChild;
using testing::Note;
using testing::number;
using testing::number_in;
using testing::ProcessesTest;
using testing::Role;
using testing::Shared;
using testing::Watchdog;

const Body asker("pipe.asker", [](Role& me) {
  auto [mine, yours] = Pipe::create();
  {
    const PipeHandle handle = yours.handle();
    yours.close();
    me.tell("answerer", handle.to_text());
    me.hear("answerer");
  }
  for (std::int64_t i = 0; i < 1000; ++i) {
    const Tensor tensor = number(i);
    mine.send(tensor);
    EXPECT_EQ(mine.recv_tensor().data(), tensor.data());
    EXPECT_EQ(number_in(tensor), i + 1);
  }
  mine.send(Message{});
  expect_refusal(ErrorCode::closed, {}, [&, &end = mine] { end.recv(); });
});

const Body answerer("pipe.answerer", [](Role& me) {
  Pipe pipe = Pipe::connect(PipeHandle::from_text(me.hear("asker")));
  me.tell("asker", "connected");
  for (;;) {
    const Message message = pipe.recv();
    if (message.tensors.empty()) break;
    testing::set_element(message.tensors[0], 0, number_in(message.tensors[0]) + 1);
    pipe.send(message.tensors[0]);
  }
});

class PipeIn : public ::testing::TestWithParam<Form> {};

TEST_P(PipeIn, TwoEndsTalk) {
  Watchdog watchdog;
  testing::run_peers(GetParam(), {{"asker", &asker}, {"answerer", &answerer}});
}

INSTANTIATE_TEST_SUITE_P(Forms, PipeIn, ::testing::ValuesIn(testing::kForms),
                         [](const auto& form) { return testing::form_name(form.param); });

class PipeEnd : public ProcessesTest {};

TEST_F(PipeEnd, ThatIsKilledHasSentWhatItHadSent) {
  auto [mine, yours] = Pipe::create();
  Child other([&, &end = yours] {
    for (std::int64_t i = 0; i < 10; ++i) end.send(number(i));
    raise(SIGKILL);
  });
  yours.close();
  EXPECT_EQ(other.join(), -SIGKILL);
  for (std::int64_t i = 0; i < 10; ++i) EXPECT_EQ(number_in(mine.recv_tensor()), i);
  expect_refusal(ErrorCode::closed, {}, [&, &end = mine] { end.recv(); });
}

TEST_F(PipeEnd, ThatDiesWakesAWaitingReceiver) {
  auto [mine, yours] = Pipe::create();
  Child other([] { pause(); });
  yours.close();
  JoinedChild killer([&] { other.signal(SIGKILL); });
  expect_refusal(ErrorCode::closed, {}, [&, &end = mine] { end.recv(); });
}

TEST_F(PipeEnd, InAForkedChildThatHasNotUsedItYetIsThere) {
  auto [mine, yours] = Pipe::create();
  JoinedChild other([&, &end = yours] {
    note->reach(1);
    end.send(number(1));
  });
  yours.close();
  EXPECT_FALSE(mine.poll(250ms));
  note->step = 1;
  EXPECT_EQ(number_in(mine.recv_tensor()), 1);
}

TEST_F(PipeEnd, OutlivesTheProcessThatMadeThePipe) {
  Shared<Note> first, second;
  Child maker([&] {
    auto [a, b] = Pipe::create();
    const PipeHandle for_a = a.handle(), for_b = b.handle();
    first->write(for_a.to_text());
    second->write(for_b.to_text());
    first->reach(2);
    second->reach(2);
    raise(SIGKILL);
  });
  Child other([&] {
    Pipe pipe = Pipe::connect(PipeHandle::from_text(second->read()));
    second->step = 2;
    EXPECT_EQ(number_in(pipe.recv_tensor()), 5);
  });
  Pipe pipe = Pipe::connect(PipeHandle::from_text(first->read()));
  first->step = 2;
  EXPECT_EQ(maker.join(), -SIGKILL);
  pipe.send(number(5));
  EXPECT_EQ(other.join(), 0);
  expect_refusal(ErrorCode::closed, {}, [&] { pipe.recv(); });
}

TEST_F(PipeEnd, SendersNoticeThatNobodyIsThere) {
  auto [mine, yours] = Pipe::create();
  Child other([] { pause(); });
  yours.close();
  mine.send(number(1));
  other.kill();
  expect_refusal(ErrorCode::closed, {}, [&, &end = mine] {
    for (int i = 0; i < 100; ++i) end.send(number(i));
  });
}

}  // namespace
}  // namespace onecopy
