// SPDX-License-Identifier: Apache-2.0
// Publishers, readers, followers and both halves of the keeper are killed at random, at named points and between them,
// while all work. Each version whose publish() returned is there, whole, and no reader sees a mix of two.
//
// 60 are killed by default; ONECOPY_TEST_KILLS=1000 kills many, ONECOPY_STORE_SEED repeats a run.
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "core/point.h"
#include "onecopy/core/error.h"
#include "onecopy/store/store.h"
#include "os/process.h"
#include "store/keeper/keeper.h"
#include "support/child.h"
#include "support/eventually.h"
#include "support/proc_entries.h"
#include "support/watchdog.h"

namespace onecopy::store {
namespace {

using namespace std::chrono_literals;
using onecopy::testing::Child;
using onecopy::testing::eventually;
using onecopy::testing::Shared;
using onecopy::testing::Watchdog;

constexpr std::size_t kMaxVersions = 1 << 20;
constexpr std::uint32_t kKeep = 2;
constexpr std::int64_t kElements = 10'000;

/// The longest name that there may be: the index is soon full, and written anew.
const std::string kName(1024, 'x');

enum class Role : int { nobody, publisher, reader, follower, keeper };

struct Target {
  Role role;
  const char* point;
};
constexpr std::array kTargets{
    Target{Role::publisher, "store.draft.sealed"},    Target{Role::publisher, "store.draft.written"},
    Target{Role::publisher, "store.draft.published"}, Target{Role::publisher, "store.client.opened"},
    Target{Role::reader, "store.client.opened"},      Target{Role::follower, "store.client.opened"},
    Target{Role::keeper, "store.publish.held"},       Target{Role::keeper, "store.index.append"},
    Target{Role::keeper, "store.index.committed"},    Target{Role::keeper, "store.publish.recorded"},
    Target{Role::keeper, "store.drop.recorded"},      Target{Role::keeper, "store.index.rewritten"},
    Target{Role::keeper, "store.worker.greets"}};

bool is_of_a_new_worker(const Target& target) {
  return std::string_view(target.point).starts_with("store.worker.");
}
/// Points that a process passes once in a while, others with each version.
bool is_rare(const Target& target) {
  return is_of_a_new_worker(target) || std::string_view(target.point) == "store.index.rewritten";
}

/// What all processes of a test know.
struct Field {
  std::atomic<int> target{-1};  ///< the process that passes this point dies there, when `passes` were
  std::atomic<int> passes{0};
  std::atomic<int> dead{0};  ///< its pid
  std::atomic<bool> is_over{false};
  std::atomic<std::uint32_t> last_stamp{0};
  std::atomic<std::uint64_t> returned{0};  ///< the highest number that a publish() has returned
  std::atomic<std::uint64_t> published{0}, opened{0}, updated{0};
  std::array<std::atomic<std::uint32_t>, kMaxVersions> stamps{};  ///< of versions, by number; 0: not known
};

Field* field_of_process = nullptr;
Role role_of_process = Role::nobody;

void die_where_told(const char* name) noexcept {
  Field& field = *field_of_process;
  const int target = field.target;
  if (target < 0 || kTargets[static_cast<std::size_t>(target)].role != role_of_process) return;
  if (std::strcmp(kTargets[static_cast<std::size_t>(target)].point, name) != 0 ||
      field.passes.fetch_sub(1) != 1)
    return;
  field.target = -1;
  field.dead = ::getpid();
  std::raise(SIGKILL);
}

void take_role(Field& field, Role role) {
  field_of_process = &field;
  role_of_process = role;
  point_hook.store(die_where_told);
}

/// A version has one content for ever, whoever sees it.
void expect_stamp(Field& field, std::uint64_t number, std::uint32_t stamp) {
  std::uint32_t known = 0;
  if (!field.stamps.at(number).compare_exchange_strong(known, stamp)) {
    ASSERT_EQ(known, stamp) << "version " << number;
  }
}

std::vector<TensorSpec> specs() {
  return {{"a", Layout(DType::u32, {7})},
          {"b", Layout(DType::u32, {kElements})},
          {"c", Layout(DType::u32, {3, 5})}};
}

/// Returns the value of all elements; 0 for a mix.
std::uint32_t stamp_of(const Contents& contents) {
  const auto first = *contents.tensor(0).as<std::uint32_t>();
  for (std::size_t row = 0; row < contents.size(); ++row) {
    const Tensor tensor = contents.tensor(row);
    const auto* const at = tensor.as<std::uint32_t>();
    if (*at != first || std::memcmp(at, at + 1, tensor.nbytes() - sizeof *at) != 0) return 0;
  }
  return first;
}

Store connect() { return Store::connect({.autostart = false}); }

std::uint64_t publish_one(Store& store, Field& field) {
  const std::uint32_t stamp = ++field.last_stamp;
  Draft draft = store.draft(kName, specs(), kCpu, {.keep = kKeep});
  for (std::size_t row = 0; row < draft.size(); ++row) {
    const Tensor tensor = draft.tensor(row);
    std::fill_n(tensor.as<std::uint32_t>(), tensor.nbytes() / sizeof stamp, stamp);
  }
  const std::uint64_t number = draft.publish();
  expect_stamp(field, number, stamp);
  std::uint64_t before = field.returned;
  while (before < number && !field.returned.compare_exchange_weak(before, number)) {
  }
  ++field.published;
  return number;
}

/// The current version is the last one whose publish() returned, or a later one.
void open_current(Store& store, Field& field) {
  const std::uint64_t returned = field.returned;
  const Version version = store.open(kName);
  ASSERT_GE(version.number(), returned);
  const std::uint32_t stamp = stamp_of(version);
  ASSERT_NE(stamp, 0u) << "version " << version.number() << " is a mix";
  expect_stamp(field, version.number(), stamp);
  ++field.opened;
}

void publish_until_over(Field& field) {
  Store store = connect();
  while (!field.is_over && !::testing::Test::HasFailure()) {
    store.open(kName);
    publish_one(store, field);
  }
}

void read_until_over(Field& field) {
  Store store = connect();
  while (!field.is_over && !::testing::Test::HasFailure()) open_current(store, field);
}

void follow_until_over(Field& field) {
  Store store = connect();
  Follower live = store.follow(kName);
  const void* const place = live.tensor(0).data();
  for (std::uint64_t before = live.number(); !field.is_over && !::testing::Test::HasFailure();) {
    const std::uint64_t returned = field.returned;
    if (field.updated % 2 != 0) live.prepare();
    const std::uint64_t number = live.update();
    EXPECT_GE(number, std::max(before, returned));
    const std::uint32_t stamp = stamp_of(live);
    EXPECT_NE(stamp, 0u) << "version " << number << " is a mix";
    expect_stamp(field, number, stamp);
    before = number;
    ++field.updated;
  }
  EXPECT_EQ(live.tensor(0).data(), place);
}

/// Counts the memory of versions that a process of the keeper holds: each memfd but the index.
std::size_t count_held(int pid) {
  std::size_t count = 0;
  for (const auto& entry : testing::proc_entries(fmt::format("/proc/{}/fd", pid))) {
    std::error_code gone;
    const std::string target = std::filesystem::read_symlink(entry, gone).string();
    count += target.starts_with("/memfd:") && !target.starts_with("/memfd:onecopy-store-index");
  }
  return count;
}

class RandomKillsOfTheStore : public ::testing::Test {
 protected:
  struct Worker {
    Role role;
    void (*work)(Field&);
    std::optional<Child> child;
  };

