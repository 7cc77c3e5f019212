// SPDX-License-Identifier: Apache-2.0
#include "onecopy/channel/listener.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <filesystem>
#include <iterator>
#include <thread>
#include <vector>

#include "core/point.h"
#include "onecopy/core/error.h"
#include "onecopy/share/share.h"
#include "os/stream_socket.h"
#include "support/child.h"
#include "support/limits.h"
#include "support/note.h"
#include "support/refusal.h"
#include "support/watchdog.h"

namespace onecopy {
namespace {

using namespace std::chrono_literals;
using testing::Child;
using testing::expect_refusal;
using testing::Note;
using testing::Shared;
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

TEST_P(ListenerAt, RefusesAnotherKeyOnBothSidesAndWaitsOn) {
  Watchdog watchdog;
  Listener listener = Listener::listen(address(), key_of("secret"));
  std::thread client([&] {
    for (int i = 0; i < 3; ++i)
      expect_refusal(ErrorCode::bad_secret, {"another key"},
                     [&] { connect(listener.address(), key_of("guess")); });
    connect(listener.address(), key_of("secret")).send(Message{2, {}, {}});
  });
  EXPECT_EQ(listener.refused(), 0u);
  EXPECT_EQ(listener.accept().recv().tag, 2u);
  EXPECT_EQ(listener.refused(), 3u);
  client.join();
}

TEST_P(ListenerAt, SaysOnceThatItRefusesClients) {
  Watchdog watchdog;
  Listener listener = Listener::listen(address(), key_of("secret"));
  std::thread stranger([&] {
    for (int i = 0; i < 2; ++i)
      expect_refusal(ErrorCode::bad_secret, {}, [&] { connect(listener.address(), key_of("guess")); });
  });
  ::testing::internal::CaptureStderr();
  while (listener.refused() < 2) EXPECT_FALSE(listener.try_accept(10ms));
  const std::string log = ::testing::internal::GetCapturedStderr();
  stranger.join();
  const std::size_t said = log.find("does not know its key");
  EXPECT_NE(said, std::string::npos) << log;
  EXPECT_EQ(log.find("does not know its key", said + 1), std::string::npos) << log;
  EXPECT_NE(log.find(listener.address()), std::string::npos) << log;
}

/// More than the process may have descriptors. They come again when they are dropped.
class HalfOpen {
 public:
  HalfOpen(std::string address, std::size_t count) : address_(std::move(address)), sockets_(count) {}
  void come() {
    for (StreamSocket& socket : sockets_) {
      std::byte byte;
      const bool is_dropped = socket && ::recv(socket.fd(), &byte, 1, MSG_DONTWAIT | MSG_PEEK) == 0;
      if (!socket || is_dropped) try_connect(socket);
    }
  }

 private:
  void try_connect(StreamSocket& socket) {
    try {
      socket = StreamSocket::connect(address_, 0ms);
    } catch (const Error&) {  // its backlog is full
      socket = StreamSocket();
    }
  }

  std::string address_;
  std::vector<StreamSocket> sockets_;
};

std::size_t open_descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

TEST_P(ListenerAt, KeepsDescriptorsAndAnswersHonestClientsAmongStrangers) {
  Watchdog watchdog;
  constexpr std::size_t kDescriptors = 64;
  Shared<Note> note;
  Child server([&] {
    const testing::Limit limit(RLIMIT_NOFILE, kDescriptors);
    Listener listener = Listener::listen(address(), key_of("secret"));
    note->write(listener.address());
    std::size_t most = 0;
    std::optional<Pipe> pipe;
    while (!pipe) {
      pipe = listener.try_accept(20ms);
      most = std::max(most, open_descriptors());
    }
    pipe->send(Message{5, {}, {}});
    EXPECT_LT(most, kDescriptors - 16);
    note->reach(2);
  });
  HalfOpen strangers(note->read(), 200);
  strangers.come();
  ConnectionAttempt honest(note->read(), key_of("secret"));
  std::optional<Pipe> pipe;
  while (!pipe) {
    strangers.come();
    pipe = honest.try_finish(20ms);
  }
  EXPECT_EQ(pipe->recv().tag, 5u);
  note->step = 2;
  EXPECT_EQ(server.join(), 0);
}

std::atomic<int> turns{0};

TEST_P(ListenerAt, DoesNotLookAgainAndAgainAtAClientThatHasSaidHalf) {
  Watchdog watchdog;
  Listener listener = Listener::listen(address(), key_of("secret"));
  StreamSocket halfway = StreamSocket::connect(listener.address(), 5s);
  halfway.send_all(Bytes(10), 5s);
  EXPECT_FALSE(listener.try_accept(20ms));
  turns = 0;
  point_hook = [](const char* name) noexcept { turns += std::string_view(name) == "listener.turn"; };
  EXPECT_FALSE(listener.try_accept(300ms));
  point_hook = nullptr;
  EXPECT_LE(turns, 10) << "one for each tenth of a second, and a few";
}

TEST(Listener, RefusesOtherUsersOfAUnixSocketAndWaitsOn) {
  if (::geteuid() != 0) GTEST_SKIP() << "wants to be root, who may become another user";
  Watchdog watchdog;
  Listener listener =
      Listener::listen(fmt::format("unix:@onecopy-test-users-{}", ::getpid()), key_of("secret"));
  Child other([&] {
    ASSERT_EQ(::setresuid(65533, 65533, 65533), 0);
    expect_refusal(ErrorCode::other_user, {"uid 0", "uid 65533"},
                   [&] { connect(listener.address(), key_of("secret")); });
    StreamSocket raw = StreamSocket::connect(listener.address(), 5s);
    std::array<std::byte, 1> greeting;
    expect_refusal(ErrorCode::peer_died, {}, [&] { raw.receive_exactly(greeting, 20s); });
  });
  while (!other.has_ended()) EXPECT_FALSE(listener.try_accept(10ms));
  EXPECT_EQ(other.join(), 0);
  EXPECT_GE(listener.refused(), 1u);
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
  ConnectionAttempt connecting(listener.address(), key_of("secret"));
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
