// SPDX-License-Identifier: Apache-2.0
// The store as a program sees it: memory of the host and of a CUDA device, and kills at named points.
#include "onecopy/store/store.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <thread>

#include <fmt/format.h>

#include "core/point.h"
#include "device/backend.h"
#include "onecopy/core/error.h"
#include "onecopy/memory/copy.h"
#include "onecopy/share/share.h"
#include "onecopy/share/stats.h"
#include "os/process.h"
#include "os/unix_socket.h"
#include "share/session.h"
#include "store/client/state.h"
#include "store/keeper/keeper.h"
#include "store/keeper/log.h"
#include "support/child.h"
#include "support/die_at.h"
#include "support/eventually.h"
#include "support/limits.h"
#include "support/numbers.h"
#include "support/refusal.h"
#include "support/rounds.h"
#include "support/watchdog.h"

namespace onecopy::store {
namespace {

using onecopy::testing::Child;
using onecopy::testing::element;
using onecopy::testing::eventually;
using onecopy::testing::set_element;

/// A keeper's processes are forked from each other: one of them all dies at the point.
struct Fate {
  std::atomic<int> passes{0};
  char point[64] = "";
};
Fate* fate = nullptr;

void die_once(const char* name) noexcept {
  if (std::strcmp(name, fate->point) == 0 && fate->passes.exchange(0) == 1) std::raise(SIGKILL);
}

/// A keeper of the test's own, in a child that may die at a point.
class StoreTest : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    directory_ = fmt::format("{}onecopy-store-test-{}", ::testing::TempDir(), ::getpid());
    ::setenv("ONECOPY_STORE_DIR", directory_.c_str(), 1);
  }
  void TearDown() override {
    try {
      Store::connect({.autostart = false}).stop();
    } catch (const Error&) {  // it has ended
    }
    std::filesystem::remove_all(directory_);
  }
  /// The first process of the keeper that passes the point dies there.
  Store start(const std::string& point = {}, const ServeOptions& options = {}) {
    arm(point);
    keeper_.emplace([this, options] {
      fate = &*fate_;
      point_hook.store(die_once);
      serve(StoreDirectory(directory_), options);
    });
    std::optional<Store> store;
    if (!eventually([&] {
          try {
            store.emplace(Store::connect({.autostart = false}));
          } catch (const Error& error) {
            if (error.code() != ErrorCode::peer_died) throw;
          }
          return store.has_value();
        }))
      throw std::runtime_error("no keeper answers");
    return *store;
  }

  void kill_both() {
    const KeeperInfo halves = Store::connect({.autostart = false}).keeper();
    ::kill(halves.guard, SIGSTOP);  // so that it does not replace the worker
    keeper_->kill(SIGKILL);
    ::kill(halves.guard, SIGKILL);
  }

  void arm(const std::string& point) {
    point.copy(fate_->point, sizeof fate_->point - 1);
    fate_->passes = point.empty() ? 0 : 1;
  }

  std::string directory_;
  onecopy::testing::Shared<Fate> fate_;
  std::optional<Child> keeper_;
};

constexpr std::int64_t kElements = 1000;

std::vector<TensorSpec> specs() {
  return {{"a", Layout(DType::f32, {kElements})},
          {"b", Layout(DType::f32, {2, 3})},
          {"none", Layout(DType::u8, {0})}};
}

void fill(const Tensor& tensor, float value) {
  const std::vector<float> values(tensor.nbytes() / sizeof(float), value);
  if (!values.empty())
    copy_bytes_and_wait({tensor.data(), tensor.device(), values.data(), kCpu, tensor.nbytes()});
}

/// The value of all elements; -1 for a mix.
float value_of(const Contents& contents) {
  std::optional<float> found;
  for (std::size_t row = 0; row < contents.size(); ++row) {
    const Tensor tensor = contents.tensor(row);
    std::vector<float> values(tensor.nbytes() / sizeof(float));
    if (values.empty()) continue;
    copy_bytes_and_wait({values.data(), kCpu, tensor.data(), tensor.device(), tensor.nbytes()});
    for (const float value : values)
      if (value != found.value_or(value)) return -1;
    found = values.front();
  }
  return found.value_or(-1);
}

std::uint64_t publish(Store& store, Device device, float value, std::uint32_t keep = 2) {
  Draft draft = store.draft("x", specs(), device, {.keep = keep, .checksums = true});
  for (std::size_t row = 0; row < draft.size(); ++row) fill(draft.tensor(row), value);
  return draft.publish();
}

/// Tensors of onecopy with these values.
std::vector<NamedTensor> made(Device device, float a, float b) {
  std::vector<NamedTensor> tensors;
  for (const auto& [name, value] : {std::pair("a", a), std::pair("b", b)}) {
    tensors.emplace_back(name, empty(Layout(DType::f32, {kElements}), device));
    fill(tensors.back().second, value);
  }
  return tensors;
}

void raise_descriptor_limit() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

TEST_P(StoreTest, AFollowerShowsEachVersionAtTheSameAddresses) {
  Store store = start();
  const Device device = Device::parse(GetParam());
  publish(store, device, 1);
  Follower live = store.follow("x");
  EXPECT_EQ(live.device(), device);
  EXPECT_EQ(value_of(live), 1);
  const void* const place = live.tensor(0).data();
  for (int number = 2; number <= 5; ++number) {
    publish(store, device, static_cast<float>(number));
    EXPECT_EQ(live.update(), static_cast<std::uint64_t>(number));
    EXPECT_EQ(value_of(live), static_cast<float>(number));
    live.verify();
  }
  EXPECT_EQ(live.tensor(0).data(), place);
}

