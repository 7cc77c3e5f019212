// SPDX-License-Identifier: Apache-2.0
// The index of a keeper on a file system whose calls fail, and after a keeper that was killed at any byte.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "onecopy/core/error.h"
#include "store/keeper/catalog.h"
#include "store/keeper/index.h"

namespace onecopy::store {
namespace {

/// Which call of the index fails, and how. `persists`: all later calls fail as well, so the files are those that a
/// process leaves which is killed at this call.
struct Fault {
  int nth = 0;  ///< 1 for the first call; 0 for none
  int error = EIO;
  bool persists = true;
  std::size_t bytes = 0;  ///< the number of bytes that a pwrite writes before it fails
  int calls = 0;          ///< the number of calls so far
};
Fault fault;

bool fails() {
  ++fault.calls;
  return fault.nth != 0 && (fault.calls == fault.nth || (fault.persists && fault.calls > fault.nth));
}

Fd failing_open(const std::string& path, int flags, unsigned mode) {
  if (fails()) throw_errno("cannot open " + path, fault.error);
  return open_file(path, flags, mode);
}

void failing_read(const Fd& fd, std::span<std::byte> bytes, std::uint64_t offset) {
  if (fails()) throw_errno("cannot read", fault.error);
  read_exactly(fd, bytes, offset);
}

/// Writes a part if it fails at this call, as a file system does that becomes full: the next call then reports the
/// error.
ssize_t failing_pwrite(int fd, const void* bytes, std::size_t size, off_t offset) {
  if (!fails()) return ::pwrite(fd, bytes, size, offset);
  if (fault.calls == fault.nth && fault.bytes != 0) {
    ++fault.nth;
    return ::pwrite(fd, bytes, std::min(std::exchange(fault.bytes, 0), size), offset);
  }
  errno = fault.error;
  return -1;
}

int failing_ftruncate(int fd, off_t size) {
  if (!fails()) return ::ftruncate(fd, size);
  errno = fault.error;
  return -1;
}

int failing_rename(const char* from, const char* to) {
  if (!fails()) return ::rename(from, to);
  errno = fault.error;
  return -1;
}

Record published_as(std::uint64_t id) {
  Record record{.kind = Record::Kind::publish, .id = id};
  record.version.id = record.version.number = id;
  record.version.name = "llama";
  record.version.token = {static_cast<std::uint8_t>(id)};
  return record;
}

std::vector<Record> content_of(const Log& log) {
  std::vector<Record> records;
  log.for_each([&](const Record& record) { records.push_back(record); });
  return records;
}

/// A directory for an index, and calls that fail as a test says.
class StoreIndexFaults : public ::testing::Test {
 protected:
  StoreIndexFaults() {
    EXPECT_NE(::mkdtemp(directory_.data()), nullptr);
    path_ = directory_ + "/index";
    index_calls = {failing_open, failing_read, failing_pwrite, failing_ftruncate, failing_rename};
    fault = {};
  }
  ~StoreIndexFaults() override {
    index_calls = {};
    std::filesystem::remove_all(directory_);
  }

  /// Makes an index of the first versions alone in the directory.
  Log make_index(std::uint64_t count) {
    fault = {};
    for (const auto& file : std::filesystem::directory_iterator(directory_)) std::filesystem::remove(file);
    std::vector<Record> records;
    for (std::uint64_t id = 1; id <= count; ++id) records.push_back(published_as(id));
    return replace_index(path_, records);
  }
  void write(const char* bytes, std::size_t size, off_t offset) {
    const Fd file = open_file(path_, O_WRONLY);
    ASSERT_EQ(::pwrite(file.get(), bytes, size, offset), static_cast<ssize_t>(size));
  }
  /// Opens the index by calls that work, as the next keeper does.
  FoundIndex reopen() {
    fault = {};
    return open_index(path_);
  }
  /// Calls `opened` once for each call of open_index() after it failed at this call, in this process or with its death.
  void fail_at_each_call(const std::function<void()>& make, const std::function<void(FoundIndex)>& opened) {
    for (const int error : {EIO, ENOSPC})
      for (const bool persists : {true, false}) {
        make();
        fault = {};
        open_index(path_);
        const int calls = fault.calls;
        ASSERT_GT(calls, 1);
        for (int nth = 1; nth <= calls; ++nth) {
          SCOPED_TRACE(fmt::format("call {} of {} fails with {}", nth, calls, error));
          make();
          fault = {.nth = nth, .error = error, .persists = persists};
          EXPECT_THROW(open_index(path_), Error);
          opened(reopen());
        }
      }
  }

