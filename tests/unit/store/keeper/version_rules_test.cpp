// SPDX-License-Identifier: Apache-2.0
// The rules of versions, with a keeper that has no processes, files or time of its own.
#include "store/keeper/version_rules.h"

#include <gtest/gtest.h>

#include <optional>
#include <random>
#include <set>

#include <fmt/format.h>

#include "onecopy/core/error.h"
#include "support/rounds.h"

namespace onecopy::store {
namespace {

using namespace std::chrono_literals;

/// A machine: an index that outlives keepers, and the versions that a keeper holds and processes read.
class FakeKeeper : public VersionKeeper {
 public:
  FakeKeeper() { start(true); }

  /// Starts a keeper in place of the one that ran. Both halves died, unless `keeps_memory`.
  void start(bool knows_all, Limits limits = {}, bool keeps_memory = false) {
    if (!keeps_memory) here.clear();
    rules.emplace(*this, std::move(limits), keeps_memory ? begin : begin = time, knows_all);
    for (const Record& record : index) rules->replay(record);
    rules->poll_all();
  }
  void pass(std::chrono::seconds seconds) {
    time += seconds;
    rules->reclaim_due();
  }
  std::uint64_t publish(const std::string& name, std::uint32_t keep = 2, std::uint64_t bytes = 10,
                        int publisher = 1) {
    VersionRecord version = draft(name, keep, bytes, publisher);
    const std::uint64_t number = rules->publish(version, take());
    rules->reclaim(name);
    return number;
  }
  VersionRecord draft(const std::string& name, std::uint32_t keep = 2, std::uint64_t bytes = 10,
                      int publisher = 1) {
    VersionRecord version;
    version.name = name;
    version.token = {static_cast<std::uint8_t>(++tokens), static_cast<std::uint8_t>(tokens >> 8)};
    version.bytes = bytes;
    version.device = "cpu";
    version.keep = keep;
    version.publisher = publisher;
    return version;
  }
  VersionRules::Take take() {
    return [this](std::uint64_t id) { here.insert(id); };
  }
  /// Returns the number of the version that a process opens; 0 if there is none, nothing if the process waits.
  std::optional<std::uint64_t> open(const std::string& name, std::uint64_t number = 0) {
    try {
      const VersionRecord* const version = rules->open(name, number);
      return version ? std::optional(version->number) : std::nullopt;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::stale_handle);
      return 0;
    }
  }
  VersionRecord record(const std::string& name, std::uint64_t number) {
    return rules->catalog().find(name, number)->record;
  }
  std::optional<ErrorCode> restore(const VersionRecord& version, bool is_ours = false) {
    try {
      rules->restore(version, is_ours, take());
      return std::nullopt;
    } catch (const Error& error) {
      return error.code();
    }
  }

  Clock::time_point now() const override { return time; }
  std::int64_t wall_clock() const override {
    return std::chrono::nanoseconds(time.time_since_epoch()).count();
  }
  bool is_here(std::uint64_t id) const override { return here.contains(id); }
  bool may_be_read(std::uint64_t id) const override { return read.contains(id); }
  void write(const Record& record) override {
    if (is_disk_full) throw Error(ErrorCode::out_of_memory, "the disk is full");
    index.push_back(record);
  }
  void forget(std::uint64_t id) override { here.erase(id); }

