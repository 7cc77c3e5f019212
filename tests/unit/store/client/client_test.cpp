// SPDX-License-Identifier: Apache-2.0
#include "store/client/client.h"

#include <gtest/gtest.h>
#include <poll.h>

#include <chrono>
#include <regex>
#include <stop_token>
#include <thread>
#include <vector>

#include "support/refusal.h"
#include "support/temporary_directory.h"
#include "support/watchdog.h"

namespace onecopy::store {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

/// Listens in the place of a keeper, closes each connection for a while, and then leaves connections without an answer.
class FailingKeeper {
 public:
  FailingKeeper(const StoreDirectory& place, std::chrono::milliseconds closes)
      : listener_(UnixSocket::listen(place.socket())), thread_([this, closes](const std::stop_token& stop) {
          const auto begin = Clock::now();
          while (!stop.stop_requested()) {
            if (!Deadline(10ms).wait_for(listener_.fd(), POLLIN)) continue;
            auto client = listener_.try_accept();
            if (client && Clock::now() - begin > closes) left_.push_back(std::move(*client));
          }
        }) {}

 private:
  UnixSocket listener_;
  std::vector<UnixSocket> left_;
  std::jthread thread_;
};

/// The time of the last connection alone would be shorter, and 0 ms for one that was made at the end.
TEST(StoreClient, SaysForHowLongTheKeeperHasNotAnswered) {
  constexpr auto kPatience = 400ms;
  const testing::Watchdog watchdog;
  const TemporaryDirectory directory;
  const StoreDirectory place(directory / "store");
  place.ensure();
  const Fd lock = place.try_lock();
  place.make_secret();
  const FailingKeeper keeper(place, 300ms);
  const auto client = std::make_shared<Client>(place, ConnectOptions{.autostart = false});
  const auto begin = Clock::now();
  const std::string text = testing::expect_refusal(ErrorCode::timeout, {"has not answered for"},
                                                   [&] { client->welcome(Deadline::after(kPatience)); });
  const auto took = Clock::now() - begin;
  std::smatch found;
  ASSERT_TRUE(std::regex_search(text, found, std::regex("([0-9]+) ms"))) << text;
  const std::chrono::milliseconds named(std::stoi(found[1]));
  EXPECT_GE(named, kPatience);
  EXPECT_LE(named, std::chrono::ceil<std::chrono::milliseconds>(took));
}

}  // namespace
}  // namespace onecopy::store
