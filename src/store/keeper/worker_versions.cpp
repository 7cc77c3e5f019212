// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include <fmt/format.h>

#include "core/point.h"
#include "os/log.h"
#include "store/keeper/version_files.h"
#include "store/keeper/worker.h"

namespace onecopy::store {
namespace {

constexpr std::size_t kMaxNamed = 16;  ///< the max number of versions that an error names: the newest ones

}  // namespace

/// Returns the version of that number; 0 is the current one.
const Catalog::Version& Worker::require(const std::string& name, std::uint64_t number) const {
  check_name(name);
  const Catalog::Version* const version =
      number == 0 ? catalog_.current(name) : catalog_.find(name, number);
  if (version) return *version;
  const auto object = catalog_.objects().find(name);
  if (object == catalog_.objects().end())
    throw Error(ErrorCode::stale_handle,
                fmt::format("the store has no object \"{}\"; `onecopy store ls` lists those it has", name));
  std::string numbers;
  std::size_t left = object->second.versions.size();
  for (const auto& [there, unused] : object->second.versions) {
    if (left-- > kMaxNamed) continue;
    numbers += fmt::format("{}{}", numbers.empty() ? "" : ", ", there);
  }
  throw Error(ErrorCode::stale_handle,
              fmt::format("the store has no version {} of \"{}\"; it has {}", number, name, numbers));
}

/// Adds a version. Gives the descriptors to the guard before it appends the record, so that a version with a record
/// always has its memory.
const VersionRecord& Worker::add(VersionRecord version, std::vector<Fd> fds) {
  version.id = catalog_.next_id();
  guard_.tell(Partner::Kind::hold, version.id, numbers_of(fds));
  point("store.publish.held");
  holdings_.versions[version.id] = std::move(fds);
  try {
    write({Record::Kind::publish, version.id, version});
  } catch (...) {
    holdings_.versions.erase(version.id);
    guard_.tell(Partner::Kind::drop, version.id);
    throw;
  }
  return catalog_.find(version.id)->record;
}

void Worker::write(const Record& record) {
  if (!holdings_.index.append(record)) {
    rewrite_index();
    if (!holdings_.index.append(record))
      throw Error(ErrorCode::out_of_memory, "the index of the store has no room for another record");
  }
  catalog_.apply(record);
}

/// Writes a new index, with records of all that exists now and four times the room that they take. Until the guard gets
/// the new index it uses the old one, which has the same meaning.
void Worker::rewrite_index() {
  const std::vector<Record> records = catalog_.records();
  std::size_t bytes = 0;
  for (const Record& record : records) bytes += encode(record).size() + 16;
  Log index = Log::create(std::max(Log::kCapacity, (4 * bytes / 4096 + 1) * 4096));
  for (const Record& record : records) index.append(record);
  const int fd = index.fd().get();
  guard_.tell(Partner::Kind::index, 0, std::span(&fd, 1));
  point("store.index.rewritten");
  holdings_.index = std::move(index);
}

/// Drops a version. Its readers keep the memory, which they have mapped.
void Worker::drop(std::uint64_t id) {
  write({Record::Kind::drop, id, {}});
  point("store.drop.recorded");
  holdings_.versions.erase(id);
  // The guard is the last process that has the memory, and spends the time to free it.
  guard_.tell(Partner::Kind::drop, id);
}

void Worker::begin_reading(Connection& c, std::uint64_t id) {
  if (++c.reads[id] == 1) ++readers_[id];
}

void Worker::end_reading(Connection& c, std::uint64_t id) {
  const auto reads = c.reads.find(id);
  if (reads == c.reads.end() || --reads->second != 0) return;
  c.reads.erase(reads);
  if (--readers_[id] != 0) return;
  readers_.erase(id);
  if (const auto* const version = catalog_.find(id)) reclaim(std::string(version->record.name));
}

/// Drops versions that nobody reads, beyond the number that the last publisher wanted to keep.
void Worker::reclaim(const std::string& name) {
  const auto* const current = catalog_.current(name);
  if (!current) return;
  const std::size_t keep = std::max<std::uint32_t>(current->record.keep, 1);
  for (const std::uint64_t id : catalog_.beyond(name, keep)) {
    if (readers_.contains(id)) continue;
    if (id < first_own_id_ && Clock::now() < reclaims_from_) unreclaimed_.insert(name);
    else drop(id);
  }
}

void Worker::reclaim_all() {
  if (unreclaimed_.empty() || Clock::now() < reclaims_from_) return;
  for (const std::string& name : std::exchange(unreclaimed_, {})) reclaim(name);
}

void Worker::show_newest(const std::string& name) {
  const Catalog::Version* newest = nullptr;
  for (const auto& [number, version] : catalog_.objects().at(name).versions)
    if (!newest || version.record.made_at > newest->record.made_at) newest = &version;
  if (newest->record.id != catalog_.current(name)->record.id)
    write({Record::Kind::show, newest->record.id, {}});
}

/// Answers the clients that wait for a change. Ignores failures, because the connection of a client that has ended
/// reports its end.
void Worker::tell_watchers() {
  for (auto& [token, c] : connections_) {
    if (!c.watch) continue;
    const auto* const current = catalog_.current(c.watch->name);
    if (!current || current->record.id == c.watch->known) continue;
    c.watch.reset();
    try {
      send(c, pack(Opened{current->record}));
    } catch (const Error& error) {
      log_info("the store cannot tell pid {} of a version: {}", c.pid, error.what());
    }
  }
}

}  // namespace onecopy::store
