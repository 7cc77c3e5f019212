// SPDX-License-Identifier: Apache-2.0
// Pulling from hosts that lie, or whose pages have another size.
#include "store/ferry/pull.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>

#include <fmt/format.h>

#include "onecopy/core/error.h"
#include "onecopy/share/share.h"
#include "onecopy/store/store.h"
#include "os/log.h"
#include "store/ferry/changes.h"
#include "store/keeper/keeper.h"
#include "support/child.h"
#include "support/eventually.h"
#include "support/limits.h"
#include "support/refusal.h"
#include "unit/store/ferry/false_source.h"

namespace onecopy::store::ferry {
namespace {

using namespace std::chrono_literals;
using onecopy::testing::Child;
using onecopy::testing::eventually;
using onecopy::testing::expect_refusal;
using onecopy::testing::Limit;

constexpr std::uint64_t kElements = 2 * kChunkBytes + 1000;  // three chunks, of which the last one is short

/// A keeper of the test's own, and hosts that have a version of a tensor of bytes.
class PullTest : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ = fmt::format("{}onecopy-pull-test-{}", ::testing::TempDir(), ::getpid());
    ::setenv("ONECOPY_STORE_DIR", directory_.c_str(), 1);
    keeper_.emplace([this] { serve(StoreDirectory(directory_), {}); });
    ASSERT_TRUE(eventually([] {
      try {
        Store::connect({.autostart = false});
        return true;
      } catch (const Error&) {
        return false;
      }
    }));
  }
  void TearDown() override {
    Store::connect({.autostart = false}).stop();
    std::filesystem::remove_all(directory_);
  }

  /// Lets a host have the version. `page`: what its memory is rounded up to.
  static void give(FalseSource& host, std::uint64_t page = 4096, std::uint64_t bytes = kElements) {
    Table table;
    table.rows = {{"w", Layout(DType::u8, {static_cast<std::int64_t>(bytes)}), 0}};
    table.size = (bytes + page - 1) / page * page;
    table.parts = {{table.size, 1, 0, {}}};
    host.told.version = {1, 2, 3};
    host.told.number = host.told.newest = 1;
    host.told.keep = 2;
    host.told.table = encode(table);
    host.content.resize(bytes);
    for (std::size_t at = 0; at < bytes; ++at) host.content[at] = static_cast<std::byte>(at * 7 >> 3);
  }
  static Pull pull_from(std::initializer_list<const FalseSource*> hosts) {
    PullOptions options;
    for (const FalseSource* const host : hosts) options.sources.push_back(host->address());
    options.name = "w";
    options.keys = {test_key()};
    options.keeper.autostart = false;
    return Pull(std::move(options));
  }
  static void expect_arrived(const Bytes& content) {
    const Version version = Store::connect({.autostart = false}).open("w");
    const Tensor tensor = version.tensor(0);
    ASSERT_EQ(tensor.nbytes(), content.size());
    EXPECT_EQ(std::memcmp(tensor.data(), content.data(), content.size()), 0);
  }
  static void expect_nothing_arrived() {
    expect_refusal(ErrorCode::stale_handle, {"w"}, [] { Store::connect({.autostart = false}).open("w"); });
  }

  std::string directory_;
  std::optional<Child> keeper_;
};

TEST_F(PullTest, AsksAgainForAChunkWithAWrongChecksum) {
  FalseSource host;
  give(host);
  int damaged = 0;
  host.change = [&](FalseSource::Answer& answer) {
    if (answer.head.chunk == 1 && damaged++ == 0) answer.bytes[1000] ^= std::byte{1};
  };
  host.start();
  EXPECT_EQ(pull_from({&host}).next(0ms)->number, 1);
  EXPECT_EQ(host.asked(), 4);
  expect_arrived(host.content);
}

TEST_F(PullTest, ShowsNothingOfAHostThatSendsWrongChecksumsAndKeepsTheOtherChunks) {
  FalseSource host, honest;
  give(host);
  give(honest);
  host.change = [](FalseSource::Answer& answer) {
    if (answer.head.chunk == 1) answer.sum.crc ^= 1;
  };
  host.start();
  honest.start();
  expect_refusal(ErrorCode::bad_file, {"wrong checksum", host.address().str().c_str()},
                 [&] { pull_from({&host}).next(0ms); });
  expect_nothing_arrived();
  EXPECT_EQ(pull_from({&honest}).next(0ms)->taken, kChunkBytes);
  expect_arrived(honest.content);
}

