// SPDX-License-Identifier: Apache-2.0
#include "store/keeper/index.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <optional>
#include <utility>

#include "onecopy/core/error.h"
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

void rename_index(const std::string& from, const std::string& to) {
  if (index_calls.rename(from.c_str(), to.c_str()) != 0)
    throw_errno(fmt::format("cannot rename the index of the store, {}, to {}", from, to), errno);
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

/// Returns the log in a file, or nothing if it cannot be read.
std::optional<Log> read_log(Fd file, const std::string& path) {
  try {
    Log log = Log::open(std::move(file));
    if (log.catch_up() != Log::State::whole) return std::nullopt;
    return log.is_of_this_boot() ? std::move(log) : without_versions(log, path);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::bad_handle && error.code() != ErrorCode::protocol) throw;
    return std::nullopt;
  }
}

/// Begins an index in place of one that was put aside.
FoundIndex begin_after(const std::string& aside, const std::string& path) {
  Record floor{.kind = Record::Kind::floor};
  floor.version.number = number_of_now();
  return {
      replace_index(path, std::span(&floor, 1)), false,
      fmt::format("the store cannot read its index, which is {} now; the numbers of versions go on from {}",
                  aside, floor.version.number)};
}

}  // namespace

FoundIndex open_index(const std::string& path) {
  const std::string aside = path + ".unreadable";
  Fd file;
  try {
    file = index_calls.open(path, O_RDWR, 0600);
  } catch (const Error& error) {
    if (error.vendor_code() != ENOENT) throw;
    // An earlier call may have put the index aside without beginning another one.
    if (::access(aside.c_str(), F_OK) == 0) return begin_after(aside, path);
    return {replace_index(path, {}), false};
  }
  if (auto log = read_log(std::move(file), path)) return {std::move(*log)};
  rename_index(path, aside);
  return begin_after(aside, path);
}

Log replace_index(const std::string& path, std::span<const Record> records) {
  const std::string fresh = path + ".new";
  try {
    Log log = Log::create(fresh);
    for (const Record& record : records) log.append(record);
    rename_index(fresh, path);
    return log;
  } catch (const Error&) {
    ::unlink(fresh.c_str());
    throw;
  }
}

Log make_nameless_log(const std::string& path) {
  const std::string name = path + ".nameless";
  Log log = Log::create(name);
  ::unlink(name.c_str());
  return log;
}

}  // namespace onecopy::store
