// SPDX-License-Identifier: Apache-2.0
#include "os/poller.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <list>

#include "expect_error.h"
#include "os/process.h"
#include "os/unix_socket.h"
#include "support/child.h"
#include "support/watchdog.h"

namespace onecopy {
namespace {

using namespace std::chrono_literals;
using Tokens = std::vector<std::uint64_t>;

TEST(Event, IsReadableWhileItIsSet) {
  Event event;
  Poller poller;
  poller.add(event.fd(), 7);
  EXPECT_EQ(poller.wait(0ms), Tokens{});
  event.set();
  event.set();
  EXPECT_EQ(poller.wait(20s), Tokens{7});
  EXPECT_EQ(poller.wait(20s), Tokens{7});
  event.clear();
  EXPECT_EQ(poller.wait(0ms), Tokens{});
  event.clear();
  event.set();
  EXPECT_EQ(poller.wait(20s), Tokens{7});
}

TEST(Poller, TellsOnlyTheDescriptorsThatAreReady) {
  std::list<Event> events(5);
  Poller poller;
  std::uint64_t token = 10;
  for (const Event& event : events) poller.add(event.fd(), token++);
  std::next(events.begin(), 1)->set();
  std::next(events.begin(), 3)->set();
  Tokens ready = poller.wait(20s);
  std::sort(ready.begin(), ready.end());
  EXPECT_EQ(ready, (Tokens{11, 13}));
}

TEST(Poller, EdgeTriggeredReportsEachChangeOnce) {
  Event event;
  Poller poller;
  poller.add(event.fd(), 1, true);
  event.set();
  EXPECT_EQ(poller.wait(20s), Tokens{1});
  EXPECT_EQ(poller.wait(0ms), Tokens{});
  poller.rearm(event.fd(), 2, true);
  EXPECT_EQ(poller.wait(20s), Tokens{2});
  EXPECT_EQ(poller.wait(0ms), Tokens{});
}

TEST(Poller, RemovedDescriptorsAreSilent) {
  Event event;
  Poller poller;
  poller.add(event.fd(), 1);
  event.set();
  poller.remove(event.fd());
  poller.remove(event.fd());
  EXPECT_EQ(poller.wait(0ms), Tokens{});
}

TEST(Poller, ReportsAClosedPeer) {
  auto [a, b] = UnixSocket::pair();
  Poller poller;
  poller.add(b.fd(), 3, true);
  a = UnixSocket();
  EXPECT_EQ(poller.wait(20s), Tokens{3});
}

TEST(Poller, ReportsTheExitOfAProcess) {
  testing::Child child([] { ::pause(); });
  const Fd pidfd = open_pidfd(child.pid());
  Poller poller;
  poller.add(pidfd.get(), 4);
  EXPECT_EQ(poller.wait(0ms), Tokens{});
  child.kill();
  EXPECT_EQ(poller.wait(20s), Tokens{4});
}

TEST(Poller, ReportsRoomToSendWhenAskedTo) {
  auto [a, b] = UnixSocket::pair();
  const Bytes packet(64 * 1024);
  while (a.try_send(packet)) {
  }
  Poller poller;
  poller.add(a.fd(), 5);
  poller.rearm(a.fd(), 5, false, true);
  EXPECT_EQ(poller.wait(0ms), Tokens{});
  while (b.try_receive()) {
  }
  EXPECT_EQ(poller.wait(20s), Tokens{5});
  poller.rearm(a.fd(), 5);
  EXPECT_EQ(poller.wait(0ms), Tokens{});
}

TEST(Poller, DescriptorsCanBeAddedWhileAnotherThreadWaits) {
  const testing::Watchdog watchdog;
  Event event;
  event.set();
  Poller poller;
  std::thread waiter([&] { EXPECT_EQ(poller.wait(20s), Tokens{9}); });
  poller.add(event.fd(), 9);
  waiter.join();
}

TEST(Poller, AddingTwiceIsAnError) {
  const Event event;
  Poller poller;
  poller.add(event.fd(), 1);
  expect_error(ErrorCode::system, [&] { poller.add(event.fd(), 2); });
}

}  // namespace
}  // namespace onecopy
