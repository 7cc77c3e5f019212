// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "onecopy/core/error.h"
#include "os/file.h"
#include "store/keeper/catalog.h"
#include "store/keeper/log.h"
#include "support/child.h"
#include "support/die_at.h"

namespace onecopy::store {
namespace {

using onecopy::testing::Child;

Record published(std::uint64_t id, std::uint64_t number, const std::string& name = "llama") {
  Record record{.kind = Record::Kind::publish, .id = id};
  record.version.id = id;
  record.version.number = number;
  record.version.name = name;
  record.version.token = {static_cast<std::uint8_t>(id)};
  record.version.bytes = 100;
  return record;
}

std::vector<Record> records_in(const Log& log) {
  std::vector<Record> records;
  log.for_each([&](const Record& record) { records.push_back(record); });
  return records;
}

/// A directory with one log.
class StoreLog : public ::testing::Test {
 protected:
  void SetUp() override {
    path_ = directory_ + "/index";
    log_ = Log::create(path_);
  }
  Log reopen() const {
    Log log = Log::open(open_file(path_, O_RDWR));
    log.catch_up();
    return log;
  }
  Log::State state() const { return Log::open(open_file(path_, O_RDWR)).catch_up(); }

  StoreLog() { EXPECT_NE(::mkdtemp(directory_.data()), nullptr); }
  ~StoreLog() override { std::filesystem::remove_all(directory_); }