  void SetUp() override {
    directory_ = fmt::format("{}onecopy-store-kills-{}", ::testing::TempDir(), ::getpid());
    ::setenv("ONECOPY_STORE_DIR", directory_.c_str(), 1);
    keeper_.emplace([this] {
      take_role(*field_, Role::keeper);
      serve(StoreDirectory(directory_), {});
    });
    EXPECT_TRUE(eventually([&] {
      try {
        store_.emplace(connect());
      } catch (const Error&) {  // it does not answer yet
      }
      return store_.has_value();
    }));
    publish_one(*store_, *field_);
    for (Worker& worker : workers_) begin(worker);
  }
  void TearDown() override {
    if (store_) store_->stop();
    std::filesystem::remove_all(directory_);
  }

  void begin(Worker& worker) {
    worker.child.emplace([this, &worker] {
      take_role(*field_, worker.role);
      worker.work(*field_);
    });
  }

  /// Waits for both halves of the keeper, neither of which is `dead`.
  void expect_whole_keeper(int dead) {
    EXPECT_TRUE(eventually([&] {
      halves_ = store_->keeper();
      for (const int half : {halves_.worker, halves_.guard})
        if (half == dead || !is_running(half)) return false;
      return true;
    }));
  }
  static bool is_running(int pid) {
    try {
      return !has_exited(open_pidfd(pid));
    } catch (const Error&) {
      return false;
    }
  }