  Clock::time_point time{1h}, begin{1h};
  std::uint64_t tokens = 0;
  std::vector<Record> index;
  std::set<std::uint64_t> here, read;  ///< ids
  bool is_disk_full = false;
  std::optional<VersionRules> rules;
};

TEST(StoreRules, KeepTheVersionOfAnIdleReaderAfterTheWorkerWasKilled) {
  FakeKeeper keeper;
  keeper.publish("w");
  keeper.read.insert(keeper.record("w", 1).id);
  for (int i = 0; i < 3; ++i) keeper.publish("w");
  keeper.start(true, {}, true);
  keeper.pass(1h);
  EXPECT_EQ(keeper.open("w", 1), 1u);
  keeper.read.clear();
  keeper.pass(1s);
  EXPECT_EQ(keeper.open("w", 1), 0u);
}

TEST(StoreRules, BringNoDeletedVersionBack) {
  FakeKeeper keeper;
  keeper.publish("w");
  const VersionRecord deleted = keeper.record("w", 1);
  keeper.rules->remove("w", 0);
  EXPECT_EQ(keeper.restore(deleted, true), ErrorCode::stale_handle);
  keeper.start(true);
  EXPECT_EQ(keeper.restore(deleted), ErrorCode::stale_handle);
  EXPECT_EQ(keeper.open("w"), 0u);
}

TEST(StoreRules, KeepARollbackWhateverIsOffered) {
  FakeKeeper keeper;
  for (int i = 0; i < 3; ++i) keeper.publish("w", 3);
  keeper.rules->rollback("w", 2);
  const VersionRecord first = keeper.record("w", 1), second = keeper.record("w", 2),
                      third = keeper.record("w", 3);
  keeper.start(true);
  for (const VersionRecord& version : {third, first, second})
    EXPECT_EQ(keeper.restore(version), std::nullopt);
  EXPECT_EQ(keeper.open("w"), 2u);
}

TEST(StoreRules, WaitForTheCurrentVersionAndThenTakeTheNewestThatIsHere) {
  FakeKeeper keeper;
  for (int i = 0; i < 3; ++i) keeper.publish("w", 3);
  const VersionRecord first = keeper.record("w", 1), third = keeper.record("w", 3);
  keeper.start(true);
  EXPECT_EQ(keeper.restore(first), std::nullopt);
  EXPECT_EQ(keeper.open("w"), std::nullopt);
  EXPECT_EQ(keeper.open("w", 1), 1u);
  EXPECT_EQ(keeper.open("other"), 0u);
  keeper.pass(2s);
  EXPECT_EQ(keeper.open("w"), 1u);
  EXPECT_EQ(keeper.open("w", 3), 0u);
  EXPECT_EQ(keeper.restore(third), std::nullopt);  // its reader was stopped
  EXPECT_EQ(keeper.open("w"), 3u);
}

TEST(StoreRules, TakeAVersionBackThatWasGivenUpAfterTenMinutes) {
  FakeKeeper keeper;
  for (int i = 0; i < 2; ++i) keeper.publish("w", 3);
  const VersionRecord first = keeper.record("w", 1), second = keeper.record("w", 2);
  keeper.start(true);
  keeper.pass(VersionRules::kAwaited);
  EXPECT_TRUE(keeper.rules->is_unused());
  EXPECT_EQ(keeper.open("w"), 0u);
  keeper.index = keeper.rules->records();
  keeper.start(true);  // another keeper knows of it, too
  EXPECT_EQ(keeper.restore(first, true), ErrorCode::stale_handle);
  EXPECT_EQ(keeper.restore(first), std::nullopt);
  EXPECT_EQ(keeper.open("w"), 1u);
  EXPECT_EQ(keeper.restore(second), std::nullopt);
  EXPECT_EQ(keeper.open("w", 2), 2u);
  keeper.rules->remove("w", 0);
  EXPECT_EQ(keeper.restore(second), ErrorCode::stale_handle) << "it was removed after it came back";
}

TEST(StoreRules, TakeNoGivenUpVersionBackAfterAPublishOrARemoval) {
  FakeKeeper keeper;
  for (const char* const name : {"published", "removed"}) keeper.publish(name);
  const VersionRecord published = keeper.record("published", 1), removed = keeper.record("removed", 1);
  keeper.start(true);
  keeper.pass(VersionRules::kAwaited);
  EXPECT_EQ(keeper.publish("published"), 2u);
  keeper.rules->remove("removed", 0);
  keeper.start(true);
  for (const VersionRecord& version : {published, removed})
    EXPECT_EQ(keeper.restore(version), ErrorCode::stale_handle) << version.name;
}

TEST(StoreRules, KeepTheCurrentVersionWhenAGivenUpOneComesBack) {
  FakeKeeper keeper;
  for (int i = 0; i < 3; ++i) keeper.publish("w", 3);
  keeper.rules->rollback("w", 2);
  const VersionRecord second = keeper.record("w", 2), third = keeper.record("w", 3);
  keeper.start(true);
  EXPECT_EQ(keeper.restore(second), std::nullopt);
  keeper.pass(VersionRules::kAwaited);
  EXPECT_EQ(keeper.restore(third), std::nullopt);
  EXPECT_EQ(keeper.open("w"), 2u) << "a rollback was undone";
  EXPECT_EQ(keeper.open("w", 3), 3u);
}

TEST(StoreRules, GiveAnAwaitedVersionUpOnceItsObjectWasPublishedMoreThanKeepTimes) {
  FakeKeeper keeper;
  keeper.publish("w");
  const VersionRecord old = keeper.record("w", 1);
  keeper.start(true);
  for (int i = 0; i < 2; ++i) keeper.publish("w");
  EXPECT_EQ(keeper.rules->catalog().find("w", 1)->record, old);
  EXPECT_EQ(keeper.publish("w"), 4u);
  EXPECT_EQ(keeper.restore(old), ErrorCode::stale_handle);
}

TEST(StoreRules, AwaitNoVersionThatNobodyReadWhenTheKeeperWasToldToEnd) {
  FakeKeeper keeper;
  for (const char* const name : {"read", "unread"}) keeper.publish(name);
  keeper.read.insert(keeper.record("read", 1).id);
  const VersionRecord read = keeper.record("read", 1), unread = keeper.record("unread", 1);
  keeper.rules->drop_unread();
  keeper.start(true);
  EXPECT_EQ(keeper.rules->catalog().size(), 1u);
  EXPECT_EQ(keeper.restore(read), std::nullopt);
  EXPECT_EQ(keeper.restore(unread), ErrorCode::stale_handle);
  EXPECT_EQ(keeper.publish("unread"), 2u);
}

TEST(StoreLimits, AreThoseOfTheFormerKeeperUnlessTheyAreSet) {
  const Limits former{
      .bytes = 10, .client_bytes = 20, .devices = {{"cuda:0", 30}, {"cuda:1", 40}}, .age = 50s};
  Limits limits{.client_bytes = 21, .devices = {{"cuda:1", 41}}};
  limits.inherit(Limits::from(former.kept()));
  EXPECT_EQ(limits.bytes, 10u);
  EXPECT_EQ(limits.client_bytes, 21u);
  EXPECT_EQ(limits.devices, (std::map<std::string, std::uint64_t>{{"cuda:0", 30}, {"cuda:1", 41}}));
  EXPECT_EQ(limits.age, 50s);
  Limits none;
  none.inherit(Limits::from(Limits{}.kept()));
  EXPECT_EQ(none.bytes, UINT64_MAX);
  EXPECT_FALSE(none.age);
}

TEST(StoreRules, NeverDropTheNewestVersionThatIsHere) {
  FakeKeeper keeper;
  for (int i = 0; i < 2; ++i) keeper.publish("w", 2);
  keeper.index.push_back({.kind = Record::Kind::object, .version = keeper.draft("w", 1)});
  const VersionRecord first = keeper.record("w", 1);
  keeper.start(true);
  EXPECT_EQ(keeper.restore(first), std::nullopt);  // 2 never comes back
  keeper.pass(1min);
  EXPECT_EQ(keeper.open("w"), 1u);
}

TEST(StoreRules, UseNoNumberTwice) {
  FakeKeeper keeper;
  EXPECT_EQ(keeper.publish("w"), 1u);
  keeper.rules->remove("w", 0);
  EXPECT_EQ(keeper.publish("w"), 2u);
  keeper.start(true);
  EXPECT_EQ(keeper.publish("w"), 3u);
}

TEST(StoreRules, PublishOnceHoweverOftenAPublisherAsks) {
  FakeKeeper keeper;
  const VersionRecord version = keeper.draft("w", 1);
  EXPECT_EQ(keeper.rules->publish(version, keeper.take()), 1u);
  EXPECT_EQ(keeper.rules->publish(version, keeper.take()), 1u);
  keeper.publish("w", 1);
  EXPECT_EQ(keeper.rules->publish(version, keeper.take()), 1u);  // dropped by now
  EXPECT_EQ(keeper.open("w"), 2u);
}

TEST(StoreRules, KeepAsManyVersionsAsTheLastPublisherWanted) {
  FakeKeeper keeper;
  keeper.publish("w", 1);
  keeper.publish("w", 3);
  keeper.rules->rollback("w", 1);
  keeper.rules->reclaim("w");
  EXPECT_EQ(keeper.open("w", 2), 2u);
}

TEST(StoreRules, ChangeNothingWhenTheDiskIsFull) {
  FakeKeeper keeper;
  for (int i = 0; i < 2; ++i) keeper.publish("w");
  const auto here = keeper.here;
  keeper.is_disk_full = true;
  EXPECT_THROW(keeper.publish("w"), Error);
  EXPECT_THROW(keeper.rules->rollback("w", 1), Error);
  EXPECT_THROW(keeper.rules->remove("w", 0), Error);
  EXPECT_EQ(keeper.here, here);
  EXPECT_EQ(keeper.open("w"), 2u);
  keeper.is_disk_full = false;
  EXPECT_EQ(keeper.publish("w"), 3u);
}

TEST(StoreRules, TakeUnknownVersionsBackOnlyIfTheIndexWasLost) {
  FakeKeeper keeper;
  for (int i = 0; i < 2; ++i) keeper.publish("w");
  const VersionRecord first = keeper.record("w", 1), second = keeper.record("w", 2);
  keeper.index.clear();
  keeper.start(false);
  EXPECT_EQ(keeper.restore(second), std::nullopt);
  EXPECT_EQ(keeper.restore(first), std::nullopt);
  EXPECT_EQ(keeper.open("w"), 2u);
  VersionRecord wrong = keeper.draft("w");
  wrong.number = UINT64_MAX;
  EXPECT_EQ(keeper.restore(wrong), ErrorCode::protocol);
  wrong.number = 7;
  EXPECT_EQ(keeper.restore(wrong, true), ErrorCode::stale_handle);
  EXPECT_EQ(keeper.publish("w"), 3u);
  EXPECT_EQ(keeper.restore(wrong), ErrorCode::stale_handle);
}

TEST(StoreRules, RefuseADraftBeforeItTakesMemory) {
  FakeKeeper keeper;
  keeper.start(true, {.bytes = 100});
  keeper.publish("old", 1, 40);
  keeper.read.insert(keeper.record("old", 1).id);
  keeper.rules->reserve(1, keeper.draft("a", 1, 60));
  EXPECT_THROW(keeper.rules->reserve(2, keeper.draft("b", 1, 1)), Error);
  EXPECT_THROW(keeper.publish("b", 1, 1), Error);
  keeper.rules->release_all(1);
  keeper.rules->reserve(2, keeper.draft("b", 1, 60));
  EXPECT_EQ(keeper.open("old"), 1u);
}

TEST(StoreRules, CountADraftThatIsPublishedOnce) {
  FakeKeeper keeper;
  keeper.start(true, {.bytes = 100});
  const VersionRecord draft = keeper.draft("a", 1, 60);
  keeper.rules->reserve(1, draft);
  EXPECT_EQ(keeper.rules->publish(draft, keeper.take()), 1u);
  keeper.rules->reserve(1, keeper.draft("b", 1, 40));
}

TEST(StoreRules, DropOldVersionsForAPublishAndNotForAReservation) {
  FakeKeeper keeper;
  keeper.start(true, {.bytes = 100});
  for (int i = 0; i < 2; ++i) keeper.publish("w", 2, 40);
  const VersionRecord draft = keeper.draft("w", 2, 60);
  keeper.rules->reserve(1, draft);
  EXPECT_EQ(keeper.open("w", 1), 1u);
  EXPECT_EQ(keeper.rules->publish(draft, keeper.take()), 3u);
  EXPECT_EQ(keeper.open("w", 1), 0u);
  EXPECT_EQ(keeper.open("w", 2), 2u);
}

/// A machine with a transaction, in which processes take part.
class Transacting : public FakeKeeper {
 public:
  Transacting() { join(transaction); }