TEST_F(StoreTest, AListingTellsWhichReadersKeepNoDescriptor) {
  Store store = start();
  publish(store, kCpu, 1);
  constexpr unsigned kVersions = 40, kKept = 25;  // two descriptors each, and a quarter of the limit
  const onecopy::testing::Limit limit(RLIMIT_NOFILE, 4 * 2 * kKept);
  std::vector<Version> opened;
  for (unsigned i = 0; i < kVersions; ++i) opened.push_back(store.open("x"));
  const auto listed = [] { return Store::connect({.autostart = false}).list().at(0).versions.at(0); };
  EXPECT_EQ(listed().readers, kVersions);
  EXPECT_EQ(listed().unkept, kVersions - kKept);
  ::kill(store.keeper().worker, SIGKILL);
  EXPECT_EQ(listed().unkept, kVersions - kKept) << "the next worker knows, too";
  opened.erase(opened.begin() + kKept, opened.end());
  EXPECT_EQ(listed().readers, kKept);
  EXPECT_EQ(listed().unkept, 0u);
}

TEST_F(StoreTest, ObjectsThatWereMovedFromThrow) {
  Store store = start();
  publish(store, kCpu, 1);
  Version version = store.open("x");
  Follower live = store.follow("x");
  Draft draft = store.draft("x");
  Watch watch = store.watch("x");
  KvPool kv_pool = store.kv_pool("blocks", {.block_bytes = 64, .budget = 256});
  Transaction transaction = store.transaction();
  Draft part = store.draft("x");
  Store other = std::move(store);
  const Version opened = std::move(version);
  const Follower followed = std::move(live);
  const Draft drafted = std::move(draft);
  Watch watching = std::move(watch);
  KvPool kept = std::move(kv_pool);
  Transaction moved = std::move(transaction);
  for (const std::function<void()>& use : std::initializer_list<std::function<void()>>{
           [&] { store.list(); },
           [&] { store.open("x"); },
           [&] { store.draft("x"); },
           [&] { store.keeper(); },
           [&] { store.watch("x"); },
           [&] { store.publish("x", made(kCpu, 1, 1)); },
           [&] { store.remove("x"); },
           [&] { store.rollback("x", 1); },
           [&] { store.stop(); },
           [&] { store.kv_pool("blocks", {.block_bytes = 64, .budget = 256}); },
           [&] { version.size(); },
           [&] { version.name(0); },
           [&] { version.layout(0); },
           [&] { version.find("a"); },
           [&] { version.tensor(0); },
           [&] { version.memory(); },
           [&] { version.offset(0); },
           [&] { version.device(); },
           [&] { version.number(); },
           [&] { version.key(); },
           [&] { version.attributes(); },
           [&] { version.verify(); },
           [&] { live.update(); },
           [&] { draft.tensor(0); },
           [&] { draft.publish(); },
           [&] { watch.next(std::chrono::seconds(0)); },
           [&] { kv_pool.allocate(1); },
           [&] { kv_pool.stats(); },
           [&] { kv_pool.memory(); },
           [&] { kv_pool.clear(); },
           [&] { transaction.handle(); },
           [&] { transaction.add(part); },
           [&] { transaction.publish("x", made(kCpu, 1, 1)); },
           [&] { transaction.commit(); },
           [&] { transaction.leave(); },
           [&] { transaction.abort(); }})
    onecopy::testing::expect_refusal(ErrorCode::closed, {"moved from", "use the object"}, use);
  EXPECT_EQ(watching.next(std::chrono::seconds(10)), 1u);
  EXPECT_EQ(opened.number(), followed.number());
  EXPECT_EQ(kept.allocate(1).size(), drafted.size() - 2);
  moved.abort();
  store = std::move(other);
  EXPECT_EQ(store.list().size(), 2u);
}

TEST_F(StoreTest, AVersionHasAtLeastOneTensor) {
  Store store = start();
  for (const Placement place : {Placement::slot, Placement::as_is})
    onecopy::testing::expect_refusal(ErrorCode::invalid_argument, {"no tensor", "\"x\"", "one and more"},
                                     [&] { store.publish("x", {}, {.place = place}); });
  EXPECT_TRUE(store.list().empty());
}

TEST_P(StoreTest, AFollowerShowsExactlyTheVersionThatIsAskedFor) {
  Store store = start();
  const Device device = Device::parse(GetParam());
  for (int number = 1; number <= 3; ++number) publish(store, device, static_cast<float>(number), 3);
  Follower live = store.follow("x");
  for (const std::uint64_t number : {1, 3, 2, 2}) {
    EXPECT_EQ(live.update(std::chrono::seconds(10), number), number);
    EXPECT_EQ(live.number(), number);
    EXPECT_EQ(value_of(live), static_cast<float>(number));
  }
  EXPECT_THROW(live.update(std::chrono::seconds(10), 4), Error);
  EXPECT_THROW(live.update(std::chrono::seconds(10), 0), Error);
  EXPECT_EQ(value_of(live), 2);
  EXPECT_EQ(live.update(), 3u);
}

TEST_P(StoreTest, AFollowerShowsAPreparedVersionUnlessAnotherOneIsAskedForOrCurrent) {
  Store store = start();
  const Device device = Device::parse(GetParam());
  const bool prepares = device == kCpu;
  publish(store, device, 1, 4);
  Follower live = store.follow("x");
  EXPECT_EQ(live.prepare(), 1u);
  for (int number = 2; number <= 4; ++number) {
    publish(store, device, static_cast<float>(number), 4);
    EXPECT_EQ(live.prepare(), prepares ? static_cast<std::uint64_t>(number) : 1u);
    EXPECT_EQ(live.number(), 1u);
    EXPECT_EQ(value_of(live), 1);
  }
  EXPECT_EQ(live.update(std::chrono::seconds(10), 2), 2u);
  EXPECT_EQ(value_of(live), 2);
  live.prepare(std::chrono::seconds(10), 3);
  EXPECT_EQ(live.update(), 4u);  // not the prepared one, which is older
  EXPECT_EQ(value_of(live), 4);
  live.prepare(std::chrono::seconds(10), 3);
  EXPECT_EQ(live.update(std::chrono::seconds(10), 3), 3u);
  EXPECT_EQ(value_of(live), 3);
  live.verify();
  if (prepares) {
    EXPECT_THROW(live.prepare(std::chrono::seconds(10), 5), Error);
  }
  live.prepare();
  store.remove("x");
  EXPECT_THROW(live.update(), Error);
  EXPECT_EQ(value_of(live), 3);
}

