// SPDX-License-Identifier: Apache-2.0
#include "onecopy/channel/listener.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <thread>

#include "onecopy/core/error.h"
#include "onecopy/os/stream_socket.h"
#include "onecopy/share/share.h"
#include "support/refusal.h"
#include "support/watchdog.h"

namespace onecopy {
namespace {

using namespace std::chrono_literals;
using testing::expect_refusal;
using testing::Watchdog;

Bytes key_of(std::string_view text) {
  const ByteSpan bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

class ListenerAt : public ::testing::TestWithParam<const char*> {
 protected:
  std::string address() const {
    const std::string form = GetParam();
    return form == "tcp" ? "tcp:127.0.0.1:0" : fmt::format("unix:@onecopy-test-{}", ::getpid());
  }
};

TEST_P(ListenerAt, MakesAPipeWithWhoeverKnowsTheKey) {
  Watchdog watchdog;
  Listener listener = Listener::listen(address(), key_of("secret"));
  std::thread client([&] {
    Pipe pipe = connect(listener.address(), key_of("secret"));
    Tensor tensor = pipe.recv_tensor();
    tensor.as<int>()[1] = 42;
    pipe.send(Message{1, {}, {}});
  });
  Pipe pipe = listener.accept();
  const Tensor tensor = empty(Layout(DType::i32, {2}));
  pipe.send(tensor);
  EXPECT_EQ(pipe.recv().tag, 1u);
  EXPECT_EQ(tensor.as<int>()[1], 42);
  client.join();
}

TEST_P(ListenerAt, RefusesAnotherKeyOnBothSidesAndGoesOn) {
  Watchdog watchdog;
  Listener listener = Listener::listen(address(), key_of("secret"));
  std::thread stranger([&] {
    expect_refusal(ErrorCode::bad_secret, {"another key"},
                   [&] { connect(listener.address(), key_of("guess")); });
  });
  expect_refusal(ErrorCode::bad_secret, {"does not know"}, [&] { listener.accept(); });
  stranger.join();
  std::thread client([&] { connect(listener.address(), key_of("secret")).send(Message{2, {}, {}}); });
  EXPECT_EQ(listener.accept().recv().tag, 2u);
  client.join();
}

TEST_P(ListenerAt, IsNotHeldUpBySilentClients) {
  Watchdog watchdog;
  Listener listener = Listener::listen(address(), key_of("secret"));
  StreamSocket silent = StreamSocket::connect(listener.address(), 5s);
  StreamSocket halfway = StreamSocket::connect(listener.address(), 5s);
  halfway.send_all(Bytes(10), 5s);
  { StreamSocket gone = StreamSocket::connect(listener.address(), 5s); }
  std::thread client([&] { connect(listener.address(), key_of("secret")).send(Message{3, {}, {}}); });
  EXPECT_EQ(listener.accept().recv().tag, 3u);
  client.join();
}

TEST_P(ListenerAt, GivesUpAtTheTimeout) {
  Listener listener = Listener::listen(address(), key_of("secret"));
  EXPECT_FALSE(listener.try_accept(5ms));
  expect_refusal(ErrorCode::timeout, {}, [&] { connect(listener.address(), key_of("secret"), 20ms); });
  expect_refusal(ErrorCode::invalid_argument, {"key"}, [&] { connect(listener.address(), {}); });
}

TEST_P(ListenerAt, IsAskedAgainByAClientThatWasNotAnsweredYet) {
  Watchdog watchdog;
  Listener listener = Listener::listen(address(), key_of("secret"));
  Connecting connecting(listener.address(), key_of("secret"));
  EXPECT_FALSE(connecting.try_finish(0ms));
  EXPECT_FALSE(connecting.try_finish(5ms));
  std::thread server([&] { listener.accept().send(Message{4, {}, {}}); });
  std::optional<Pipe> pipe;
  while (!pipe) pipe = connecting.try_finish(1ms);
  EXPECT_EQ(pipe->recv().tag, 4u);
  server.join();
}

INSTANTIATE_TEST_SUITE_P(Addresses, ListenerAt, ::testing::Values("unix", "tcp"),
                         [](const auto& form) { return std::string(form.param); });

}  // namespace
}  // namespace onecopy
