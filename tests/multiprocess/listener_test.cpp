// SPDX-License-Identifier: Apache-2.0
#include "onecopy/channel/listener.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>

#include "onecopy/core/error.h"
#include "onecopy/share/share.h"
#include "support/child.h"
#include "support/die_at.h"
#include "support/note.h"
#include "support/peer_group.h"
#include "support/refusal.h"
#include "support/watchdog.h"

namespace onecopy {
namespace {

using testing::Body;
using testing::Child;
using testing::die_at;
using testing::expect_refusal;
using testing::Form;
using testing::JoinedChild;
using testing::Note;
using testing::Role;
using testing::Shared;
using testing::Watchdog;

ByteSpan key() { return std::as_bytes(std::span("a key")); }

const Body server("listener.server", [](Role& me) {
  Listener listener = Listener::listen("tcp:127.0.0.1:0", key());
  me.tell("client", listener.address());
  me.tell("client2", listener.address());
  for (int i = 0; i < 2; ++i) {
    Pipe pipe = listener.accept();
    const Tensor tensor = empty(Layout(DType::i32, {1}));
    *tensor.as<int>() = 20;
    pipe.send(tensor);
    EXPECT_EQ(*pipe.recv_tensor().as<int>(), 21);
  }
});

const Body client("listener.client", [](Role& me) {
  Pipe pipe = connect(me.hear("server"), key());
  const Tensor tensor = pipe.recv_tensor();
  ++*tensor.as<int>();
  pipe.send(tensor);
});

class ListenerIn : public ::testing::TestWithParam<Form> {};

TEST_P(ListenerIn, ServesSeveralClients) {
  Watchdog watchdog;
  testing::run_peers(GetParam(), {{"server", &server}, {"client", &client}, {"client2", &client}});
}

INSTANTIATE_TEST_SUITE_P(Forms, ListenerIn, ::testing::ValuesIn(testing::kForms),
                         [](const auto& form) { return testing::form_name(form.param); });

std::string point_name(const ::testing::TestParamInfo<const char*>& point) {
  std::string name = point.param;
  std::replace(name.begin(), name.end(), '.', '_');
  return name;
}

class ClientDies : public ::testing::TestWithParam<const char*> {};

TEST_P(ClientDies, TheListenerServesTheNext) {
  Watchdog watchdog;
  Listener listener = Listener::listen("tcp:127.0.0.1:0", key());
  Shared<Note> note;
  Child victim([&] {
    die_at(GetParam());
    connect(listener.address(), key());
  });
  JoinedChild next([&] {
    note->reach(1);
    connect(listener.address(), key()).send(Message{4, {}, {}});
  });
  while (!victim.has_ended()) listener.try_accept(std::chrono::milliseconds(10));
  EXPECT_EQ(victim.join(), -SIGKILL) << "the point was not reached";
  note->step = 1;
  EXPECT_EQ(listener.accept().recv().tag, 4u);
}

INSTANTIATE_TEST_SUITE_P(Points, ClientDies,
                         ::testing::Values("queue.connect.opened", "queue.connect.joined",
                                           "listener.pipe_opened"),
                         point_name);

class ServerDies : public ::testing::TestWithParam<const char*> {};

TEST_P(ServerDies, TheClientIsTold) {
  Watchdog watchdog;
  Shared<Note> note;
  Child victim([&] {
    die_at(GetParam());
    Listener listener = Listener::listen("tcp:127.0.0.1:0", key());
    note->write(listener.address());
    listener.accept();
  });
  try {
    Pipe pipe = connect(note->read(), key());
    pipe.recv();
    ADD_FAILURE() << "a message from the dead";
  } catch (const Error& error) {
    const auto code = error.code();
    EXPECT_TRUE(code == ErrorCode::peer_died || code == ErrorCode::closed || code == ErrorCode::owner_died)
        << error.what();
  }
  EXPECT_EQ(victim.join(), -SIGKILL) << "the point was not reached";
}

INSTANTIATE_TEST_SUITE_P(Points, ServerDies,
                         ::testing::Values("listener.pipe_made", "listener.pipe_sent",
                                           "queue.create.adopted"),
                         point_name);

}  // namespace
}  // namespace onecopy