TEST_F(StoreTest, ThreadsReadOneOfTwoVersionsWhileTheFollowerUpdates) {
  Store store = start();
  const std::vector<TensorSpec> large{{"a", Layout(DType::f32, {1 << 20})}};
  for (int number = 1; number <= 2; ++number) {
    Draft draft = store.draft("large", large);
    fill(draft.tensor(0), static_cast<float>(number));
    draft.publish();
  }
  for (int number = 1; number <= 2; ++number) publish(store, kCpu, static_cast<float>(number));
  for (const char* const name : {"large", "x"}) {
    Follower live = store.follow(name);
    const Tensor tensor = live.tensor(0);
    const auto* const elements = tensor.as<volatile float>();
    const std::size_t count = tensor.nbytes() / sizeof(float);
    std::atomic<bool> ends{false};
    std::atomic<unsigned> others{0};
    std::vector<std::thread> readers;
    for (std::size_t reader = 0; reader < 2; ++reader)
      readers.emplace_back([&, reader] {
        for (std::size_t at = reader; !ends; at = (at + 997) % count)
          if (const float value = elements[at]; value != 1 && value != 2) ++others;
      });
    for (unsigned times = 0; times < onecopy::testing::rounds(500); ++times) {
      if (times % 3 == 0) live.prepare(std::chrono::seconds(10), (times + times % 2) % 2 + 1);
      live.update(std::chrono::seconds(10), times % 2 + 1);
    }
    ends = true;
    for (std::thread& reader : readers) reader.join();
    EXPECT_EQ(others, 0u);
  }
}

TEST_F(StoreTest, WhatAFollowerSaysIsOfOneVersionWhileItUpdates) {
  Store store = start();
  for (const char* const number : {"1", "2"})
    store
        .draft("x", specs(), kCpu,
               {.key = {{"is", number}}, .attributes = {{"is", number}}, .checksums = true})
        .publish();
  Follower live = store.follow("x");
  std::atomic<bool> ends{false};
  std::thread updates([&] {
    for (std::uint64_t times = 0; times < 1000; ++times)
      live.update(std::chrono::seconds(10), times % 2 + 1);
    ends = true;
  });
  while (!ends) {
    const std::string key = live.key().at("is"), attribute = live.attributes().at("is");
    ASSERT_TRUE(key == "1" || key == "2");
    ASSERT_TRUE(attribute == "1" || attribute == "2");
    ASSERT_LE(live.number(), 2u);
    live.verify();
  }
  updates.join();
}

TEST_P(StoreTest, AVersionThatIsAsItIsCannotBeFollowed) {
  Store store = start();
  const Device device = Device::parse(GetParam());
  publish(store, device, 1);
  Follower live = store.follow("x");
  store.publish("x", made(device, 2, 2), {.keep = 2, .place = Placement::as_is});
  onecopy::testing::expect_refusal(ErrorCode::invalid_argument, {"as_is"}, [&] { live.update(); });
  onecopy::testing::expect_refusal(ErrorCode::invalid_argument, {"as_is"}, [&] { store.follow("x"); });
  EXPECT_EQ(value_of(live), 1);
  EXPECT_EQ(value_of(store.open("x")), 2);
}

TEST_P(StoreTest, AVersionIsReadInAnotherProcessThatTheStoreAloneConnects) {
  Child publisher([this] {
    Store store = start();
    publish(store, Device::parse(GetParam()), 7);
    keeper_->kill(SIGKILL);  // the worker: its guard goes on
    keeper_.reset();
  });
  EXPECT_EQ(publisher.join(), 0);
  Store store = Store::connect({.autostart = false});
  EXPECT_EQ(value_of(store.open("x")), 7);
}

TEST_P(StoreTest, ADraftThatIsDroppedIsNoVersion) {
  Store store = start();
  const Device device = Device::parse(GetParam());
  publish(store, device, 1);
  { const Draft dropped = store.draft("x"); }
  EXPECT_EQ(store.open("x").number(), 1u);
}

const PublishOptions kAsIs{.keep = 1, .place = Placement::as_is, .copies = false};

TEST_P(StoreTest, TensorsThatArePublishedAsTheyAreAreNotCopied) {
  Store store = start();
  const auto tensors = made(Device::parse(GetParam()), 1, 1);
  PublishOptions options = kAsIs;
  options.checksums = true;
  EXPECT_EQ(store.publish("x", tensors, options), 1u);
  const Version version = store.open("x");
  version.verify();
  EXPECT_EQ(value_of(version), 1);
  for (const auto& [name, tensor] : tensors) fill(tensor, 2);  // as no publisher may
  EXPECT_EQ(value_of(version), 2);
}

TEST_P(StoreTest, VersionsThatAreAsTheyAreOutliveTheirPublisher) {
  Store store = start();
  Child publisher([] {
    Store mine = Store::connect({.autostart = false});
    mine.publish("x", made(Device::parse(GetParam()), 7, 7), kAsIs);
    std::raise(SIGKILL);
  });
  EXPECT_EQ(publisher.join(), -SIGKILL);
  EXPECT_EQ(value_of(store.open("x")), 7);
}

TEST_P(StoreTest, MemoryIsKeptUntilItsVersionIsGoneAndNotRead) {
  Store store = start();
  const auto in_use = [] { return stats().live_blocks; };
  const auto before = in_use();
  store.publish("x", made(Device::parse(GetParam()), 7, 7), kAsIs);
  EXPECT_EQ(in_use(), before + 2);
  std::optional<Version> version = store.open("x");
  store.remove("x");
  EXPECT_EQ(value_of(*version), 7);
  EXPECT_EQ(in_use(), before + 2);
  version.reset();
  EXPECT_TRUE(eventually([&] { return in_use() == before; }));
}