  void kill_at_a_point() {
    const std::size_t target = random_() % kTargets.size();
    field_->dead = 0;
    field_->passes = is_rare(kTargets[target]) ? 1 : 1 + static_cast<int>(random_() % 4);
    field_->target = static_cast<int>(target);
    if (is_of_a_new_worker(kTargets[target])) ::kill(halves_.worker, SIGKILL);
    const auto has_died = [&] { return store_->keeper().worker != 0 && field_->dead != 0; };
    const bool is_dead = eventually(has_died, 3 * onecopy::testing::kPatience);
    ASSERT_TRUE(is_dead) << "nobody passes " << kTargets[target].point;
    renew(field_->dead);
  }
  void kill_anywhere() {
    std::this_thread::sleep_for(std::chrono::microseconds(random_() % 20'000));
    std::vector<int> pids{halves_.worker, halves_.guard};
    for (Worker& worker : workers_) pids.push_back(worker.child->pid());
    const int pid = pids[random_() % pids.size()];
    ::kill(pid, SIGKILL);
    renew(pid);
  }
  /// Stops a client in the middle of whatever it does: the others go on.
  void stop_one() {
    Worker& worker = workers_[random_() % workers_.size()];
    worker.child->signal(SIGSTOP);
    const std::uint64_t opened = field_->opened, published = field_->published;
    EXPECT_TRUE(eventually([&] {
      return (worker.role == Role::reader || field_->opened > opened + 5) &&
             field_->published > published + 5;
    }));
    worker.child->signal(SIGCONT);
  }
  void renew(int pid) {
    for (Worker& worker : workers_) {
      if (worker.child->pid() != pid) continue;
      EXPECT_EQ(worker.child->join(), -SIGKILL);
      begin(worker);
    }
    expect_whole_keeper(pid);
  }

  void end_workers() {
    field_->is_over = true;
    for (Worker& worker : workers_) EXPECT_EQ(worker.child->join(), 0);
  }

  std::string directory_;
  Shared<Field> field_;
  std::mt19937 random_;
  KeeperInfo halves_;
  std::optional<Child> keeper_;
  std::optional<Store> store_;
  std::array<Worker, 4> workers_{{{Role::publisher, publish_until_over, {}},
                                  {Role::publisher, publish_until_over, {}},
                                  {Role::reader, read_until_over, {}},
                                  {Role::follower, follow_until_over, {}}}};
};

std::uint32_t number_in(const char* variable, std::uint32_t usual) {
  const char* const text = std::getenv(variable);
  return text ? static_cast<std::uint32_t>(std::strtoul(text, nullptr, 10)) : usual;
}

TEST_F(RandomKillsOfTheStore, LoseNoVersionThatWasPublishedAndLeaveNothing) {
  const std::uint32_t kills = number_in("ONECOPY_TEST_KILLS", 60);
  const std::uint32_t seed = number_in("ONECOPY_STORE_SEED", std::random_device()());
  SCOPED_TRACE(fmt::format("ONECOPY_STORE_SEED={}", seed));
  const Watchdog watchdog(Watchdog::kLimit + std::chrono::seconds(kills));
  random_.seed(seed);
  expect_whole_keeper(0);
  for (std::uint32_t i = 0; i < kills && !HasFailure(); ++i) {
    switch (random_() % 4) {
      case 0: kill_anywhere(); break;
      case 1: stop_one(); [[fallthrough]];
      default: kill_at_a_point();
    }
    if (!HasFatalFailure()) open_current(*store_, *field_);
  }
  if (HasFailure()) return;
  end_workers();
  const auto objects = store_->list();
  ASSERT_EQ(objects.size(), 1u);
  EXPECT_GE(objects[0].current, field_->returned);
  EXPECT_TRUE(eventually([&] { return store_->list().at(0).versions.size() == kKeep; }));
  store_->remove(kName);
  EXPECT_TRUE(store_->list().empty());
  for (const int half : {halves_.worker, halves_.guard})
    EXPECT_TRUE(eventually([&] { return count_held(half) == 0; })) << count_held(half);
  RecordProperty("published", std::to_string(field_->published));
  RecordProperty("opened", std::to_string(field_->opened));
  RecordProperty("updated", std::to_string(field_->updated));
}

}  // namespace
}  // namespace onecopy::store
