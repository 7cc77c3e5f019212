// SPDX-License-Identifier: Apache-2.0
#include "store/keeper/version_rules.h"

#include <algorithm>
#include <utility>

#include <fmt/ranges.h>

#include "core/point.h"
#include "core/throw_error.h"

namespace onecopy::store {
namespace {

constexpr std::size_t kMaxNamed = 16;  ///< the max number of versions that an error names: the newest ones

}  // namespace

std::vector<Record> VersionRules::records() {
  catalog_.forget_oldest();
  return catalog_.records();
}

void VersionRules::write(const Record& record) {
  keeper_.write(record);
  catalog_.apply(record);
}

void VersionRules::drop(std::uint64_t id) {
  write({.kind = Record::Kind::drop, .id = id});
  point("store.drop.recorded");
  keeper_.forget(id);
}

void VersionRules::throw_missing(const std::string& name, std::uint64_t number) const {
  const auto* const object = catalog_.object(name);
  if (!object || object->versions.empty())
    throw_error(ErrorCode::stale_handle,
                "the store has no object \"{}\"; `onecopy store ls` lists those it has", name);
  std::vector<std::uint64_t> here;
  for (const auto& [there, version] : object->versions)
    if (keeper_.is_here(version.record.id)) here.push_back(there);
  if (here.empty())
    throw_error(ErrorCode::stale_handle,
                "\"{}\" was lost with the last keeper; publish it again, unless a process that has it "
                "open gives it back",
                name);
  const std::size_t first = here.size() > kMaxNamed ? here.size() - kMaxNamed : 0;
  throw_error(ErrorCode::stale_handle, "the store has no version {} of \"{}\"; it has {}", number, name,
              fmt::join(here.begin() + static_cast<std::ptrdiff_t>(first), here.end(), ", "));
}

/// Returns the version of that number. Throws stale_handle if its memory is not here.
const Catalog::Version& VersionRules::require(const std::string& name, std::uint64_t number) const {
  const Catalog::Version* const version = catalog_.find(name, number);
  if (!version || !keeper_.is_here(version->record.id)) throw_missing(name, number);
  return *version;
}

/// Throws invalid_argument for a KV pool under the name of an object, and for an object under the name of a KV pool.
void VersionRules::check_kind(const VersionRecord& version) const {
  if (version.kind > VersionKind::kv_pool)
    throw Error(ErrorCode::protocol, "a version has an unknown kind");
  const auto* const current = catalog_.current(version.name);
  const bool is_kv_pool = version.kind == VersionKind::kv_pool;
  if (!current || is_kv_pool == (current->record.kind == VersionKind::kv_pool)) return;
  throw_error(ErrorCode::invalid_argument, "\"{}\" is {}: choose another name, or remove it first",
              version.name, is_kv_pool ? "an object" : "a KV pool");
}

/// Adds a version. Lets the keeper have the memory before the record is written, so that a version with a record always
/// has its memory.
const VersionRecord& VersionRules::add(VersionRecord version, const Take& take) {
  const std::uint64_t id = version.id = catalog_.next_id();
  take_and_write({.kind = Record::Kind::publish, .id = id, .version = std::move(version)}, take);
  return catalog_.find(id)->record;
}

void VersionRules::take_and_write(const Record& record, const Take& take) {
  take(record.id);
  point("store.publish.held");
  try {
    write(record);
  } catch (...) {
    keeper_.forget(record.id);
    throw;
  }
}

std::uint64_t VersionRules::publish(VersionRecord version, const Take& take) {
  check_name(version.name);
  if (const auto* const before = catalog_.find(version.name, version.token)) {
    if (!keeper_.is_here(before->record.id)) take(before->record.id);
    return before->record.number;
  }
  if (const auto* const dropped = catalog_.find_dropped(version.name, version.token))
    return dropped->number & ~DroppedVersion::kGivenUp;
  check_kind(version);
  const auto dropped = room_for(version);
  version.number = catalog_.next_number(version.name);
  if (version.number > kMaxNumber)
    throw_error(ErrorCode::unsupported, "\"{}\" has no numbers left", version.name);
  version.made_at = keeper_.wall_clock();
  const VersionRecord& added = add(std::move(version), take);
  ++published_[added.name];
  reservations_.release(added.token);
  const std::uint64_t number = added.number;
  for (const std::uint64_t id : dropped) drop(id);
  return number;
}

bool VersionRules::is_awaited(const std::string& name) const {
  const auto versions = catalog_.by_shown(name);
  return std::ranges::any_of(versions, [this](auto* v) { return !keeper_.is_here(v->record.id); });
}

const VersionRecord* VersionRules::current(const std::string& name) const noexcept {
  const auto versions = catalog_.by_shown(name);
  for (auto version = versions.rbegin(); version != versions.rend(); ++version) {
    if (keeper_.is_here((*version)->record.id)) return &(*version)->record;
    if (is_in_grace()) return nullptr;
  }
  return nullptr;
}

const VersionRecord* VersionRules::open(const std::string& name, std::uint64_t number) const {
  check_name(name);
  if (number == 0)
    if (const VersionRecord* const version = current(name)) return version;
  if (const Catalog::Version* const version = catalog_.find(name, number)) {
    if (keeper_.is_here(version->record.id)) return &version->record;
    if (is_in_grace()) return nullptr;
  }
  if (number == 0 && is_in_grace() && is_awaited(name)) return nullptr;
  throw_missing(name, number);
}

/// Throws unless the version may be brought back though the index does not name it. Returns whether it was given up.
bool VersionRules::check_restored(const VersionRecord& version, bool is_ours) const {
  const auto* const dropped = catalog_.find_dropped(version.name, version.token);
  const bool is_given_up = dropped && dropped->is_given_up();
  if (is_ours || (dropped ? !is_given_up : knows_all_))
    throw_error(ErrorCode::stale_handle, "version {} of \"{}\" was dropped", version.number, version.name);
  if (version.number == 0 || version.number > kMaxNumber)
    throw_error(ErrorCode::protocol, "no version has the number {}", version.number);
  if ((!is_given_up && published_.contains(version.name)) || catalog_.find(version.name, version.number))
    throw_error(ErrorCode::stale_handle, "the store has other versions of \"{}\" by now", version.name);
  check_kind(version);
  return is_given_up;
}

void VersionRules::restore(VersionRecord version, bool is_ours, const Take& take) {
  check_name(version.name);
  if (const auto* const known = catalog_.find(version.name, version.token)) {
    if (!keeper_.is_here(known->record.id)) take(known->record.id);
    unreclaimed_.insert(version.name);
    return;
  }
  const bool is_given_up = check_restored(version, is_ours);
  const std::string name = version.name;
  if (is_given_up) version.keep = catalog_.object(name)->keep;
  const auto* const current = catalog_.current(name);
  const bool stays = current && (is_given_up || current->record.number > version.number);
  const std::uint64_t before = stays ? current->record.id : 0;
  add(std::move(version), take);
  if (before != 0) write({.kind = Record::Kind::show, .id = before});
  unreclaimed_.insert(name);
}

void VersionRules::rollback(const std::string& name, std::uint64_t number) {
  check_name(name);
  const std::uint64_t id = require(name, number).record.id;
  if (catalog_.current(name)->record.id != id) write({.kind = Record::Kind::show, .id = id});
}

void VersionRules::remove(const std::string& name, std::size_t keep) {
  check_name(name);
  for (const std::uint64_t id : catalog_.older_than_newest(name, keep)) drop(id);
  const auto* const object = catalog_.object(name);
  if (!object || std::ranges::none_of(object->dropped, &DroppedVersion::is_given_up)) return;
  Record record = catalog_.record(name);
  for (DroppedVersion& dropped : record.dropped) dropped.number &= ~DroppedVersion::kGivenUp;
  write(record);
}

}  // namespace onecopy::store