TEST_P(StoreTest, ATensorOfTheVersionBeforeIsSharedWithTheNext) {
  Store store = start();
  const Device device = Device::parse(GetParam());
  publish(store, device, 7);
  std::vector<NamedTensor> tensors{{"a", store.open("x").tensor(0)}};
  tensors.push_back(made(device, 7, 7).back());
  store.publish("x", tensors, kAsIs);
  tensors.clear();
  EXPECT_TRUE(eventually([&] { return store.list().at(0).versions.size() == 1; }));
  EXPECT_EQ(value_of(store.open("x")), 7);
}

TEST_P(StoreTest, MemoryThatEndsWithItsMakerIsCopiedOrRefused) {
  Store store = start();
  const Device device = Device::parse(GetParam());
  Draft other = store.draft("y", specs(), device);
  fill(other.tensor(0), 3);
  const std::vector<NamedTensor> tensors{{"a", other.tensor(0)}};
  PublishOptions options = kAsIs;
  EXPECT_THROW(store.publish("x", tensors, options), Error);
  EXPECT_TRUE(store.list().empty());
  options.copies = true;
  store.publish("x", tensors, options);
  fill(other.tensor(0), 4);
  EXPECT_EQ(value_of(store.open("x")), 3);
}

/// Returns what a KV pool of eight blocks of 4 KiB is asked for with.
KvPoolOptions eight_on(Device device) {
  return {.block_bytes = 4096, .budget = 8 * 4096, .device = device};
}

TEST_P(StoreTest, AKvPoolOutlivesAllItsUsersAndTheWorker) {
  Store store = start();
  const Device device = Device::parse(GetParam());
  Child user([&] {
    KvPool kv_pool = Store::connect({.autostart = false}).kv_pool("kv", eight_on(device));
    const auto numbers = kv_pool.allocate(8);
    set_element<std::uint8_t>(kv_pool.memory(), static_cast<std::int64_t>(kv_pool.offset(numbers[0])), 7);
    kv_pool.put("a", numbers[0]);
    std::raise(SIGKILL);
  });
  EXPECT_EQ(user.join(), -SIGKILL);
  ::kill(store.keeper().worker, SIGKILL);
  KvPool kv_pool = store.kv_pool("kv", eight_on(device));
  EXPECT_EQ(kv_pool.memory().device(), device);
  const std::string key = "a";
  const auto found = kv_pool.find(std::span(&key, 1));
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(element<std::uint8_t>(kv_pool.memory(), static_cast<std::int64_t>(kv_pool.offset(found[0]))),
            7);
  // On a card, the blocks of the dead rest for a second, in which their copies end.
  EXPECT_TRUE(eventually([&] {
    try {
      return kv_pool.allocate(7).size() == 7;
    } catch (const Error&) {
      return false;
    }
  }));
  EXPECT_THROW(store.kv_pool("kv", {.block_bytes = 4096, .budget = 18 * 4096, .device = device}), Error);
  EXPECT_THROW(store.kv_pool("kv", eight_on(device == kCpu ? Device::parse("cuda:0") : kCpu)), Error);
  EXPECT_THROW(store.kv_pool("none", {.block_bytes = 4096, .device = device}), Error);
  EXPECT_THROW(store.open("kv"), Error);
  EXPECT_THROW(store.draft("kv"), Error);
}

TEST_F(StoreTest, AKvPoolIsPinnedWhileThisProcessHasIt) {
  Store store = start();
  const std::uint64_t before = stats().pinned_bytes;
  Tensor blocks;
  {
    KvPool kv_pool = store.kv_pool("kv", {.block_bytes = 4096, .budget = 8 * 4096, .pinned = true});
    blocks = kv_pool.memory();
  }
  EXPECT_GE(stats().pinned_bytes, before + blocks.nbytes());
  blocks.release();
  EXPECT_EQ(stats().pinned_bytes, before);
}

/// Copies row 2 of an array of bytes on the device into a block, and from there into its row 0.
void expect_rows_there_and_back(KvPool pool, Device device) {
  const Tensor host = empty(Layout(DType::u8, {4, 4096}));
  for (std::size_t i = 0; i < host.nbytes(); ++i)
    host.as<std::uint8_t>()[i] = static_cast<std::uint8_t>(i / 4096);
  const Tensor array = copy(host.view(), device);
  const KvRows rows{static_cast<std::byte*>(array.data()), 4, 4096, 4096, device};
  const std::vector<std::uint32_t> blocks = pool.allocate(1), from{2}, to{0};
  pool.copy_blocks(blocks, from, rows, 0, true);
  pool.copy_blocks(blocks, to, rows, 0, false);
  if (device != kCpu) backend(device.type).synchronize(device.index, {});
  for (const std::int64_t row : {0, 2}) EXPECT_EQ(element<std::uint8_t>(array, row * 4096), 2);
  EXPECT_EQ(element<std::uint8_t>(array, 4096), 1);
  pool.release(blocks);
}

TEST_P(StoreTest, RowsOfTheHostAndOfACardAreCopiedIntoBlocksAndBack) {
  Store store = start();
  const KvPool pool = store.kv_pool("kv", eight_on(Device::parse(GetParam())));
  expect_rows_there_and_back(pool, kCpu);
  expect_rows_there_and_back(pool, Device::parse("cuda:0"));
}

INSTANTIATE_TEST_SUITE_P(Devices, StoreTest, ::testing::Values("cpu", "cuda:0"),
                         [](const auto& device) { return device.param.substr(0, device.param.find(':')); });

TEST_F(StoreTest, AVersionMayLieInMoreSegmentsThanOnePacketHasRoomFor) {
  raise_descriptor_limit();
  Store store = start();
  constexpr std::size_t kPage = 4096;
  const std::size_t count = UnixSocket::kMaxPacketFds + 50;
  std::vector<NamedTensor> tensors;
  for (std::size_t i = 0; i < count; ++i) {
    Tensor page = Session::current().adopt(
        backend(DeviceType::cpu).create(0, kPage, SegmentKind::memfd, "test", 1), kPage);
    page.as<std::uint8_t>()[0] = static_cast<std::uint8_t>(i);
    tensors.emplace_back(std::to_string(i), page);
  }
  store.publish("x", tensors, kAsIs);
  keeper_->kill(SIGKILL);  // the guard has all of them, too
  const Version version = store.open("x");
  ASSERT_EQ(version.size(), count);
  for (std::size_t i = 0; i < count; ++i)
    EXPECT_EQ(version.tensor(i).as<std::uint8_t>()[0], static_cast<std::uint8_t>(i));
}