  /// Lets a process take part, and returns its token.
  Token join(const Token& member) {
    VersionRecord record;
    record.token = member;
    rules->join(transaction, record, [&](std::uint64_t id) {
      take()(id);
      read.insert(id);  // its file is locked
    });
    return member;
  }
  void kill(const Token& member) {
    read.erase(find(rules->catalog().transactions().find(transaction)->members, member)->id);
  }
  VersionRecord add(const std::string& name, std::uint32_t keep = 2,
                    VersionKind kind = VersionKind::copied) {
    VersionRecord part = draft(name, keep);
    part.kind = kind;
    rules->publish_part(transaction, part, take());
    return part;
  }
  /// Returns the number that the parts got; 0 if the transaction was aborted.
  std::uint64_t commit() {
    try {
      return rules->commit(transaction);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::stale_handle);
      return 0;
    }
  }

  const Token transaction{1, 2, 3}, other{9};
};

TEST(StoreTransactions, ShowAllPartsOrNone) {
  Transacting keeper;
  keeper.publish("a");
  keeper.add("a");
  keeper.add("b");
  EXPECT_EQ(keeper.open("a"), 1u);
  EXPECT_EQ(keeper.open("b"), 0u);
  EXPECT_EQ(keeper.commit(), 2u);
  EXPECT_EQ(keeper.open("a"), 2u);
  EXPECT_EQ(keeper.open("b"), 2u);
  EXPECT_EQ(keeper.open("a", 1), 1u);
}

