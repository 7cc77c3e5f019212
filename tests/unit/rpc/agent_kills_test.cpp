// SPDX-License-Identifier: Apache-2.0
// Members are killed at random while all call each other, and come back under other names. Each call has its answer or a
// typed error, and a member that lives through all of it is left with nothing of the dead.
//
// A few are killed by default; ONECOPY_TEST_KILLS=1000 kills many, ONECOPY_RPC_SEED repeats a run.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "onecopy/core/error.h"
#include "onecopy/share/share.h"
#include "share/broker/connection_stage.h"
#include "support/die_at.h"
#include "support/footprint.h"
#include "support/numbers.h"
#include "support/watchdog.h"
#include "unit/rpc/meeting.h"

namespace onecopy::rpc {
namespace {

using namespace std::chrono_literals;
using testing::Child;
using testing::Footprint;
using testing::Shared;
using testing::Watchdog;

constexpr std::size_t kPlaces = 4;  // the first one's member is never killed
constexpr auto kTimeout = 20s;

constexpr std::array kPoints{"rpc.lane.greeted",  "rpc.lane.opened",   "rpc.call.committed",
                             "rpc.call.taken",    "rpc.serve.running", "rpc.answer.taken",
                             "rpc.wait.armed",    "rpc.wait.deserted", "rpc.answer.committed",
                             "rpc.death.drained", "rpc.work.armed"};

std::uint32_t number_in(const char* variable, std::uint32_t usual) {
  const char* const text = std::getenv(variable);
  return text ? static_cast<std::uint32_t>(std::strtoul(text, nullptr, 10)) : usual;
}

/// Where the members find each other. A member that is killed while it writes leaves a place with an odd version.
struct Field {
  struct Place {
    std::atomic<std::uint32_t> version{0};
    std::size_t size = 0;
    std::byte address[1024];
  } places[kPlaces];
  std::atomic<bool> is_over{false};
  std::atomic<std::uint64_t> answered{0}, failed{0};

  void publish(std::size_t at, const Bytes& address) {
    Place& place = places[at];
    place.version = place.version | 1;
    ASSERT_LE(address.size(), sizeof place.address);
    place.size = address.size();
    std::copy(address.begin(), address.end(), place.address);
    place.version = place.version + 1;
  }
  /// Empty until there is one.
  Bytes address(std::size_t at) const {
    const Place& place = places[at];
    const std::uint32_t before = place.version;
    if (before == 0 || before % 2 != 0) return {};
    Bytes copy(place.address, place.address + std::min(place.size, sizeof place.address));
    return place.version == before ? copy : Bytes{};
  }
};

Values stamped(std::int64_t bytes, int stamp) { return {{}, {testing::filled_bytes(bytes, stamp)}}; }

bool has_stamp(const Values& values, std::int64_t bytes, int stamp) {
  const Tensor& tensor = values.tensors.at(0);
  const auto* at = tensor.as<std::uint8_t>();
  return tensor.nbytes() == static_cast<std::size_t>(bytes) && at[0] == stamp && at[bytes - 1] == stamp;
}

/// A member that is called, and calls.
class Member {
 public:
  Member(Field& field, std::size_t place, std::uint32_t number)
      : field_(field),
        place_(place),
        agent_({.name = "member " + std::to_string(number), .number = number}),
        random_(number) {
    agent_.define("echo", [](Values&& values) { return std::move(values); });
    agent_.define("pass on", [this](Values&& values) { return pass_on(std::move(values)); });
    field_.publish(place_, agent_.address());
  }

  void call_until_over(std::uint32_t seed) {
    std::mt19937 random(seed);
    while (!field_.is_over) {
      const std::optional<std::string> to = member_at(random() % kPlaces);
      if (!to) continue;
      try {
        call(*to, random);
        ++field_.answered;
      } catch (const Error& error) {
        ++field_.failed;
        EXPECT_EQ(error.code(), ErrorCode::peer_died) << error.what();
      }
    }
  }
  std::size_t calls_under_way() const { return agent_.calls_under_way(); }