TEST_F(StoreTest, TensorsOfAnAscendDeviceAreCopiedToTheHostOrRefused) {
  Store store = start();
  const Device npu = Device::parse("npu:0");
  EXPECT_THROW(store.draft("x", specs(), npu), Error);
  const auto tensors = made(npu, 5, 5);
  EXPECT_THROW(store.publish("x", tensors, kAsIs), Error);
  EXPECT_TRUE(store.list().empty());
  store.publish("x", tensors);
  const Version version = store.open("x");
  EXPECT_EQ(version.device(), kCpu);
  EXPECT_EQ(value_of(version), 5);
}

/// A child that was forked while the draft was filled still has its memory, and writes after publish() has returned.
TEST_F(StoreTest, APublishedVersionCannotChangeEvenByAForkedChild) {
  Store store = start();
  publish(store, kCpu, 1);
  Draft draft = store.draft("x");
  fill(draft.tensor(0), 2);
  fill(draft.tensor(1), 2);
  const onecopy::testing::Shared<std::atomic<int>> step;
  Child child([&] {
    EXPECT_TRUE(eventually([&] { return step->load() == 1; }));
    fill(draft.tensor(0), 9);
    *step = 2;
  });
  EXPECT_EQ(draft.publish(), 2u);
  const Version version = store.open("x");
  *step = 1;
  ASSERT_TRUE(eventually([&] { return step->load() == 2; }));
  EXPECT_EQ(value_of(version), 2);
  EXPECT_EQ(value_of(draft), 2);
  version.verify();
  EXPECT_EQ(child.join(), 0);
}

/// Memory that a child has written to, before the child ended, is published as it is.
TEST_F(StoreTest, AForkedChildMayFillADraft) {
  Store store = start();
  publish(store, kCpu, 1);
  Draft draft = store.draft("x");
  fill(draft.tensor(1), 2);
  EXPECT_EQ(Child([&] { fill(draft.tensor(0), 2); }).join(), 0);
  draft.publish();
  EXPECT_EQ(value_of(store.open("x")), 2);
}

/// A program that speaks to the keeper itself, and says of memory that it can change that it lies elsewhere.
TEST_F(StoreTest, AVersionWhoseMemoryIsNotSealedIsRefusedByReaders) {
  Store store = start();
  auto client = std::make_shared<Client>(StoreDirectory(directory_), ConnectOptions{.autostart = false});
  const auto chunk = backend(DeviceType::cpu).create_chunk(0, 4096);
  ExportedMemory exported = backend(DeviceType::cpu).export_chunks({&chunk, 1}, Access::read_only);
  exported.size = 4096;
  Table table = table_for(kCpu, {});
  table.rows = {{"a", Layout(DType::u8, {4096}), 0}};
  table.size = 4096;
  describe(exported, table);
  VersionRecord version = record_of("x", kCpu, 4096, 1);
  version.device = "elsewhere";
  EXPECT_EQ(publish_version(*client, table, version, exported.fds), 1u);
  onecopy::testing::expect_refusal(ErrorCode::bad_handle, {"not sealed"}, [&] { store.open("x"); });
  onecopy::testing::expect_refusal(ErrorCode::bad_handle, {"not sealed"}, [&] { store.follow("x"); });
}

TEST_P(StoreTest, TensorsOfTheSameMemoryAreStoredOnce) {
  Store store = start();
  auto tensors = made(Device::parse(GetParam()), 5, 5);
  tensors.emplace_back("again", tensors.front().second);
  for (const Placement place : {Placement::slot, Placement::as_is}) {
    store.publish("x", tensors, {.checksums = true, .place = place});
    const Version version = store.open("x");
    version.verify();
    EXPECT_EQ(version.offset(2), version.offset(0));
    EXPECT_NE(version.offset(1), version.offset(0));
    EXPECT_EQ(value_of(version), 5);
  }
  store.publish("x", tensors);
  Draft draft = store.draft("x");
  fill(draft.tensor(2), 6);
  fill(draft.tensor(1), 6);
  draft.publish();
  EXPECT_EQ(value_of(store.open("x")), 6);
  EXPECT_THROW(store.draft("x", std::vector<TensorSpec>{{"a", Layout(DType::u8, {1}), 0}}), Error);
}

class ReplacedKeeper : public StoreTest {
 protected:
  /// Starts a keeper that takes over. The first of its processes that passes the point dies there.
  void take_over(const std::string& point = {}) {
    arm(point);
    replaced_.emplace(std::move(*keeper_));
    keeper_.emplace([this] {
      fate = &*fate_;
      point_hook.store(die_once);
      serve(StoreDirectory(directory_), {.replace = true});
    });
  }
  std::optional<Child> replaced_;
};

TEST_F(ReplacedKeeper, HandsOverAllVersionsWhileTheyAreRead) {
  Store store = start();
  publish(store, kCpu, 1);
  Follower live = store.follow("x");
  const KeeperInfo before = store.keeper();
  take_over();
  EXPECT_EQ(replaced_->join(), 0);
  EXPECT_EQ(store.keeper().worker, keeper_->pid());
  EXPECT_NE(store.keeper().guard, before.guard);
  EXPECT_EQ(value_of(store.open("x", 1)), 1);
  EXPECT_EQ(publish(store, kCpu, 2), 2u);
  EXPECT_EQ(live.update(), 2u);
  EXPECT_EQ(value_of(live), 2);
  keeper_->kill(SIGKILL);  // its guard has the versions, too
  EXPECT_EQ(value_of(Store::connect({.autostart = false}).open("x", 1)), 1);
}

