// SPDX-License-Identifier: Apache-2.0
#include "os/unix_socket.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <optional>
#include <string_view>
#include <thread>

#include "expect_error.h"
#include "os/file.h"
#include "os/process.h"
#include "support/child.h"
#include "support/temporary_directory.h"
#include "support/watchdog.h"

namespace onecopy {
namespace {

using namespace std::chrono_literals;
using testing::Child;
using testing::eventually;
using testing::JoinedChild;

ByteSpan bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

std::string text_of(const Packet& packet) {
  return {reinterpret_cast<const char*>(packet.bytes.data()), packet.bytes.size()};
}

SocketName fresh_name(const std::string& what) {
  return {"onecopy-test-" + std::to_string(current_pid()) + "-" + what, true};
}

TEST(UnixSocket, PacketsArriveWholeAndInOrder) {
  auto [a, b] = UnixSocket::pair();
  EXPECT_TRUE(a.try_send(bytes_of("one")));
  EXPECT_TRUE(a.try_send(bytes_of("two, longer")));
  EXPECT_EQ(text_of(b.receive(20s)), "one");
  EXPECT_EQ(text_of(b.receive(20s)), "two, longer");
  EXPECT_FALSE(b.try_receive());
}

/// Between its bind and its listen a socket looks as if it had been left behind.
TEST(UnixSocket, OfTwoThatListenUnderOneNameAtOnceOneIsReached) {
  const TemporaryDirectory directory;
  const SocketName name{directory.path() + "/socket", false};
  for (int i = 0; i < 300; ++i) {
    std::atomic<int> ready{0};
    std::array<std::optional<UnixSocket>, 2> listeners;
    const auto listen = [&](std::optional<UnixSocket>& listener) {
      ++ready;
      while (ready != 2) {
      }
      try {
        listener = UnixSocket::listen(name);
      } catch (const Error& error) {
        EXPECT_EQ(error.vendor_code(), EADDRINUSE) << error.what();
      }
    };
    std::thread other([&] { listen(listeners[1]); });
    listen(listeners[0]);
    other.join();
    ASSERT_NE(listeners[0].has_value(), listeners[1].has_value()) << "in round " << i;
    EXPECT_NO_THROW(UnixSocket::connect(name, 20s)) << "in round " << i;
  }
}

/// Any user may lock a directory that all may read, and a stopped process keeps its lock.
TEST(UnixSocket, ALockOfTheirDirectoryThatOthersKeepHoldsUpNobodyForEver) {
  const TemporaryDirectory directory;
  const Fd held = open_file(directory.path(), O_RDONLY | O_DIRECTORY);
  ASSERT_EQ(::flock(held.get(), LOCK_EX), 0);
  JoinedChild child([&] {
    const SocketName name{directory.path() + "/socket", false};
    const UnixSocket listener = UnixSocket::listen(name);
    EXPECT_NO_THROW(UnixSocket::connect(name, 20s));
  });
}

TEST(UnixSocket, TriesAgainForAsLongAsItIsTold) {
  auto [a, b] = UnixSocket::pair();
  EXPECT_FALSE(b.try_receive_for(1us));
  std::thread later([&a = a] {
    std::this_thread::sleep_for(5ms);
    a.try_send(bytes_of("late"));
  });
  const auto packet = b.try_receive_for(20s);
  later.join();
  ASSERT_TRUE(packet);
  EXPECT_EQ(text_of(*packet), "late");
  a = UnixSocket();
  expect_error(ErrorCode::peer_died, [&b = b] { b.try_receive_for(20s); });
}

TEST(UnixSocket, CarriesPacketsOf192KiB) {
  auto [a, b] = UnixSocket::pair();
  Bytes large(UnixSocket::kMaxPacketBytes);
  for (std::size_t i = 0; i < large.size(); ++i) large[i] = static_cast<std::byte>(i * 31);
  a.send(large, {}, 20s);
  EXPECT_EQ(b.receive(20s).bytes, large);
}

TEST(UnixSocket, PacketsThatCannotArriveAreRefused) {
  auto [a, b] = UnixSocket::pair();
  const Bytes large(UnixSocket::kMaxPacketBytes + 1);
  expect_error(ErrorCode::invalid_argument, [&a = a, &large] { a.try_send(large); });
  expect_error(ErrorCode::invalid_argument, [&a = a] { a.try_send({}); });
}

TEST(UnixSocket, APacketAboveTheLimitFromAStrangerIsAProtocolError) {
  auto [a, b] = UnixSocket::pair();
  const Bytes large(UnixSocket::kMaxPacketBytes + 1);
  ASSERT_EQ(::send(a.fd(), large.data(), large.size(), 0), static_cast<ssize_t>(large.size()));
  expect_error(ErrorCode::protocol, [&b = b] { b.try_receive(); });
}

TEST(UnixSocket, TrySendSaysWhenThePeersBufferIsFull) {
  auto [a, b] = UnixSocket::pair();
  const Bytes packet(64 * 1024);
  int sent = 0;
  while (a.try_send(packet)) ASSERT_LT(++sent, 1000);
  EXPECT_GE(sent, 2);
  expect_error(ErrorCode::timeout, [&a = a, &packet] { a.send(packet, {}, 1ms); });
  for (int i = 0; i < sent; ++i) EXPECT_EQ(b.receive(20s).bytes.size(), packet.size());
  EXPECT_FALSE(b.try_receive());
}

TEST(UnixSocket, SendWaitsUntilThePeerMakesRoom) {
  const testing::Watchdog watchdog;
  auto [a, b] = UnixSocket::pair();
  Child child([&b = b] {
    for (int i = 0; i < 100; ++i) EXPECT_EQ(b.receive(20s).bytes.size(), 65536u);
  });
  const Bytes packet(65536);
  for (int i = 0; i < 100; ++i) a.send(packet, {}, 20s);
  EXPECT_EQ(child.join(), 0);
}

TEST(UnixSocket, ReceiveTimesOutWhenNothingComes) {
  auto [a, b] = UnixSocket::pair();
  expect_error(ErrorCode::timeout, [&b = b] { b.receive(1ms); });
}

TEST(UnixSocket, ReceivingFromAClosedPeerSaysSoAfterTheLastPacket) {
  auto [a, b] = UnixSocket::pair();
  a.try_send(bytes_of("last words"));
  a = UnixSocket();
  EXPECT_EQ(text_of(b.receive(20s)), "last words");
  expect_error(ErrorCode::peer_died, [&b = b] { b.try_receive(); });
  expect_error(ErrorCode::peer_died, [&b = b] { b.try_receive(); });
}

TEST(UnixSocket, APeerThatLeftPacketsUnreadStillDeliversItsOwn) {
  auto [a, b] = UnixSocket::pair();
  b.try_send(bytes_of("never read"));
  a.try_send(bytes_of("last words"));
  a = UnixSocket();  // a reset, because of the unread packet
  EXPECT_EQ(text_of(b.receive(20s)), "last words");
  expect_error(ErrorCode::peer_died, [&b = b] { b.try_receive(); });
}

TEST(UnixSocket, SendingToAClosedPeerIsAnExceptionNotASignal) {
  auto [a, b] = UnixSocket::pair();
  b = UnixSocket();
  JoinedChild child([&a = a] {
    std::signal(SIGPIPE, SIG_DFL);
    expect_error(ErrorCode::peer_died, [&a] { a.try_send(bytes_of("hello")); });
  });
}

TEST(UnixSocket, WaitingGoesOnAfterSignals) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer holds signals back until the wait is over";
#endif
  const testing::Watchdog watchdog;
  auto [a, b] = UnixSocket::pair();
  testing::Shared<std::atomic<int>> signals;
  static std::atomic<int>* counter;
  counter = &*signals;
  JoinedChild child([&b = b, &a = a] {
    a = UnixSocket();
    struct sigaction action {};
    action.sa_handler = [](int) { counter->fetch_add(1); };
    ::sigaction(SIGUSR1, &action, nullptr);
    counter->fetch_add(1);
    EXPECT_EQ(text_of(b.receive(20s)), "after the signals");
  });
  for (int i = 1; i <= 20; ++i) {
    ASSERT_TRUE(eventually([&] { return signals->load() >= i; }));
    child.signal(SIGUSR1);
  }
  ASSERT_TRUE(eventually([&] { return signals->load() > 20; }));
  a.try_send(bytes_of("after the signals"));
}

TEST(UnixSocket, ConnectsToAnAbstractName) {
  const SocketName name = fresh_name("abstract");
  UnixSocket listener = UnixSocket::listen(name);
  EXPECT_FALSE(listener.try_accept());
  UnixSocket client = UnixSocket::connect(name, 20s);
  auto server = listener.try_accept();
  ASSERT_TRUE(server);
  client.try_send(bytes_of("hello"));
  EXPECT_EQ(text_of(server->receive(20s)), "hello");
  for (const int fd : {listener.fd(), client.fd(), server->fd()}) {
    EXPECT_EQ(::fcntl(fd, F_GETFD), FD_CLOEXEC);
    EXPECT_TRUE(::fcntl(fd, F_GETFL) & O_NONBLOCK);
  }
}

TEST(UnixSocket, ConnectingWhereNobodyListensSaysSo) {
  const TemporaryDirectory directory;
  const std::string why =
      expect_error(ErrorCode::peer_died, [] { UnixSocket::connect(fresh_name("nobody"), 20s); });
  EXPECT_PRED2(contains, why, "no process listens");
  expect_error(ErrorCode::peer_died, [&] { UnixSocket::connect({directory / "missing", false}, 20s); });
}

TEST(UnixSocket, ConnectTimesOutWhileTheBacklogIsFull) {
  const SocketName name = fresh_name("backlog");
  const UnixSocket listener = UnixSocket::listen(name, 0);
  const UnixSocket first = UnixSocket::connect(name, 20s);
  expect_error(ErrorCode::timeout, [&] { UnixSocket::connect(name, 10ms); });
  expect_error(ErrorCode::timeout, [&] { UnixSocket::connect(name, 0ms); });
}

TEST(UnixSocket, NamesThatDoNotFitAreRefusedWithTheirLength) {
  const std::string why = expect_error(ErrorCode::invalid_argument, [] {
    UnixSocket::connect({"/" + std::string(120, 'x'), false}, 1s);
  });
  EXPECT_PRED2(contains, why, "121 bytes, at most 107 are possible");
  expect_error(ErrorCode::invalid_argument, [] { UnixSocket::listen({std::string(108, 'x'), true}); });
  expect_error(ErrorCode::invalid_argument, [] { UnixSocket::listen({"", true}); });
  std::string longest = std::to_string(::getpid());
  longest.resize(107, 'x');
  EXPECT_NO_THROW(UnixSocket::listen({longest, true}));
}

TEST(UnixSocket, ANameIsTakenOnce) {
  const SocketName name = fresh_name("taken");
  const UnixSocket listener = UnixSocket::listen(name);
  expect_error(ErrorCode::system, [&] { UnixSocket::listen(name); });
}

TEST(UnixSocket, APathLivesInADirectoryThatOnlyWeMayEnter) {
  const TemporaryDirectory parent;
  const SocketName name{parent / "run/socket", false};
  {
    UnixSocket listener = UnixSocket::listen(name);
    struct stat status {};
    ASSERT_EQ(::stat((parent / "run").c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, 0700u);
    ASSERT_EQ(::stat(name.text.c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0077, 0u);
    const UnixSocket client = UnixSocket::connect(name, 20s);
    EXPECT_TRUE(listener.try_accept());
  }
  EXPECT_NE(::access(name.text.c_str(), F_OK), 0) << "the socket's file was left behind";
}

TEST(UnixSocket, ADirectoryOpenToOthersIsRefused) {
  const TemporaryDirectory parent;
  ASSERT_EQ(::mkdir((parent / "run").c_str(), 0700), 0);
  ASSERT_EQ(::chmod((parent / "run").c_str(), 0755), 0);
  const std::string why = expect_error(ErrorCode::other_user, [&] {
    UnixSocket::listen({parent / "run/socket", false});
  });
  EXPECT_PRED2(contains, why, "chmod 700");
}

TEST(UnixSocket, AFileLeftByADeadListenerIsReplacedALiveOneIsNot) {
  const TemporaryDirectory parent;
  const SocketName name{parent / "run/socket", false};
  Child child([&] {
    const UnixSocket listener = UnixSocket::listen(name);
    ::_exit(0);  // without unlinking
  });
  ASSERT_EQ(child.join(), 0);
  ASSERT_EQ(::access(name.text.c_str(), F_OK), 0);
  UnixSocket listener = UnixSocket::listen(name);
  expect_error(ErrorCode::system, [&] { UnixSocket::listen(name); });
  const UnixSocket client = UnixSocket::connect(name, 20s);
  EXPECT_TRUE(listener.try_accept());
}

TEST(UnixSocket, AForkedChildDoesNotRemoveTheParentsName) {
  const TemporaryDirectory parent;
  const SocketName name{parent / "run/socket", false};
  UnixSocket listener = UnixSocket::listen(name);
  Child child([&] { listener = UnixSocket(); });
  EXPECT_EQ(child.join(), 0);
  EXPECT_EQ(::access(name.text.c_str(), F_OK), 0);
}

TEST(UnixSocket, TellsWhoIsAtTheOtherEnd) {
  const SocketName name = fresh_name("who");
  UnixSocket listener = UnixSocket::listen(name);
  auto [go, gone] = UnixSocket::pair();
  Child child([&, &gone = gone] {
    const UnixSocket client = UnixSocket::connect(name, 20s);
    EXPECT_EQ(client.peer().pid, ::getppid());
    gone.receive(20s);
  });
  std::optional<UnixSocket> server;
  ASSERT_TRUE(eventually([&] { return (server = listener.try_accept()).has_value(); }));
  EXPECT_EQ(server->peer().pid, child.pid());
  EXPECT_EQ(server->peer().uid, ::geteuid());
  const Fd pidfd = server->peer_pidfd();
  EXPECT_FALSE(has_exited(pidfd));
  go.try_send(bytes_of("go"));
  EXPECT_EQ(child.join(), 0);
  EXPECT_TRUE(has_exited(pidfd));
}

TEST(UnixSocket, ListsListeningNamesOnceAndOnlyThose) {
  const SocketName one = fresh_name("list-1");
  const SocketName two = fresh_name("list-2");
  const UnixSocket listener = UnixSocket::listen(one);
  const UnixSocket other = UnixSocket::listen(two);
  const UnixSocket client = UnixSocket::connect(one, 20s);
  const auto names = list_abstract_names(fresh_name("list-").text);
  EXPECT_EQ(names, (std::vector<std::string>{one.text, two.text}));
}

TEST(UnixSocket, TellsWhoseNameItIsAlsoWhenThereIsNoRoomForACaller) {
  const SocketName name = fresh_name("whose");
  EXPECT_FALSE(listening_user(name.text));
  const UnixSocket listener = UnixSocket::listen(name, 0);
  const UnixSocket client = UnixSocket::connect(name, 20s);
  expect_error(ErrorCode::timeout, [&] { UnixSocket::connect(name, 0ms); });
  EXPECT_EQ(listening_user(name.text), ::geteuid());
  EXPECT_FALSE(listening_user(name.text.substr(0, name.text.size() - 1)));
}

TEST(UnixSocket, KnowsOfPacketsThatTheOtherEndHasNotRead) {
  auto [one, other] = UnixSocket::pair();
  EXPECT_EQ(one.unread_bytes(), 0u);
  EXPECT_FALSE(other.is_readable());
  one.try_send(bytes_of("1"));
  const std::size_t first = one.unread_bytes();
  EXPECT_GT(first, 0u);
  EXPECT_TRUE(other.is_readable());
  one.try_send(bytes_of("2"));
  EXPECT_EQ(one.unread_bytes(), 2 * first);
  other.receive(20s);
  other.receive(20s);
  EXPECT_EQ(one.unread_bytes(), 0u);
  one = UnixSocket();
  EXPECT_TRUE(other.is_readable()) << "the end";
}

TEST(UnixSocket, ListsNoNameThatIsGone) {
  const SocketName name = fresh_name("vanished");
  { const UnixSocket listener = UnixSocket::listen(name); }
  EXPECT_TRUE(list_abstract_names(name.text).empty());
}

}  // namespace
}  // namespace onecopy
