// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>

#include "os/mapping.h"
#include "store/keeper/catalog.h"
#include "store/keeper/log.h"
#include "support/child.h"
#include "support/die_at.h"

namespace onecopy::store {
namespace {

using onecopy::testing::Child;

Record published(std::uint64_t id, std::uint64_t number, const std::string& name = "llama") {
  Record record{Record::Kind::publish, id, {}};
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

TEST(StoreLog, HasItsRecordsAgainWhenItIsOpened) {
  Log log = Log::create();
  ASSERT_TRUE(log.append(published(1, 1)));
  ASSERT_TRUE(log.append({Record::Kind::drop, 1, {}}));
  const Log again = Log::open(log.fd().duplicate());
  EXPECT_EQ(records_in(again), records_in(log));
  EXPECT_EQ(again.used(), log.used());
}

TEST(StoreLog, CannotShrinkOrGrow) {
  const Log log = Log::create();
  EXPECT_NE(::ftruncate(log.fd().get(), 8), 0);
  EXPECT_NE(::ftruncate(log.fd().get(), 2 * Log::kCapacity), 0);
}

TEST(StoreLog, IsContinuedBehindTheRecordsOfAnotherWriter) {
  Log log = Log::create();
  Log later = Log::open(log.fd().duplicate());
  ASSERT_TRUE(log.append(published(1, 1)));
  ASSERT_TRUE(log.append(published(2, 2)));
  later.catch_up();
  ASSERT_TRUE(later.append(published(3, 3)));
  EXPECT_EQ(records_in(later).size(), 3u);
}

TEST(StoreLog, HasNoRecordOfAWriterThatWasKilledBeforeTheLastStep) {
  Log log = Log::create();
  ASSERT_TRUE(log.append(published(1, 1)));
  Child writer([&] {
    onecopy::testing::die_at("store.index.written");
    log.append(published(2, 2));
  });
  EXPECT_EQ(writer.join(), -SIGKILL);
  Log again = Log::open(log.fd().duplicate());
  EXPECT_EQ(records_in(again).size(), 1u);
  ASSERT_TRUE(again.append({Record::Kind::drop, 1, {}}));  // over the rest of the other
  EXPECT_EQ(records_in(Log::open(again.fd().duplicate())).size(), 2u);
}

TEST(StoreLog, HasTheRecordOfAWriterThatWasKilledAfterTheLastStep) {
  const Log log = Log::create();
  Child writer([&] {
    onecopy::testing::die_at("store.index.committed");
    Log::open(log.fd().duplicate()).append(published(1, 1));
  });
  EXPECT_EQ(writer.join(), -SIGKILL);
  EXPECT_EQ(records_in(Log::open(log.fd().duplicate())).size(), 1u);
}

TEST(StoreLog, EndsBeforeADamagedRecord) {
  Log log = Log::create();
  ASSERT_TRUE(log.append(published(1, 1)));
  const std::size_t second = log.used();
  ASSERT_TRUE(log.append(published(2, 2)));
  Mapping::of(log.fd(), log.capacity(), Access::read_write).data()[second + 20] ^= std::byte{1};
  EXPECT_EQ(records_in(Log::open(log.fd().duplicate())).size(), 1u);
}

TEST(StoreLog, RefusesARecordThatHasNoRoom) {
  Log log = Log::create(4096);
  while (log.append(published(1, 1))) {
  }
  const std::size_t used = log.used();
  EXPECT_FALSE(log.append(published(1, 1)));
  EXPECT_EQ(Log::open(log.fd().duplicate()).used(), used);
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
  catalog.apply({Record::Kind::show, 1, {}});
  EXPECT_EQ(catalog.current("llama")->record.number, 1u);
  EXPECT_EQ(catalog.beyond("llama", 2), (std::vector<std::uint64_t>{2, 3}));
}

TEST(StoreCatalog, UsesNoNumberOfAnObjectTwice) {
  Catalog catalog;
  catalog.apply(published(1, 1));
  catalog.apply(published(2, 2));
  catalog.apply({Record::Kind::drop, 2, {}});
  EXPECT_EQ(catalog.next_number("llama"), 3u);
  EXPECT_EQ(catalog.next_id(), 3u);
}

TEST(StoreCatalog, IsTheSameFromItsOwnRecords) {
  Catalog catalog;
  for (std::uint64_t i = 1; i <= 5; ++i) catalog.apply(published(i, i));
  catalog.apply(published(6, 1, "other"));
  catalog.apply({Record::Kind::show, 2, {}});
  catalog.apply({Record::Kind::drop, 5, {}});
  Catalog again;
  for (const Record& record : catalog.records()) again.apply(record);
  EXPECT_EQ(again.current("llama")->record, catalog.current("llama")->record);
  EXPECT_EQ(again.beyond("llama", 1), catalog.beyond("llama", 1));
  EXPECT_EQ(again.next_number("llama"), catalog.next_number("llama"));
  EXPECT_EQ(again.next_id(), catalog.next_id());
  EXPECT_EQ(again.bytes(), catalog.bytes());
}

}  // namespace
}  // namespace onecopy::store