TEST_F(ReplacedKeeper, GoesOnIfTheOtherOneIsKilled) {
  Store store = start();
  publish(store, kCpu, 1);
  const KeeperInfo before = store.keeper();
  take_over("store.replace.received");
  EXPECT_EQ(keeper_->join(), -SIGKILL);
  EXPECT_EQ(store.keeper().guard, before.guard);
  EXPECT_EQ(value_of(store.open("x")), 1);
}

TEST_F(ReplacedKeeper, IsReplacedAlsoIfTheWorkerOfTheOtherOneIsKilled) {
  Store store = start();
  publish(store, kCpu, 1);
  take_over("store.replace.ready");
  EXPECT_EQ(keeper_->join(), -SIGKILL);
  EXPECT_EQ(replaced_->join(), 0);
  EXPECT_EQ(value_of(store.open("x")), 1);
}

TEST_F(ReplacedKeeper, GoesOnIfItsOwnWorkerIsKilledBeforeTheOtherOneIsReady) {
  Store store = start("store.replace.sent");
  publish(store, kCpu, 1);
  const KeeperInfo before = store.keeper();
  replaced_.emplace(std::move(*keeper_));
  keeper_.emplace([this] { serve(StoreDirectory(directory_), {.replace = true}); });
  EXPECT_EQ(replaced_->join(), -SIGKILL);
  EXPECT_EQ(keeper_->join(), 0);  // it leaves
  EXPECT_EQ(store.keeper().guard, before.guard);
  EXPECT_EQ(value_of(store.open("x")), 1);
}

class LimitedKeeper : public StoreTest {};

TEST_F(LimitedKeeper, RefusesVersionsBeyondTheLimitOfADeviceOrAClient) {
  for (const Limits& limits : {Limits{.client_bytes = 10'000}, Limits{.devices = {{"cpu", 10'000}}}}) {
    Store store = start({}, {.limits = limits});
    publish(store, kCpu, 1, 1);
    EXPECT_THROW(store.draft("y", specs()).publish(), Error);
    EXPECT_EQ(store.list().size(), 1u);
    store.stop();
    EXPECT_EQ(keeper_->join(), 0);
  }
}

