// SPDX-License-Identifier: Apache-2.0
// The directories of a keeper: who gets them, what is made again, and when a worker looks.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <optional>

#include "onecopy/core/error.h"
#include "store/keeper/directory_watch.h"
#include "store/keeper/keeper_directories.h"

namespace onecopy::store {
namespace {

using State = KeeperDirectories::State;
using namespace std::chrono_literals;

class KeeperDirectoriesTest : public ::testing::Test {
 protected:
  KeeperDirectoriesTest() {
    std::filesystem::create_directories(parent_);
    std::filesystem::permissions(parent_, std::filesystem::perms::owner_all);
    EXPECT_TRUE(held_.try_take());
    std::tie(listener_, secret_) = held_.listen();
  }
  ~KeeperDirectoriesTest() override { std::filesystem::remove_all(parent_); }

  State poll() {
    std::optional<UnixSocket> listener;
    const State state = held_.poll(listener, secret_);
    if (listener) listener_ = std::move(*listener);
    return state;
  }
  bool can_connect() const {
    try {
      UnixSocket::connect(place_.socket(), 1s);
      return place_.secret() == secret_;
    } catch (const Error&) {
      return false;
    }
  }

  const std::string parent_ = ::testing::TempDir() + "onecopy-directories-" + std::to_string(::getpid());
  const StoreDirectory place_{parent_ + "/store"};
  KeeperDirectories held_{place_};
  UnixSocket listener_;
  Digest secret_{};
};

TEST(PlacesOfThisUser, AreRefusedInARelativeDirectory) {
  for (const char* const variable : {"ONECOPY_STORE_DIR", "ONECOPY_RUNTIME_DIR"}) {
    const char* const set = std::getenv(variable);
    const std::string before = set ? set : "";
    ::setenv(variable, "here", 1);
    try {
      StoreDirectories::of_this_user();
      ADD_FAILURE() << "a relative path was taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      EXPECT_NE(std::string(error.what()).find(std::string(variable) + " is \"here\""), std::string::npos);
    }
    ::setenv(variable, before.c_str(), 1);
  }
}

TEST_F(KeeperDirectoriesTest, HaveOneKeeper) {
  EXPECT_FALSE(KeeperDirectories(place_).try_take());
  std::filesystem::remove_all(place_.path());
  EXPECT_FALSE(KeeperDirectories(place_).try_take()) << "the directory is a new one, and the keeper lives";
}

TEST_F(KeeperDirectoriesTest, AreWholeUntilAFileIsRemoved) {
  EXPECT_EQ(poll(), State::whole);
  for (const char* const name : {"/secret", "/keeper"}) {
    std::filesystem::remove(place_.path() + name);
    EXPECT_FALSE(can_connect());
    EXPECT_EQ(poll(), State::made_again) << name;
    EXPECT_TRUE(can_connect()) << name;
  }
  std::filesystem::remove_all(place_.path());
  EXPECT_EQ(poll(), State::made_again);
  EXPECT_TRUE(can_connect());
  EXPECT_EQ(poll(), State::whole);
}

TEST_F(KeeperDirectoriesTest, AreLostWhileNoDirectoryCanBeMade) {
  std::filesystem::remove_all(parent_);
  EXPECT_EQ(poll(), State::lost);
  std::filesystem::create_directories(parent_);
  EXPECT_EQ(poll(), State::made_again);
  EXPECT_TRUE(can_connect());
}

TEST_F(KeeperDirectoriesTest, LeaveNoSocket) {
  held_.leave();
  EXPECT_FALSE(std::filesystem::exists(place_.socket().text));
}

TEST_F(KeeperDirectoriesTest, AreLookedAfterEachMinuteAndWhenAProcessRings) {
  DirectoryWatch::Clock::time_point now{};
  DirectoryWatch watch(now);
  std::optional<UnixSocket> listener;
  const auto poll = [&] { return watch.poll(now, held_, listener, secret_); };
  EXPECT_EQ(poll(), State::whole) << "at the start";
  std::filesystem::remove(place_.path() + "/secret");
  now += DirectoryWatch::kInterval - 1ns;
  EXPECT_EQ(poll(), State::whole) << "too early to see it";
  now += 1ns;
  EXPECT_EQ(watch.next(), now);
  EXPECT_EQ(poll(), State::made_again);
  std::filesystem::remove(place_.path() + "/secret");
  watch.ring();
  EXPECT_EQ(poll(), State::made_again);
}

TEST_F(KeeperDirectoriesTest, StayLostUntilALookMakesThemAgain) {
  DirectoryWatch::Clock::time_point now{};
  DirectoryWatch watch(now);
  std::optional<UnixSocket> listener;
  const auto poll = [&] { return watch.poll(now, held_, listener, secret_); };
  std::filesystem::remove_all(parent_);
  EXPECT_EQ(poll(), State::lost);
  EXPECT_TRUE(watch.is_lost());
  now += DirectoryWatch::kInterval - 1ns;
  EXPECT_EQ(poll(), State::whole) << "an event wakes the worker too early for a poll";
  EXPECT_TRUE(watch.is_lost());
  std::filesystem::create_directories(parent_);
  now += 1ns;
  EXPECT_EQ(poll(), State::made_again);
  EXPECT_FALSE(watch.is_lost());
}

}  // namespace
}  // namespace onecopy::store