  std::string directory_ = ::testing::TempDir() + "onecopy-index-XXXXXX";
  std::string path_;
  Log log_;
};

TEST_F(StoreLog, HasItsRecordsAgainWhenItIsOpened) {
  log_.append(published(1, 1));
  log_.append({.kind = Record::Kind::drop, .id = 1});
  const Log again = reopen();
  EXPECT_EQ(records_in(again), records_in(log_));
  EXPECT_EQ(again.used(), log_.used());
  EXPECT_TRUE(again.is_of_this_boot());
}

TEST_F(StoreLog, IsContinuedBehindTheRecordsOfAnotherWriter) {
  Log later = reopen();
  log_.append(published(1, 1));
  log_.append(published(2, 2));
  later.catch_up();
  later.append(published(3, 3));
  EXPECT_EQ(records_in(later).size(), 3u);
}

TEST_F(StoreLog, HasTheRecordOfAWriterThatWasKilledAfterTheAppend) {
  Child writer([&] {
    onecopy::testing::die_at("store.index.committed");
    reopen().append(published(1, 1));
  });
  EXPECT_EQ(writer.join(), -SIGKILL);
  EXPECT_EQ(records_in(reopen()).size(), 1u);
}

TEST_F(StoreLog, EndsBeforeTheRestOfAnInterruptedAppend) {
  while (log_.used() % 4096 < 4000) log_.append(published(1, 1));
  const std::uint64_t whole = log_.used();
  const std::size_t count = records_in(log_).size();
  while (log_.used() / 4096 == whole / 4096) log_.append(published(2, 2));
  ASSERT_EQ(::truncate(path_.c_str(), static_cast<off_t>(log_.used() / 4096 * 4096)), 0);
  EXPECT_EQ(state(), Log::State::whole);
  EXPECT_GE(records_in(reopen()).size(), count);
}

TEST_F(StoreLog, IsDamagedIfRecordsFollowOneThatCannotBeRead) {
  log_.append(published(1, 1));
  const std::uint64_t second = log_.used();
  log_.append(published(2, 2));
  log_.append(published(3, 3));
  const char wrong = 'x';
  ASSERT_EQ(::pwrite(log_.fd().get(), &wrong, 1, static_cast<off_t>(second + 20)), 1);
  EXPECT_EQ(state(), Log::State::damaged);
  EXPECT_EQ(records_in(reopen()).size(), 1u);
}

TEST_F(StoreLog, IsAsBeforeWhenTheDiskIsFull) {
  log_.append(published(1, 1));
  const std::uint64_t used = log_.used();
  Child writer([&] {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{used + 10, used + 10};
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) std::_Exit(2);
    try {
      log_.append(published(2, 2));
    } catch (const Error& error) {
      std::_Exit(error.code() == ErrorCode::out_of_memory ? 0 : 3);
    }
  });
  EXPECT_EQ(writer.join(), 0);
  EXPECT_EQ(state(), Log::State::whole);
  EXPECT_EQ(reopen().used(), used);
}

TEST_F(StoreLog, IsRefusedWithAnotherBegin) {
  const char wrong = 'x';
  ASSERT_EQ(::pwrite(log_.fd().get(), &wrong, 1, 0), 1);
  EXPECT_THROW(reopen(), Error);
}

TEST(StoreCatalog, ShowsTheVersionThatWasPublishedLast) {
  Catalog catalog;
  catalog.apply(published(1, 1));
  catalog.apply(published(2, 2));
  EXPECT_EQ(catalog.current("llama")->record.number, 2u);
  EXPECT_EQ(catalog.next_number("llama"), 3u);
  EXPECT_EQ(catalog.current("other"), nullptr);
}

TEST(StoreCatalog, KeepsTheVersionsThatWereCurrentLast) {
  Catalog catalog;
  for (std::uint64_t i = 1; i <= 4; ++i) catalog.apply(published(i, i));
  catalog.apply({.kind = Record::Kind::show, .id = 1});
  EXPECT_EQ(catalog.current("llama")->record.number, 1u);
  EXPECT_EQ(catalog.older_than_newest("llama", 2), (std::vector<std::uint64_t>{2, 3}));
}

TEST(StoreCatalog, UsesNoNumberOfAnObjectTwice) {
  Catalog catalog;
  catalog.apply(published(1, 1));
  catalog.apply(published(2, 2));
  catalog.apply({.kind = Record::Kind::drop, .id = 2});
  EXPECT_EQ(catalog.next_number("llama"), 3u);
  EXPECT_EQ(catalog.next_id(), 3u);
}

TEST(StoreCatalog, IsTheSameFromItsOwnRecords) {
  Catalog catalog;
  for (std::uint64_t i = 1; i <= 5; ++i) catalog.apply(published(i, i));
  catalog.apply(published(6, 1, "other"));
  catalog.apply({.kind = Record::Kind::show, .id = 2});
  catalog.apply({.kind = Record::Kind::drop, .id = 5});
  Catalog again;
  for (const Record& record : catalog.records()) again.apply(record);
  EXPECT_EQ(again.current("llama")->record, catalog.current("llama")->record);
  EXPECT_EQ(again.older_than_newest("llama", 1), catalog.older_than_newest("llama", 1));
  EXPECT_EQ(again.next_number("llama"), catalog.next_number("llama"));
  EXPECT_EQ(again.next_id(), catalog.next_id());
  EXPECT_EQ(again.size(), catalog.size());
  EXPECT_EQ(again.find_dropped("llama", {5})->number, 5u);
}

TEST(StoreCatalog, GoesOnWithTheNumbersOfADeletedObject) {
  Catalog catalog;
  for (std::uint64_t i = 1; i <= 3; ++i) catalog.apply(published(i, i));
  for (std::uint64_t i = 1; i <= 3; ++i) catalog.apply({.kind = Record::Kind::drop, .id = i});
  Catalog again;
  for (const Record& record : catalog.records()) again.apply(record);
  EXPECT_EQ(catalog.current("llama"), nullptr);
  EXPECT_EQ(again.next_number("llama"), 4u);
  EXPECT_EQ(again.find_dropped("llama", {2})->number, 2u);
}

TEST(StoreCatalog, ForgetsTheOldestDeletedNamesAndUsesNoNumberOfThem) {
  Catalog catalog;
  for (std::uint64_t i = 1; i <= Catalog::kMaxDeleted + 2; ++i) {
    catalog.apply(published(i, i == 1 ? 70 : 1, "object" + std::to_string(i)));
    catalog.apply({.kind = Record::Kind::drop, .id = i});
  }
  catalog.forget_oldest();
  Catalog again;
  for (const Record& record : catalog.records()) again.apply(record);
  EXPECT_EQ(again.objects().size(), Catalog::kMaxDeleted);
  EXPECT_EQ(again.next_number("object1"), 71u);
  EXPECT_EQ(again.next_number("object3"), 2u);
}

}  // namespace
}  // namespace onecopy::store