TEST_F(PullTest, GivesUpOnAHostThatSendsNothingButWrongChecksums) {
  FalseSource host;
  give(host);
  host.change = [](FalseSource::Answer& answer) { answer.sum.crc ^= 1; };
  host.start();
  expect_refusal(ErrorCode::bad_file, {"wrong checksum"}, [&] {
    pull_from({&host}).next(0ms, {false, 500ms, [](const Error&) {}});
  });
}

TEST_F(PullTest, TakesOnlyChunksThatAreMissingFromTheNextHostAfterWrongChecksums) {
  FalseSource host, honest;
  give(host);
  give(honest);
  host.change = [](FalseSource::Answer& answer) {
    if (answer.head.chunk == 1) answer.bytes.front() ^= std::byte{1};
  };
  host.start();
  honest.start();
  const auto pulled = pull_from({&host, &honest}).next(0ms);
  EXPECT_EQ(pulled->number, 1);
  EXPECT_EQ(pulled->taken,
            kElements);  // each chunk once; a slow machine leaves the first host before its last chunk
  EXPECT_GE(honest.asked(), 1);
  expect_arrived(honest.content);
}

TEST_F(PullTest, StagesAVersionBesideTheOneBeforeThatIsNotShownYet) {
  FalseSource one, next;
  give(one);
  give(next);
  next.told.version = {4, 5, 6};
  next.told.number = next.told.newest = 2;
  next.content[0] = std::byte{77};
  one.start();
  next.start();
  const Pull::Chosen first{one.told.version, 1}, second{next.told.version, 2};
  EXPECT_EQ(pull_from({&one}).stage(first), kElements);
  EXPECT_EQ(pull_from({&next}).stage(second), kElements);
  Pull pull = pull_from({});
  EXPECT_EQ(pull.has(first), kElements);
  EXPECT_EQ(pull.has(second), kElements);
  EXPECT_TRUE(pull.show(first));
  expect_arrived(one.content);
  EXPECT_TRUE(pull.show(second));
  expect_arrived(next.content);
}

TEST_F(PullTest, DropsTheVersionThatItBeganWithLastUnlessThatIsWanted) {
  FalseSource host;
  give(host);
  host.start();
  const Pull::Chosen chosen{host.told.version, 1};
  EXPECT_EQ(pull_from({&host}).stage(chosen), kElements);
  Pull pull = pull_from({});
  pull.drop_arriving_unless([&](const Token& version) { return version == chosen.version; });
  EXPECT_EQ(pull.has(chosen), kElements);
  pull.drop_arriving_unless([](const Token&) { return false; });
  EXPECT_EQ(pull.has(chosen), std::nullopt);
}

TEST_F(PullTest, DropsAnUnwantedVersionAlsoAfterAnotherOneWasShownAgain) {
  FalseSource first, second;
  give(first);
  give(second);
  second.told.version = {4, 5, 6};
  second.told.number = second.told.newest = 2;
  first.start();
  second.start();
  const Pull::Chosen shown{first.told.version, 1}, begun{second.told.version, 2};
  EXPECT_EQ(pull_from({&first}).next(0ms)->number, 1U);
  EXPECT_EQ(pull_from({&second}).stage(begun), kElements);
  Origins origins(directory_, "w");
  {
    ASSERT_TRUE(origins.try_lock());
    origins.add({shown.version, origins.pairs().front().local, 1, 0});  // as by a rollback of the group
    origins = Origins(directory_, "w");
  }
  std::vector<Token> asked;
  Pull pull = pull_from({});
  pull.drop_arriving_unless([&](const Token& version) {
    asked.push_back(version);
    return version == shown.version;
  });
  EXPECT_EQ(asked, std::vector{begun.version});  // and not about versions that do not arrive
  EXPECT_EQ(pull.has(begun), std::nullopt);
  EXPECT_NE(pull.has(shown), std::nullopt);
}