/// A version that is published in place keeps whole segments, of which its tensors are small parts.
TEST_F(LimitedKeeper, CountsTheWholeMemoryThatAVersionKeeps) {
  Store store = start({}, {.limits = {.client_bytes = 100'000}});
  const auto tensors = made(kCpu, 1, 1);
  onecopy::testing::expect_refusal(ErrorCode::out_of_memory, {"100000"},
                                   [&] { store.publish("x", tensors, kAsIs); });
  EXPECT_EQ(store.publish("x", tensors), 1u);
}

TEST_F(LimitedKeeper, DropsOldVersionsThatNobodyReadsToMakeRoom) {
  Store store = start({}, {.limits = {.bytes = 20'000}});
  publish(store, kCpu, 1);
  publish(store, kCpu, 2);
  EXPECT_EQ(publish(store, kCpu, 3), 3u);
  const auto versions = store.list().at(0).versions;
  ASSERT_EQ(versions.size(), 2u);
  EXPECT_EQ(versions.front().number, 2u);
}

TEST_F(LimitedKeeper, DropsVersionsThatAreOldAndNotReadAndNotCurrent) {
  Store store = start({}, {.limits = {.age = std::chrono::seconds(0)}});
  publish(store, kCpu, 1, 9);
  const Version read = store.open("x");
  publish(store, kCpu, 2, 9);
  publish(store, kCpu, 3, 9);
  EXPECT_TRUE(eventually([&] { return store.list().at(0).versions.size() == 2; }));
  EXPECT_EQ(store.list().at(0).versions.front().number, 1u);
}

class KilledKeeper : public StoreTest {};

/// The publisher notices nothing, and each version is there once.
TEST_P(KilledKeeper, LosesNoVersionAndMakesNoneTwice) {
  Store store = start(GetParam());
  for (int number = 1; number <= 4; ++number)
    EXPECT_EQ(publish(store, kCpu, static_cast<float>(number), 1), static_cast<std::uint64_t>(number));
  EXPECT_EQ(keeper_->join(), -SIGKILL);
  EXPECT_EQ(store.list().at(0).current, 4u);
  EXPECT_EQ(value_of(store.open("x")), 4);
  EXPECT_TRUE(eventually([&] { return store.list().at(0).versions.size() == 1; }));
}

INSTANTIATE_TEST_SUITE_P(Points, KilledKeeper,
                         ::testing::Values("store.publish.held", "store.index.append",
                                           "store.index.committed", "store.publish.recorded"),
                         [](const auto& point) {
                           std::string name = point.param;
                           std::replace(name.begin(), name.end(), '.', '_');
                           return name;
                         });

/// The objects of a transaction appear together, whichever step of the commit the worker dies at.
TEST_P(KilledKeeper, ShowsAllVersionsOfATransactionOrNone) {
  Store store = start();
  Transaction both = store.transaction();
  both.publish("x", made(kCpu, 1, 1));
  if (GetParam() == "store.publish.held") arm(GetParam());
  both.publish("y", made(kCpu, 2, 2));
  Draft draft = store.draft("z", specs());
  both.add(draft);
  fill(draft.tensor(0), 3);
  fill(draft.tensor(1), 3);
  EXPECT_EQ(draft.publish(), 0u);
  EXPECT_TRUE(store.list().empty());
  const std::string name = GetParam() == "store.publish.recorded" ? "store.commit.recorded" : GetParam();
  if (GetParam() != "store.publish.held") arm(name);
  EXPECT_EQ(both.commit(), 1u);
  EXPECT_EQ(keeper_->join(), -SIGKILL);
  EXPECT_EQ(value_of(store.open("x")), 1);
  EXPECT_EQ(value_of(store.open("y")), 2);
  EXPECT_EQ(value_of(store.open("z")), 3);
  EXPECT_EQ(store.list().size(), 3u);
}

/// A process writes a draft of another one, and is killed before or after it is done. The processes are forked before this
/// process uses the device.
TEST_P(StoreTest, ADraftOfTwoProcessesIsPublishedOnlyIfBothFinish) {
  Store store = start();
  const Device device = Device::parse(GetParam());
  std::array<std::array<int, 2>, 2> pipes{};
  std::vector<std::unique_ptr<Child>> others;
  for (const bool finishes : {false, true}) {
    ASSERT_EQ(::pipe(pipes[finishes].data()), 0);
    others.push_back(std::make_unique<Child>([from = pipes[finishes][0], finishes] {
      std::string handle(64, '\0');
      if (::read(from, handle.data(), handle.size()) != 64) return;
      Store mine = Store::connect({.autostart = false});
      Draft joined = mine.join_draft(handle);
      fill(joined.tensor(1), 7);
      if (finishes) joined.done();
      std::raise(SIGKILL);
    }));
  }
  for (const bool finishes : {false, true}) {
    Draft draft = store.draft("x", specs(), device, {.checksums = true});
    fill(draft.tensor(0), 7);
    ASSERT_EQ(::write(pipes[finishes][1], draft.handle().data(), 64), 64);
    EXPECT_EQ(others[finishes]->join(), -SIGKILL);
    if (finishes) EXPECT_EQ(draft.publish(), 1u);
    else EXPECT_THROW(draft.publish(), Error);
    for (const int fd : pipes[finishes]) ::close(fd);
  }
  EXPECT_EQ(value_of(store.open("x")), 7);
  store.open("x").verify();
}

class KilledPublisher : public StoreTest {};

TEST_P(KilledPublisher, LeavesAWholeVersionOrNone) {
  Store store = start();
  publish(store, kCpu, 1);
  Child publisher([] {
    onecopy::testing::die_at(GetParam().c_str());
    Store mine = Store::connect({.autostart = false});
    publish(mine, kCpu, 2);
  });
  EXPECT_EQ(publisher.join(), -SIGKILL);
  const Version now = store.open("x");
  EXPECT_EQ(value_of(now), static_cast<float>(now.number()));
  now.verify();
  EXPECT_EQ(publish(store, kCpu, 3), now.number() + 1);
}

INSTANTIATE_TEST_SUITE_P(Points, KilledPublisher,
                         ::testing::Values("store.draft.sealed", "store.draft.written",
                                           "store.draft.published"),
                         [](const auto& point) {
                           std::string name = point.param;
                           std::replace(name.begin(), name.end(), '.', '_');
                           return name;
                         });

class KilledSuccessor : public StoreTest {};

/// The first worker is killed, and the next one while a reader comes to it.
TEST_P(KilledSuccessor, IsReplacedAndReadersNoticeNothing) {
  Store store = start();
  publish(store, kCpu, 1);
  const Version reader = store.open("x");
  arm(GetParam());
  ::kill(store.keeper().worker, SIGKILL);
  EXPECT_EQ(store.list().at(0).versions.at(0).readers, 1u);
  EXPECT_EQ(fate_->passes, 0);
  EXPECT_EQ(value_of(reader), 1);
}

INSTANTIATE_TEST_SUITE_P(Points, KilledSuccessor,
                         ::testing::Values("store.worker.greets", "store.index.rewritten"),
                         [](const auto& point) {
                           std::string name = point.param;
                           std::replace(name.begin(), name.end(), '.', '_');
                           return name;
                         });

/// Each worker appends to the index that the one before has left.
TEST_F(StoreTest, HasAllVersionsHoweverOftenItsWorkerWasKilled) {
  Store store = start();
  for (int number = 1; number <= 6; ++number) {
    EXPECT_EQ(publish(store, kCpu, static_cast<float>(number), 10), static_cast<std::uint64_t>(number));
    const int worker = store.keeper().worker;
    ::kill(worker, SIGKILL);
    EXPECT_TRUE(eventually([&] { return store.keeper().worker != worker; }));
    EXPECT_EQ(store.open("x").number(), static_cast<std::uint64_t>(number));
    EXPECT_EQ(value_of(store.open("x")), static_cast<float>(number));
    EXPECT_EQ(store.list().at(0).versions.size(), static_cast<std::size_t>(number));
  }
}

int rename_unless_refused(const char* from, const char* to) {
  if (!std::filesystem::exists(std::string(to) + ".refused")) return ::rename(from, to);
  errno = EIO;
  return -1;
}

/// The index is of an earlier boot, so the keeper has its numbers in a file without a name, which only its halves have.
TEST_F(StoreTest, PublishesNothingIntoAnIndexThatNoOtherKeeperWouldFind) {
  {
    Store store = start();
    publish(store, kCpu, 1);
    kill_both();
  }
  const std::string index = directory_ + "/index";
  std::fstream(index, std::ios::in | std::ios::out | std::ios::binary).seekp(16).write("\xff\xff", 2);
  std::ofstream(index + ".refused").close();
  index_calls.rename = rename_unless_refused;
  {
    Store store = start();
    onecopy::testing::expect_refusal(ErrorCode::system, {"index"}, [&] { publish(store, kCpu, 2); });
    std::filesystem::remove(index + ".refused");
    EXPECT_EQ(publish(store, kCpu, 2), 2u);
    kill_both();
  }
  index_calls = {};
  Store store = start();
  EXPECT_EQ(publish(store, kCpu, 3), 3u);
}

TEST_F(StoreTest, DropsWhatItsNewWorkerPublishedAtOnce) {
  Store store = start();
  publish(store, kCpu, 1, 1);
  ::kill(store.keeper().worker, SIGKILL);
  for (int number = 2; number <= 5; ++number) publish(store, kCpu, static_cast<float>(number), 1);
  EXPECT_LE(store.list().at(0).versions.size(), 2u);
}

TEST_F(StoreTest, ListsMoreVersionsThanOnePacketTakes) {
  Store store = start();
  constexpr std::uint64_t kVersions = 3500;
  const std::vector<TensorSpec> one{{"a", Layout(DType::u8, {1})}};
  for (std::uint64_t number = 1; number <= kVersions; ++number)
    ASSERT_EQ(store.draft("x", one, kCpu, {.keep = kVersions}).publish(), number);
  store.draft("y", one).publish();
  const auto objects = store.list();
  ASSERT_EQ(objects.size(), 2u);
  ASSERT_EQ(objects[0].versions.size(), kVersions);
  for (std::uint64_t at = 0; at < kVersions; ++at) ASSERT_EQ(objects[0].versions[at].number, at + 1);
  EXPECT_EQ(objects[1].versions.size(), 1u);
}

TEST_F(StoreTest, HasNoProcessLeftWhenItWasStopped) {
  Store store = start();
  const KeeperInfo halves = store.keeper();
  const Fd worker = open_pidfd(halves.worker);
  const Fd guard = open_pidfd(halves.guard);
  store.stop();
  EXPECT_TRUE(has_exited(worker));
  EXPECT_TRUE(has_exited(guard));
}

TEST_F(StoreTest, VersionsComeBackEvenIfTheNewWorkerIsKilledWhileItTakesThem) {
  Store store = start();
  publish(store, kCpu, 1);
  publish(store, kCpu, 2);
  const Version first = store.open("x", 1);
  const Version second = store.open("x");
  kill_both();
  Store other = start("store.worker.restored");
  store.list();  // the reader's next call
  EXPECT_EQ(fate_->passes, 0);
  EXPECT_EQ(value_of(other.open("x", 1)), 1);
  EXPECT_EQ(value_of(other.open("x")), 2);
}

TEST_F(StoreTest, VersionsThatAreOpenComeBackWhenBothHalvesWereKilled) {
  Store store = start();
  publish(store, kCpu, 1);
  publish(store, kCpu, 2);
  const Version first = store.open("x", 1);
  const Version second = store.open("x");
  kill_both();
  Store other = start();
  store.list();  // the reader's next call
  const auto after = other.list();
  for (const VersionInfo& version : after.at(0).versions) EXPECT_FALSE(version.is_awaited);
  EXPECT_EQ(value_of(other.open("x", 1)), 1);
  EXPECT_EQ(value_of(other.open("x")), 2);
}

TEST_F(StoreTest, APreparedVersionIsShownAlsoWhenBothHalvesWereKilledMeanwhile) {
  Store store = start();
  publish(store, kCpu, 1);
  Follower live = store.follow("x");
  publish(store, kCpu, 2);
  EXPECT_EQ(live.prepare(), 2u);
  kill_both();
  onecopy::testing::expect_refusal(ErrorCode::peer_died, {}, [&] { live.update(); });
  EXPECT_EQ(value_of(live), 1);
  Store other = start();
  EXPECT_EQ(live.update(), 2u);
  EXPECT_EQ(value_of(live), 2);
  EXPECT_EQ(value_of(other.open("x")), 2);  // which the follower alone still had
}

TEST_F(StoreTest, AVersionThatIsOpenComesBackWithoutACallOfItsReader) {
  Store store = start();
  publish(store, kCpu, 1);
  onecopy::testing::Shared<std::atomic<bool>> is_open;
  Child reader([&] {
    const Version version = Store::connect({.autostart = false}).open("x");
    *is_open = true;
    for (;;) ::pause();
  });
  ASSERT_TRUE(eventually([&] { return is_open->load(); }));
  kill_both();
  Store other = start();
  EXPECT_TRUE(eventually([&] { return !other.list().at(0).versions.at(0).is_awaited; }));
  EXPECT_EQ(value_of(other.open("x")), 1);
  reader.kill(SIGKILL);
}

/// A publisher is at work when both halves are killed.
TEST_F(StoreTest, EachOpenVersionIsThereAgainWheneverBothHalvesAreKilled) {
  const char* const set = std::getenv("ONECOPY_TEST_KILLS");
  const int kills = set ? std::atoi(set) : 10;
  const onecopy::testing::Watchdog watchdog(onecopy::testing::Watchdog::kLimit +
                                            std::chrono::seconds(kills));
  onecopy::testing::Shared<std::atomic<int>> last;
  std::mt19937 random(std::random_device{}());
  Store store = start();
  publish(store, kCpu, 0);
  std::vector<Version> held{store.open("x")};
  for (int kill = 0; kill < kills; ++kill) {
    Child publisher([&last] {
      for (Store mine = Store::connect({.autostart = false});;)
        publish(mine, kCpu, static_cast<float>(++*last), 1);
    });
    const std::uint64_t newest = held.back().number();
    EXPECT_TRUE(eventually([&] { return store.open("x").number() > newest + random() % 8; }));
    held.push_back(store.open("x"));
    kill_both();
    publisher.kill(SIGKILL);
    publisher.join();
    Store other = start();
    store.list();  // the reader's next call
    for (const Version& version : held)
      ASSERT_EQ(value_of(other.open("x", version.number())), value_of(version)) << version.number();
    if (held.size() > 4) held.erase(held.begin() + 1);
  }
}

/// More ends of readings than the socket has room for.
TEST_F(StoreTest, AWorkerThatIsStoppedDelaysNoEndOfAReading) {
  raise_descriptor_limit();
  Store store = start();
  publish(store, kCpu, 1);
  std::vector<Version> read;
  for (int i = 0; i < 600; ++i) read.push_back(store.open("x"));
  const int worker = store.keeper().worker;
  ::kill(worker, SIGSTOP);
  read.clear();
  ::kill(worker, SIGCONT);
  EXPECT_TRUE(eventually([&] { return store.list().at(0).versions.at(0).readers == 0; }));
}

TEST_F(StoreTest, NoClientHasADescriptorOfTheIndex) {
  Store store = start();
  publish(store, kCpu, 1);
  const Version version = store.open("x");
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const std::string target = std::filesystem::read_symlink(entry.path(), gone).string();
    EXPECT_EQ(target.find("onecopy-store-index"), std::string::npos);
  }
}

}  // namespace
}  // namespace onecopy::store