TEST(StoreTransactions, GiveAllPartsOneNumberThatNoneOfTheirObjectsHasHad) {
  Transacting keeper;
  for (int i = 0; i < 5; ++i) keeper.publish("a");
  keeper.rules->remove("a", 0);
  keeper.publish("b");
  keeper.add("a");
  keeper.add("b");
  EXPECT_EQ(keeper.commit(), 6u);
  EXPECT_EQ(keeper.publish("b"), 7u);
}

TEST(StoreTransactions, GiveAVersionOfAGroupItsNumberAlsoAfterALargerOne) {
  Transacting keeper;
  for (int i = 0; i < 3; ++i) keeper.publish("a", 1);
  VersionRecord part = keeper.draft("a", 3);
  part.number = 1 | kExactNumber;
  keeper.rules->publish_part(keeper.transaction, part, keeper.take());
  EXPECT_EQ(keeper.commit(), 1u);
  EXPECT_EQ(keeper.open("a"), 1u);
  EXPECT_EQ(keeper.record("a", 1).token, part.token);
  EXPECT_EQ(keeper.open("a", 3), 3u);
  EXPECT_EQ(keeper.publish("a"), 4u);
}

TEST(StoreTransactions, RefuseANumberThatAVersionHereHasUnlessItsMemoryIsLost) {
  Transacting keeper;
  keeper.publish("a");
  VersionRecord part = keeper.draft("a");
  part.number = 1 | kExactNumber;
  keeper.rules->publish_part(keeper.transaction, part, keeper.take());
  EXPECT_THROW(keeper.rules->commit(keeper.transaction), Error);
  EXPECT_EQ(keeper.open("a"), 1u);
  keeper.here.erase(keeper.record("a", 1).id);
  EXPECT_EQ(keeper.commit(), 1u);
  EXPECT_EQ(keeper.record("a", 1).token, part.token);
}