 private:
  /// The member that is there now, joined.
  std::optional<std::string> member_at(std::size_t place) {
    const Bytes address = field_.address(place);
    if (address.empty()) return {};
    try {
      return agent_.join(address);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::peer_died) << error.what();
      return {};
    }
  }
  void call(const std::string& to, std::mt19937& random) {
    const auto bytes = std::array<std::int64_t, 3>{1, 5000, 300'000}[random() % 3];
    const int stamp = static_cast<int>(random() % 256);
    if (random() % 4 == 0) return call_several(to, bytes, stamp);
    const char* const function = random() % 3 == 0 ? "pass on" : "echo";
    EXPECT_TRUE(has_stamp(agent_.call(to, function, stamped(bytes, stamp), kTimeout), bytes, stamp));
  }
  void call_several(const std::string& to, std::int64_t bytes, int stamp) {
    std::vector<Future> futures;
    for (int i = 0; i < 8; ++i)
      futures.push_back(agent_.call_async(to, "echo", stamped(bytes, stamp), kTimeout));
    for (Future& future : futures) EXPECT_TRUE(has_stamp(future.get(), bytes, stamp));
  }
  /// To the member that is never killed.
  Values pass_on(Values&& values) {
    const auto first = member_at(0);
    return first && place_ != 0 ? agent_.call(*first, "echo", std::move(values), kTimeout)
                                : std::move(values);
  }

  Field& field_;
  const std::size_t place_;
  Agent agent_;
  std::mt19937 random_;
};

void call_with_threads(Member& member, Field& field, std::uint32_t seed) {
  std::vector<std::jthread> threads;
  for (std::uint32_t t = 0; t < 2; ++t) threads.emplace_back([&, t] { member.call_until_over(seed + t); });
  threads.clear();
  EXPECT_TRUE(field.is_over);
}

/// Checks that the memory, descriptors and claims of this process return to their former numbers once all other
/// processes have ended.
void live_through_it(Field& field, const std::atomic<bool>& have_all_ended) {
  after_transit_ms = 200;
  stamped(300'000, 1);  // starts what a process has from its first tensor on
  const Footprint before = Footprint::settled();
  {
    Member member(field, 0, 0);
    call_with_threads(member, field, 0);
    EXPECT_TRUE(testing::eventually([&] { return have_all_ended.load(); }, 2 * testing::kPatience));
    EXPECT_EQ(member.calls_under_way(), 0U);
  }
  Footprint left = before;
  left.descriptors += 2;  // its broker listens, and has a claim page ready for the next borrower
  left.mappings += 1;
  testing::expect_soon(left);
}

class Killer {
 public:
  Killer(Shared<Field>& field, std::uint32_t seed) : field_(field), random_(seed) {
    for (std::size_t place = 1; place < kPlaces; ++place) begin(place);
  }
  void kill_one() {
    std::this_thread::sleep_for(std::chrono::microseconds(random_() % 20'000));
    const std::size_t place = 1 + random_() % (kPlaces - 1);
    children_[place]->kill();
    begin(place);
  }
  /// The last ones end by themselves, or at their points.
  void end() {
    for (std::size_t place = 1; place < kPlaces; ++place) {
      const int status = children_[place]->join();
      EXPECT_TRUE(status == 0 || status == -SIGKILL) << status;
    }
  }

 private:
  /// Every other one dies by itself at some point.
  void begin(std::size_t place) {
    const std::uint32_t number = ++last_, seed = static_cast<std::uint32_t>(random_());
    children_[place].emplace([this, place, number, seed] {
      if (seed % 2 == 0)
        testing::die_at(kPoints[seed / 2 % kPoints.size()], 1 + static_cast<int>(seed / 64 % 40));
      Member member(*field_, place, number);
      call_with_threads(member, *field_, seed);
    });
  }

  Shared<Field>& field_;
  std::mt19937 random_;
  std::uint32_t last_ = 0;
  std::array<std::optional<Child>, kPlaces> children_;
};

TEST(RandomKills, EndEachCallWithItsAnswerOrAnErrorAndLeaveNothing) {
  const std::uint32_t kills = number_in("ONECOPY_TEST_KILLS", 40);
  const std::uint32_t seed = number_in("ONECOPY_RPC_SEED", std::random_device()());
  SCOPED_TRACE("ONECOPY_RPC_SEED=" + std::to_string(seed));
  Watchdog watchdog(Watchdog::kLimit + std::chrono::seconds(kills / 4));
  Shared<Field> field;
  Shared<std::atomic<bool>> have_all_ended;
  Child first([&] { live_through_it(*field, *have_all_ended); });
  Killer killer(field, seed);
  for (std::uint32_t i = 0; i < kills; ++i) killer.kill_one();
  EXPECT_TRUE(testing::eventually([&] { return field->answered > kills; }));
  field->is_over = true;
  killer.end();
  *have_all_ended = true;
  EXPECT_EQ(first.join(), 0);
  RecordProperty("answered", std::to_string(field->answered));
  RecordProperty("failed", std::to_string(field->failed));
}

}  // namespace
}  // namespace onecopy::rpc
