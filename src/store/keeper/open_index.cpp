// SPDX-License-Identifier: Apache-2.0
#include "store/keeper/open_index.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>

#include <fmt/format.h>

#include "onecopy/core/error.h"
#include "os/file.h"
#include "store/keeper/catalog.h"

namespace onecopy::store {
namespace {

/// Returns the number from which versions are counted if nobody knows which numbers were used: higher than all that
/// were counted from 1 with a version a second since 2020.
std::uint64_t number_of_now() {
  constexpr std::chrono::sys_days k2020 = std::chrono::year(2020) / 1 / 1;
  const auto since = std::chrono::system_clock::now() - k2020;
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::seconds>(since).count());
}

/// Takes all versions out of an index of an earlier boot, whose memory is gone. Their numbers stay.
Log without_versions(const Log& index, const std::string& path) {
  Catalog catalog;
  index.for_each([&](const Record& record) { catalog.apply(record); });
  Log fresh = make_nameless_log(path);
  for (const Record& record : catalog.records()) {
    if (record.kind == Record::Kind::join || record.kind == Record::Kind::part) continue;
    fresh.append(record);
    if (record.kind == Record::Kind::publish) fresh.append({.kind = Record::Kind::drop, .id = record.id});
  }
  return fresh;
}

/// Makes an index in place of one that was lost.
void begin_index(Holdings& holdings, std::uint64_t floor) {
  holdings.knows_all = false;
  holdings.index = Log::create(holdings.index_path);
  Record record{.kind = Record::Kind::floor};
  record.version.number = floor;
  if (floor != 0) holdings.index.append(record);
}

}  // namespace

Log make_nameless_log(const std::string& path) {
  const std::string name = path + ".nameless";
  Log log = Log::create(name);
  ::unlink(name.c_str());
  return log;
}

void open_index(Holdings& holdings) {
  Fd file;
  try {
    file = open_file(holdings.index_path, O_RDWR);
  } catch (const Error& error) {
    if (error.vendor_code() == ENOENT) return begin_index(holdings, 0);
    throw;
  }
  try {
    holdings.index = Log::open(std::move(file));
    if (holdings.index.catch_up() == Log::State::whole) {
      if (!holdings.index.is_of_this_boot())
        holdings.index = without_versions(holdings.index, holdings.index_path);
      return;
    }
  } catch (const Error& error) {
    if (error.code() != ErrorCode::bad_handle && error.code() != ErrorCode::protocol) throw;
  }
  const std::string aside = holdings.index_path + ".unreadable";
  std::rename(holdings.index_path.c_str(), aside.c_str());
  begin_index(holdings, number_of_now());
  holdings.trouble =
      fmt::format("the store cannot read its index, which is {} now; the numbers of versions go on from {}",
                  aside, number_of_now());
}

}  // namespace onecopy::store