TEST(StoreTransactions, PushNothingOutBeforeTheCommit) {
  Transacting keeper;
  for (int i = 0; i < 2; ++i) keeper.publish("a");
  keeper.add("a", 1);
  keeper.pass(1h);
  EXPECT_EQ(keeper.open("a", 1), 1u);
  EXPECT_EQ(keeper.commit(), 3u);
  keeper.pass(1s);
  EXPECT_EQ(keeper.open("a", 1), 0u);
  EXPECT_EQ(keeper.open("a", 2), 0u);
}

TEST(StoreTransactions, DropNoVersionForRoomBeforeTheCommit) {
  Transacting keeper;
  keeper.start(true, {.bytes = 30}, true);
  for (int i = 0; i < 2; ++i) keeper.publish("a");
  keeper.add("a");
  keeper.add("b");
  EXPECT_THROW(keeper.add("c"), Error);  // only version 1 of `a` could be dropped
  EXPECT_EQ(keeper.open("a", 1), 1u);
  EXPECT_EQ(keeper.commit(), 3u);
  EXPECT_EQ(keeper.open("a", 1), 0u);
  EXPECT_EQ(keeper.open("a", 2), 2u);
}

TEST(StoreTransactions, EndWithAMemberThatDiedBeforeItLeft) {
  Transacting keeper;
  keeper.publish("a");
  keeper.join(keeper.other);
  keeper.add("a");
  const auto here = keeper.here.size();
  keeper.kill(keeper.other);
  keeper.pass(1s);
  EXPECT_EQ(here - keeper.here.size(), 3u) << "the memory of the part and the files of both members stay";
  EXPECT_EQ(keeper.commit(), 0u);
  EXPECT_EQ(keeper.open("a"), 1u);
  EXPECT_THROW(keeper.add("b"), Error);
  EXPECT_THROW(keeper.join({4}), Error);
}