TEST_F(PullTest, TakesAVersionOfAHostWithPagesOfAnotherSize) {
  std::uint64_t number = 0;
  for (const std::uint64_t page : {512, 4096, 65536}) {
    FalseSource host;
    give(host, page, kElements + page);
    host.told.version = {static_cast<std::uint8_t>(page >> 9), 1};
    host.told.number = host.told.newest = ++number;
    host.start();
    EXPECT_TRUE(pull_from({&host}).next(0ms)->is_new) << page;
    expect_arrived(host.content);
    Store::connect({.autostart = false}).remove("w", 0);
  }
}

TEST_F(PullTest, RefusesAnAnswerThatIsNotTheOneThatItAskedFor) {
  const std::vector<std::function<void(FalseSource::Answer&)>> lies = {
      [](FalseSource::Answer& answer) { answer.head.chunk += 1; },
      [](FalseSource::Answer& answer) { answer.head.bytes += 1; },
      [](FalseSource::Answer& answer) { answer.head.bytes = UINT32_MAX; },
  };
  for (const auto& lie : lies) {
    FalseSource host;
    give(host);
    host.change = lie;
    host.start();
    expect_refusal(ErrorCode::protocol, {"another chunk"}, [&] { pull_from({&host}).next(0ms); });
    expect_nothing_arrived();
  }
}

TEST_F(PullTest, RefusesAnErrorOfNoKnownCode) {
  FalseSource host;
  host.told.refusal = 255;
  host.told.text = "no";
  host.start();
  expect_refusal(ErrorCode::protocol, {"no"}, [&] { pull_from({&host}).next(0ms); });
}

TEST_F(PullTest, RefusesATableWithoutSense) {
  FalseSource host;
  give(host);
  host.told.table[host.told.table.size() / 2] ^= std::byte{1};
  host.start();
  expect_refusal(ErrorCode::bad_handle, {}, [&] { pull_from({&host}).next(0ms); });
  expect_nothing_arrived();
}

TEST_F(PullTest, LeavesNoNoteOfAVersionForWhichThereIsNoRoom) {
  FalseSource host;
  give(host);
  host.start();
  Pull pull = pull_from({&host});
  const Origins origins(StoreDirectories::of_this_user().all().front().path(), "w");
  {
    const Limit limit(RLIMIT_FSIZE, kChunkBytes);
    for (int i = 0; i < 3; ++i)
      expect_refusal(ErrorCode::out_of_memory, {"RLIMIT_FSIZE"}, [&] { pull.next(0ms); });
  }
  EXPECT_EQ(origins.size(), 0);
  EXPECT_EQ(pull.next(0ms)->number, 1);
  EXPECT_GT(origins.size(), 0);
  expect_arrived(host.content);
}

TEST_F(PullTest, ChangesEndTheWaitForThemAlsoIfTheyCameBefore) {
  Client client(StoreDirectories::of_this_user(), {.autostart = false});
  Changes changes(client, "w");
  Origins origins(directory_, "w");
  ASSERT_TRUE(origins.try_lock());
  origins.add({{1}, {2}, 3, 4});
  changes.wait(kForever);
  const std::vector<NamedTensor> tensors{{"bytes", empty(Layout(DType::u8, {8}))}};
  Store::connect({.autostart = false}).publish("w", tensors);
  changes.wait(kForever);
}

TEST_F(PullTest, ReadsItsNotesAfterAFullDiskHasTakenAPartOfOne) {
  Origins origins(directory_, "full");
  ASSERT_TRUE(origins.try_lock());
  const Origins::Pair first{{1}, {2}, 3, 4}, second{{5}, {6}, 7, 8};
  origins.add(first);
  {
    const Limit limit(RLIMIT_FSIZE, sizeof first + 10);  // the kernel writes the first ten bytes
    expect_refusal(ErrorCode::out_of_memory, {"cannot write"}, [&] { origins.add(second); });
  }
  EXPECT_EQ(origins.size(), sizeof first + 10);
  EXPECT_EQ(origins.last()->number, first.number);
  origins.add(second);
  ASSERT_EQ(origins.pairs().size(), 2);
  EXPECT_EQ(origins.last()->number, second.number);
  EXPECT_EQ(origins.origin_of(second.local), second.origin);
}

}  // namespace
}  // namespace onecopy::store::ferry
