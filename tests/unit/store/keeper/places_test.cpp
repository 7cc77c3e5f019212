// SPDX-License-Identifier: Apache-2.0
// The places of a keeper: who gets them, what is made again, and when a worker looks.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <optional>

#include "onecopy/core/error.h"
#include "store/keeper/held_places.h"
#include "store/keeper/place_watch.h"

namespace onecopy::store {
namespace {

using State = HeldPlaces::State;
using namespace std::chrono_literals;

class HeldPlacesTest : public ::testing::Test {
 protected:
  HeldPlacesTest() {
    std::filesystem::create_directories(parent_);
    std::filesystem::permissions(parent_, std::filesystem::perms::owner_all);
    EXPECT_TRUE(held_.try_take());
    std::tie(listener_, secret_) = held_.listen();
  }
  ~HeldPlacesTest() override { std::filesystem::remove_all(parent_); }

  State look() {
    std::optional<UnixSocket> listener;
    const State state = held_.look(listener, secret_);
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

  const std::string parent_ = ::testing::TempDir() + "onecopy-places-" + std::to_string(::getpid());
  const Place place_{parent_ + "/store"};
  HeldPlaces held_{place_};
  UnixSocket listener_;
  Digest secret_{};
};

TEST(PlacesOfThisUser, AreRefusedInARelativeDirectory) {
  for (const char* const variable : {"ONECOPY_STORE_DIR", "ONECOPY_RUNTIME_DIR"}) {
    const char* const set = std::getenv(variable);
    const std::string before = set ? set : "";
    ::setenv(variable, "here", 1);
    try {
      Places::of_this_user();
      ADD_FAILURE() << "a relative path was taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      EXPECT_NE(std::string(error.what()).find(std::string(variable) + " is \"here\""), std::string::npos);
    }
    ::setenv(variable, before.c_str(), 1);
  }
}

TEST_F(HeldPlacesTest, HaveOneKeeper) {
  EXPECT_FALSE(HeldPlaces(place_).try_take());
  std::filesystem::remove_all(place_.directory());
  EXPECT_FALSE(HeldPlaces(place_).try_take()) << "the directory is a new one, and the keeper lives";
}

TEST_F(HeldPlacesTest, AreWholeUntilAFileIsRemoved) {
  EXPECT_EQ(look(), State::whole);
  for (const char* const name : {"/secret", "/keeper"}) {
    std::filesystem::remove(place_.directory() + name);
    EXPECT_FALSE(can_connect());
    EXPECT_EQ(look(), State::made_again) << name;
    EXPECT_TRUE(can_connect()) << name;
  }
  std::filesystem::remove_all(place_.directory());
  EXPECT_EQ(look(), State::made_again);
  EXPECT_TRUE(can_connect());
  EXPECT_EQ(look(), State::whole);
}

TEST_F(HeldPlacesTest, AreLostWhileNoDirectoryCanBeMade) {
  std::filesystem::remove_all(parent_);
  EXPECT_EQ(look(), State::lost);
  std::filesystem::create_directories(parent_);
  EXPECT_EQ(look(), State::made_again);
  EXPECT_TRUE(can_connect());
}

TEST_F(HeldPlacesTest, LeaveNoSocket) {
  held_.leave();
  EXPECT_FALSE(std::filesystem::exists(place_.socket().text));
}

TEST_F(HeldPlacesTest, AreLookedAfterEachMinuteAndWhenAProcessRings) {
  PlaceWatch::Clock::time_point now{};
  PlaceWatch watch(now);
  std::optional<UnixSocket> listener;
  const auto look = [&] { return watch.look(now, held_, listener, secret_); };
  EXPECT_EQ(look(), State::whole) << "at the start";
  std::filesystem::remove(place_.directory() + "/secret");
  now += PlaceWatch::kInterval - 1ns;
  EXPECT_EQ(look(), State::whole) << "too early to see it";
  now += 1ns;
  EXPECT_EQ(watch.next(), now);
  EXPECT_EQ(look(), State::made_again);
  std::filesystem::remove(place_.directory() + "/secret");
  watch.ring();
  EXPECT_EQ(look(), State::made_again);
}

TEST_F(HeldPlacesTest, StayLostUntilALookMakesThemAgain) {
  PlaceWatch::Clock::time_point now{};
  PlaceWatch watch(now);
  std::optional<UnixSocket> listener;
  const auto look = [&] { return watch.look(now, held_, listener, secret_); };
  std::filesystem::remove_all(parent_);
  EXPECT_EQ(look(), State::lost);
  EXPECT_TRUE(watch.is_lost());
  now += PlaceWatch::kInterval - 1ns;
  EXPECT_EQ(look(), State::whole) << "an event wakes the worker too early for a look";
  EXPECT_TRUE(watch.is_lost());
  std::filesystem::create_directories(parent_);
  now += 1ns;
  EXPECT_EQ(look(), State::made_again);
  EXPECT_FALSE(watch.is_lost());
}

}  // namespace
}  // namespace onecopy::store