TEST(StoreTransactions, AreNotCommittedIfAMemberHasJustDied) {
  Transacting keeper;
  keeper.join(keeper.other);
  keeper.add("a");
  keeper.kill(keeper.other);
  EXPECT_EQ(keeper.commit(), 0u);
  EXPECT_EQ(keeper.open("a"), 0u);
}

TEST(StoreTransactions, KeepThePartsOfAMemberThatLeft) {
  Transacting keeper;
  keeper.join(keeper.other);
  keeper.add("a");
  keeper.rules->leave(keeper.transaction, keeper.other);
  keeper.rules->leave(keeper.transaction, keeper.other);  // its first answer was lost
  EXPECT_EQ(keeper.commit(), 1u);
  EXPECT_EQ(keeper.open("a"), 1u);
}

TEST(StoreTransactions, AreNotCommittedBeforeEachDraftIsPublished) {
  Transacting keeper;
  VersionRecord part = keeper.add("a", 2, VersionKind::draft);
  EXPECT_EQ(keeper.rules->draft(keeper.transaction, part.token).token, part.token);
  EXPECT_THROW(keeper.rules->commit(keeper.transaction), Error);
  part.kind = VersionKind::copied;
  keeper.rules->publish_part(keeper.transaction, part, keeper.take());
  EXPECT_THROW(keeper.rules->draft(keeper.transaction, part.token), Error);
  EXPECT_EQ(keeper.commit(), 1u);
  EXPECT_EQ(keeper.here.size(), 1u);
}

TEST(StoreTransactions, HaveOnePartOfAnObject) {
  Transacting keeper;
  const VersionRecord part = keeper.add("a");
  keeper.rules->publish_part(keeper.transaction, part, keeper.take());  // its first answer was lost
  EXPECT_THROW(keeper.add("a"), Error);
  EXPECT_EQ(keeper.commit(), 1u);
}

