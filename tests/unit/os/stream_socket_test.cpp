// SPDX-License-Identifier: Apache-2.0
#include "os/stream_socket.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <optional>
#include <string>
#include <thread>

#include "expect_error.h"
#include "support/child.h"
#include "support/temporary_directory.h"
#include "support/watchdog.h"

namespace onecopy {
namespace {

using namespace std::chrono_literals;
using testing::Child;

/// Every kind of address, made new for each test.
class StreamSocketTest : public ::testing::TestWithParam<std::string> {
 protected:
  std::string address() const {
    if (GetParam() == "path") return "unix:" + directory_.path() + "/run/socket";
    if (GetParam() == "abstract") return "unix:@onecopy-test-" + std::to_string(::getpid());
    return GetParam();
  }

 private:
  TemporaryDirectory directory_;
  testing::Watchdog watchdog_;
};

INSTANTIATE_TEST_SUITE_P(Addresses, StreamSocketTest,
                         ::testing::Values("path", "abstract", "tcp:127.0.0.1:0", "tcp:localhost:0"),
                         [](const auto& test) {
                           const std::string& name = test.param;
                           if (name == "tcp:127.0.0.1:0") return std::string("TcpNumber");
                           return name == "tcp:localhost:0" ? std::string("TcpName") : name;
                         });

TEST_P(StreamSocketTest, ConnectsTwoProcesses) {
  StreamSocket listener = StreamSocket::listen(address());
  Child child([&] {
    StreamSocket client = StreamSocket::connect(listener.address(), 20s);
    std::uint32_t value = 0;
    client.receive_exactly(std::as_writable_bytes(std::span(&value, 1)), 20s);
    ++value;
    client.send_all(std::as_bytes(std::span(&value, 1)), 20s);
  });
  StreamSocket server = listener.accept(20s);
  std::uint32_t value = 41;
  server.send_all(std::as_bytes(std::span(&value, 1)), 20s);
  server.receive_exactly(std::as_writable_bytes(std::span(&value, 1)), 20s);
  EXPECT_EQ(value, 42u);
  EXPECT_EQ(child.join(), 0);
}

TEST_P(StreamSocketTest, SendsMoreThanTheBuffersHold) {
  StreamSocket listener = StreamSocket::listen(address());
  constexpr std::size_t kBytes = 16 << 20;
  Child child([&] {
    StreamSocket client = StreamSocket::connect(listener.address(), 20s);
    client.send_all(Bytes(kBytes, std::byte{9}), 20s);
  });
  StreamSocket server = listener.accept(20s);
  Bytes received(kBytes);
  server.receive_exactly(received, 20s);
  EXPECT_EQ(received, Bytes(kBytes, std::byte{9}));
  EXPECT_EQ(child.join(), 0);
}

TEST_P(StreamSocketTest, TimesOutInsteadOfWaitingForEver) {
  StreamSocket listener = StreamSocket::listen(address());
  expect_error(ErrorCode::timeout, [&] { listener.accept(1ms); });
  StreamSocket client = StreamSocket::connect(listener.address(), 20s);
  std::byte byte;
  expect_error(ErrorCode::timeout, [&] { client.receive_exactly(std::span(&byte, 1), 1ms); });
  const Bytes large(64 << 20);
  expect_error(ErrorCode::timeout, [&] { client.send_all(large, 10ms); });
}

TEST_P(StreamSocketTest, SaysWhenThePeerIsGone) {
  StreamSocket listener = StreamSocket::listen(address());
  StreamSocket client = StreamSocket::connect(listener.address(), 20s);
  listener.accept(20s);
  std::byte byte;
  expect_error(ErrorCode::peer_died, [&] { client.receive_exactly(std::span(&byte, 1), 20s); });
  const Bytes large(64 << 20);
  expect_error(ErrorCode::peer_died, [&] { client.send_all(large, 20s); });
}

TEST_P(StreamSocketTest, SaysWhenNobodyListensAnyMore) {
  std::string where;
  {
    const StreamSocket listener = StreamSocket::listen(address());
    where = listener.address();
  }
  expect_error(ErrorCode::peer_died, [&] { StreamSocket::connect(where, 20s); });
}

// A client that was connecting when the listener closed got "Connection reset by peer", a system error, for a death.
TEST_P(StreamSocketTest, SaysThatAListenerIsGoneThatClosesWhileItConnects) {
  const std::string where = address();
  for (int round = 0; round < 60; ++round) {
    std::optional<StreamSocket> listener = StreamSocket::listen(where);
    std::thread client([at = listener->address()] {
      expect_error(ErrorCode::peer_died, [&] {
        for (;;) StreamSocket::connect(at, 20s);
      });
    });
    std::this_thread::sleep_for(std::chrono::microseconds(round));
    listener.reset();
    client.join();
  }
}

TEST_P(StreamSocketTest, AnAddressIsTakenOnce) {
  const StreamSocket listener = StreamSocket::listen(address());
  expect_error(ErrorCode::system, [&] { StreamSocket::listen(listener.address()); });
}

TEST(StreamSocket, AListenerOnAnyPortKnowsTheRealOne) {
  const StreamSocket listener = StreamSocket::listen("tcp:localhost:0");
  EXPECT_EQ(listener.address().rfind("tcp:127.0.0.1:", 0), 0u);
  EXPECT_GT(std::stoi(listener.address().substr(14)), 0);
}

TEST(StreamSocket, OnlyUnixSocketsKnowTheirPeer) {
  StreamSocket tcp = StreamSocket::listen("tcp:127.0.0.1:0");
  EXPECT_FALSE(StreamSocket::connect(tcp.address(), 20s).peer());
  StreamSocket local = StreamSocket::listen("unix:@onecopy-test-peer-" + std::to_string(::getpid()));
  const auto peer = StreamSocket::connect(local.address(), 20s).peer();
  ASSERT_TRUE(peer);
  EXPECT_EQ(peer->pid, ::getpid());
  EXPECT_EQ(peer->uid, ::geteuid());
}

TEST(StreamSocket, APathIsForOurUserOnlyAndRemovedWithItsListener) {
  const TemporaryDirectory directory;
  {
    const StreamSocket listener = StreamSocket::listen("unix:" + directory / "socket");
    struct stat status {};
    ASSERT_EQ(::stat((directory / "socket").c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0077, 0u);
  }
  EXPECT_NE(::access((directory / "socket").c_str(), F_OK), 0);
}

TEST(StreamSocket, OtherAddressesAreRefusedWithExamples) {
  for (const char* address :
       {"", "socket", "tcp:", "tcp:127.0.0.1", "tcp:127.0.0.1:", "tcp:127.0.0.1:x", "tcp:127.0.0.1:65536",
        "tcp:127.0.0.1:-1", "tcp:10.0.0.1:80", "udp:127.0.0.1:1"}) {
    const std::string why =
        expect_error(ErrorCode::invalid_argument, [&] { StreamSocket::listen(address); });
    EXPECT_PRED2(contains, why, "tcp:127.0.0.1:port");
  }
  expect_error(ErrorCode::invalid_argument, [] { StreamSocket::listen("unix:@"); });
  expect_error(ErrorCode::invalid_argument, [] { StreamSocket::connect("unix:", 1s); });
}

}  // namespace
}  // namespace onecopy
