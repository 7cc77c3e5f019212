// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <string_view>

#include "expect_error.h"
#include "os/mapping.h"
#include "os/memfd.h"
#include "os/unix_socket.h"
#include "support/child.h"

namespace onecopy {
namespace {

using namespace std::chrono_literals;
using testing::Child;
using testing::JoinedChild;

ByteSpan hello() { return std::as_bytes(std::span(std::string_view("hello"))); }

std::size_t count_open_descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

void limit_descriptors_to(rlim_t count) {
  const rlimit limit{count, count};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
}

TEST(SentDescriptors, AreTheSameMemoryInAnotherProcess) {
  auto [a, b] = UnixSocket::pair();
  Child child([&b = b] {
    const Packet packet = b.receive(20s);
    ASSERT_EQ(packet.fds.size(), 1u);
    EXPECT_EQ(::fcntl(packet.fds[0].get(), F_GETFD), FD_CLOEXEC);
    *Mapping::of(packet.fds[0], 4096, Access::read_write).as<int>() = 77;
  });
  const Fd memory = create_memfd("test", 4096);
  const int fds[] = {memory.get()};
  ASSERT_TRUE(a.try_send(hello(), fds));
  EXPECT_EQ(child.join(), 0);
  EXPECT_EQ(*Mapping::of(memory, 4096, Access::read_only).as<int>(), 77);
}

TEST(SentDescriptors, Up253FitInOnePacketAndNoneLeaks) {
  const std::size_t before = count_open_descriptors();
  {
    auto [a, b] = UnixSocket::pair();
    const std::vector<int> fds(UnixSocket::kMaxPacketFds, a.fd());
    ASSERT_TRUE(a.try_send(hello(), fds));
    const Packet packet = b.receive(20s);
    EXPECT_EQ(packet.fds.size(), fds.size());
    EXPECT_EQ(packet.bytes.size(), hello().size());
  }
  EXPECT_EQ(count_open_descriptors(), before);
}

TEST(SentDescriptors, MoreThan253AreRefused) {
  auto [a, b] = UnixSocket::pair();
  const std::vector<int> fds(254, a.fd());
  const std::string why =
      expect_error(ErrorCode::invalid_argument, [&a = a, &fds] { a.try_send(hello(), fds); });
  EXPECT_PRED2(contains, why, "253");
}

TEST(SentDescriptors, ClosedOnesAreRefused) {
  auto [a, b] = UnixSocket::pair();
  const int fds[] = {-1};
  expect_error(ErrorCode::invalid_argument, [&a = a, &fds] { a.try_send(hello(), fds); });
}

TEST(SentDescriptors, ThatDidNotAllArriveAreAnErrorAndTheOthersAreClosed) {
  auto [a, b] = UnixSocket::pair();
  JoinedChild child([&a = a, &b = b] {
    const std::vector<int> fds(20, a.fd());
    ASSERT_TRUE(a.try_send(hello(), fds));
    const std::size_t before = count_open_descriptors();
    limit_descriptors_to(static_cast<rlim_t>(before + 5));
    const std::string why = expect_error(ErrorCode::out_of_descriptors, [&b] { b.try_receive(); });
    EXPECT_PRED2(contains, why, "ulimit -n");
    EXPECT_EQ(count_open_descriptors(), before);
    EXPECT_FALSE(b.try_receive());  // the packet is gone, the connection is not
    ASSERT_TRUE(a.try_send(hello()));
    EXPECT_EQ(b.receive(20s).bytes.size(), hello().size());
  });
}

TEST(SentDescriptors, AcceptSaysWhenDescriptorsRunOutAndTheConnectionWaits) {
  JoinedChild child([] {
    const SocketName name{"onecopy-test-accept-" + std::to_string(::getpid()), true};
    UnixSocket listener = UnixSocket::listen(name);
    const UnixSocket client = UnixSocket::connect(name, 20s);
    rlimit usual{};
    ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &usual), 0);
    const rlimit none{0, usual.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
    expect_error(ErrorCode::out_of_descriptors, [&] { listener.try_accept(); });
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &usual), 0);
    EXPECT_TRUE(listener.try_accept());
  });
}

}  // namespace
}  // namespace onecopy