TEST(StoreTransactions, SurviveTheWorkerAndNotBothHalves) {
  Transacting keeper;
  keeper.add("a");
  keeper.start(true, {}, true);
  keeper.pass(1s);
  EXPECT_EQ(keeper.commit(), 1u);
  EXPECT_EQ(keeper.commit(), 1u);  // its first answer was lost
  Transacting another;
  another.add("a");
  another.start(true);
  EXPECT_EQ(another.commit(), 0u);
  another.pass(1s);
  EXPECT_TRUE(another.rules->is_unused());
}

TEST(StoreTransactions, TakeAPartAgainThatIsCommittedAlready) {
  Transacting keeper;
  const VersionRecord part = keeper.add("a", 1);
  EXPECT_EQ(keeper.commit(), 1u);
  keeper.rules->publish_part(keeper.transaction, part, keeper.take());
  EXPECT_EQ(keeper.commit(), 1u);
  keeper.rules->remove("a", 0);
  keeper.rules->publish_part(keeper.transaction, part, keeper.take());
  EXPECT_EQ(keeper.commit(), 1u);
  EXPECT_EQ(keeper.open("a"), 0u);
}

TEST(StoreTransactions, AreInTheRecordsOfANewIndex) {
  Transacting keeper;
  keeper.join(keeper.other);
  keeper.add("a");
  keeper.index = keeper.rules->records();
  keeper.start(true, {}, true);
  EXPECT_EQ(keeper.commit(), 1u);
  keeper.index = keeper.rules->records();
  keeper.start(true, {}, true);
  EXPECT_EQ(keeper.commit(), 1u);
  EXPECT_EQ(keeper.open("a"), 1u);
  EXPECT_EQ(keeper.rules->catalog().next_id(), 4u);
}

TEST(StoreTransactions, ChangeNothingWhenTheDiskIsFull) {
  Transacting keeper;
  keeper.add("a");
  const auto here = keeper.here;
  keeper.is_disk_full = true;
  EXPECT_THROW(keeper.rules->commit(keeper.transaction), Error);
  EXPECT_THROW(keeper.add("b"), Error);
  EXPECT_THROW(keeper.join(keeper.other), Error);
  EXPECT_EQ(keeper.here, here);
  keeper.is_disk_full = false;
  EXPECT_EQ(keeper.commit(), 1u);
}

TEST(StoreTransactions, AreGoneAfterTheAbort) {
  Transacting keeper;
  keeper.add("a");
  keeper.rules->abort(keeper.transaction);
  EXPECT_TRUE(keeper.here.empty());
  EXPECT_EQ(keeper.commit(), 0u);
  EXPECT_TRUE(keeper.rules->is_unused());
}

/// What the guide promises, for one object: random publishes, readers, deletes, rollbacks and kills, against a model.
class RulesModel {
 public:
  explicit RulesModel(unsigned seed) : random_(seed) {}

  void step() {
    switch (random_() % 12) {
      case 0:
      case 1:
      case 2: return publish();
      case 3:
      case 4: return read();
      case 5: return stop_reading();
      case 6: return rollback();
      case 7: return remove();
      case 8: keeper_.start(true, {}, true); return;
      case 9: return kill_both();
      case 10: return restore();
      default:
        keeper_.pass(random_() % 8 == 0 ? VersionRules::kAwaited : std::chrono::seconds(random_() % 3));
        return;
    }
  }