  std::string directory_ = ::testing::TempDir() + "onecopy-index-XXXXXX";
  std::string path_;
};

/// Appends version 3 to two versions. The disk takes `bytes` bytes of the record.
void append_to_a_full_disk(Log& log, int error, std::size_t bytes, bool persists) {
  fault = {.nth = 1, .error = error, .persists = persists, .bytes = bytes};
  try {
    log.append(published_as(3));
    ADD_FAILURE() << "nothing failed";
  } catch (const Error& thrown) {
    EXPECT_EQ(thrown.code(), error == ENOSPC ? ErrorCode::out_of_memory : ErrorCode::system);
    EXPECT_NE(std::string(thrown.what()).find("nothing was changed"), std::string::npos) << thrown.what();
  }
  fault = {};
}

std::size_t size_of_append() {
  return 2 * sizeof(std::uint32_t) + encode(published_as(3)).size();  // of size, checksum and body
}

/// A shorter record takes the place of the record that was not written. With `persists`, the rest cannot be removed
/// either.
TEST_F(StoreIndexFaults, ARecordThatIsWrittenInPartIsNeitherShownNorInTheWayOfTheNext) {
  for (const int error : {EIO, ENOSPC})
    for (const bool persists : {true, false})
      for (std::size_t bytes = 0; bytes < size_of_append(); ++bytes) {
        SCOPED_TRACE(fmt::format("{} bytes were written before error {}", bytes, error));
        Log log = make_index(2);
        append_to_a_full_disk(log, error, bytes, persists);
        EXPECT_EQ(reopen().trouble, "");
        log.append({.kind = Record::Kind::drop, .id = 1});
        const FoundIndex found = reopen();
        EXPECT_EQ(found.trouble, "");
        EXPECT_EQ(content_of(found.log),
                  (std::vector{published_as(1), published_as(2), {.kind = Record::Kind::drop, .id = 1}}));
      }
}

TEST_F(StoreIndexFaults, NoRecordIsAppendedBehindARestThatCannotBeRemoved) {
  Log log = make_index(2);
  append_to_a_full_disk(log, EIO, 10, true);
  fault = {.nth = 1};
  EXPECT_THROW(log.append(published_as(4)), Error);
  EXPECT_EQ(content_of(reopen().log), (std::vector{published_as(1), published_as(2)}));
}

TEST_F(StoreIndexFaults, AKeeperThatIsKilledAtAnyByteOfAnAppendLeavesTheRecordsBefore) {
  Log whole = make_index(2);
  const std::uint64_t begin = whole.used();
  whole.append(published_as(3));
  for (std::uint64_t size = begin; size < whole.used(); ++size) {
    SCOPED_TRACE(fmt::format("{} bytes of the record are there", size - begin));
    ASSERT_EQ(::truncate(path_.c_str(), static_cast<off_t>(size)), 0);
    FoundIndex found = reopen();
    EXPECT_EQ(found.trouble, "");
    EXPECT_EQ(content_of(found.log), (std::vector{published_as(1), published_as(2)}));
    found.log.append(published_as(3));
    EXPECT_EQ(content_of(reopen().log), (std::vector{published_as(1), published_as(2), published_as(3)}));
  }
}

TEST_F(StoreIndexFaults, AnIndexThatCannotBeReadNowIsNotTakenForADamagedOne) {
  fail_at_each_call([&] { make_index(2); },
                    [&](FoundIndex found) {
                      EXPECT_EQ(found.trouble, "");
                      EXPECT_EQ(content_of(found.log), (std::vector{published_as(1), published_as(2)}));
                    });
}

TEST_F(StoreIndexFaults, ANewIndexIsMadeAsAWholeOrNotAtAll) {
  fail_at_each_call([&] { make_index(0), std::filesystem::remove(path_); },
                    [&](FoundIndex found) {
                      EXPECT_EQ(found.trouble, "");
                      EXPECT_FALSE(found.knows_all);
                      EXPECT_TRUE(content_of(found.log).empty());
                      found.log.append(published_as(1));
                      EXPECT_EQ(content_of(reopen().log), std::vector{published_as(1)});
                    });
}

/// The size of the second record is wrong, and a third one follows.
TEST_F(StoreIndexFaults, NumbersGoOnAboveThoseOfADamagedIndexWhereverItsReplacementFails) {
  const auto make = [&] {
    const std::uint64_t second = make_index(1).used();
    make_index(3);
    write("\xff", 1, static_cast<off_t>(second + 1));
  };
  fail_at_each_call(make, [&](FoundIndex found) {
    Catalog catalog;
    for (const Record& record : content_of(found.log)) catalog.apply(record);
    EXPECT_GT(catalog.next_number("llama"), 100'000'000u);  // seconds since 2020
    EXPECT_FALSE(catalog.current("llama"));
    EXPECT_TRUE(std::filesystem::exists(path_ + ".unreadable"));
  });
}

TEST_F(StoreIndexFaults, NumbersOfAnEarlierBootStayWhereverTheirIndexFails) {
  const auto make = [&] {
    make_index(2);
    write("\xff\xff", 2, 16);  // of the boot id
  };
  fail_at_each_call(make, [&](FoundIndex found) {
    Catalog catalog;
    for (const Record& record : content_of(found.log)) catalog.apply(record);
    EXPECT_EQ(catalog.next_number("llama"), 3u);
    EXPECT_EQ(catalog.size(), 0u);
    EXPECT_FALSE(found.log.has_name());
  });
}

TEST_F(StoreIndexFaults, AReplacementThatFailsLeavesTheOldIndexAtThePath) {
  make_index(2);
  const std::vector<Record> fresh{published_as(5), published_as(6)};
  fault = {};
  replace_index(path_, fresh);
  const int calls = fault.calls;
  for (int nth = 1; nth <= calls; ++nth) {
    SCOPED_TRACE(fmt::format("call {} of {} fails", nth, calls));
    make_index(2);
    fault = {.nth = nth, .error = ENOSPC, .bytes = 5};
    EXPECT_THROW(replace_index(path_, fresh), Error);
    EXPECT_EQ(content_of(reopen().log), (std::vector{published_as(1), published_as(2)}));
    EXPECT_FALSE(std::filesystem::exists(path_ + ".new"));
  }
}

}  // namespace
}  // namespace onecopy::store