  void check() {
    for (const auto& [number, version] : readers_) {
      if (deleted_.contains(number) || !keeper_.is_here(version.id)) continue;
      ASSERT_EQ(keeper_.open("w", number), number) << "a version was dropped while it was read";
    }
    for (const std::uint64_t number : deleted_)
      ASSERT_NE(keeper_.open("w", number), number) << "deleted " << number;
    const auto now = keeper_.open("w");
    if (!now || *now == 0) return;
    for (auto shown = shown_.rbegin(); shown != shown_.rend(); ++shown) {
      if (*shown == *now) return;
      const auto* const newer = keeper_.rules->catalog().find("w", *shown);
      ASSERT_TRUE(!newer || !keeper_.is_here(newer->record.id))
          << *now << " is shown, and " << *shown << " is here";
    }
    FAIL() << *now << " was never shown";
  }

 private:
  void publish() {
    const std::uint64_t number = keeper_.publish("w", static_cast<std::uint32_t>(1 + random_() % 3));
    ASSERT_GT(number, last_) << "a number was used twice";
    shown_.push_back(last_ = number);
  }
  void read() {
    const auto number = keeper_.open("w");
    if (!number || *number == 0) return;
    readers_.emplace(*number, keeper_.record("w", *number));
    keeper_.read.insert(readers_.at(*number).id);
  }
  void stop_reading() {
    if (readers_.empty()) return;
    const auto reader =
        std::next(readers_.begin(), static_cast<std::ptrdiff_t>(random_() % readers_.size()));
    keeper_.read.erase(reader->second.id);
    readers_.erase(reader);
  }
  void rollback() {
    if (last_ == 0) return;
    const std::uint64_t number = 1 + random_() % last_;
    try {
      keeper_.rules->rollback("w", number);
      shown_.push_back(number);
    } catch (const Error& error) {
      ASSERT_EQ(error.code(), ErrorCode::stale_handle);
    }
  }
  void remove() {
    if (random_() % 4 != 0) return;
    const std::size_t keep = random_() % 3;
    for (const std::uint64_t id : keeper_.rules->catalog().older_than_newest("w", keep))
      deleted_.insert(keeper_.rules->catalog().find(id)->record.number);
    for (const auto& [number, version] : readers_)
      if (is_given_up(version)) deleted_.insert(number);
    keeper_.rules->remove("w", keep);
  }
  void kill_both() {
    keeper_.start(true);
    if (random_() % 2 == 0) return;
    for (int i = 0; i < 5; ++i) restore();
  }
  /// A reader offers, which may have been told before that its version is not wanted.
  void restore() {
    if (readers_.empty()) return;
    const auto reader =
        std::next(readers_.begin(), static_cast<std::ptrdiff_t>(random_() % readers_.size()));
    const bool was_given_up = is_given_up(reader->second);
    const bool has_current = keeper_.rules->catalog().current("w") != nullptr;
    const auto refusal = keeper_.restore(reader->second);
    ASSERT_TRUE(refusal || !deleted_.contains(reader->first)) << "a deleted version came back";
    if (!was_given_up) return;
    ASSERT_FALSE(refusal) << "a version that a process has open was refused";
    std::erase(shown_, reader->first);
    shown_.insert(has_current ? shown_.begin() : shown_.end(), reader->first);
    keeper_.read.insert(reader->second.id = keeper_.record("w", reader->first).id);
  }
  bool is_given_up(const VersionRecord& version) {
    const auto* const dropped = keeper_.rules->catalog().find_dropped("w", version.token);
    return dropped && dropped->is_given_up();
  }

  std::mt19937 random_;
  FakeKeeper keeper_;
  std::map<std::uint64_t, VersionRecord> readers_;  ///< by number
  std::set<std::uint64_t> deleted_;
  std::vector<std::uint64_t> shown_;  ///< numbers in the order in which they became current
  std::uint64_t last_ = 0;
};

TEST(StoreRules, HoldTheirPromisesInRandomHistories) {
  for (unsigned seed = 0; seed < onecopy::testing::rounds(200); ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    RulesModel model(seed);
    for (int step = 0; step < 300 && !::testing::Test::HasFatalFailure(); ++step) {
      model.step();
      model.check();
    }
    if (::testing::Test::HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace onecopy::store
