// SPDX-License-Identifier: Apache-2.0
#include "store/keeper/catalog.h"

#include <algorithm>

namespace onecopy::store {
namespace {

bool shown_before(const Catalog::Version* a, const Catalog::Version* b) noexcept {
  return a->shown < b->shown;
}

}  // namespace

void Catalog::apply(const Record& record) {
  last_id_ = std::max(last_id_, record.id);
  switch (record.kind) {
    case Record::Kind::publish: return add(record.version);
    case Record::Kind::show:
      if (Version* const version = at(record.id))
        objects_.at(version->record.name).last_shown = version->shown = ++last_shown_;
      return;
    case Record::Kind::drop: transactions_.apply(record); return drop(record.id);
    case Record::Kind::object: return remember(record);
    case Record::Kind::floor: floor_ = std::max(floor_, record.version.number); return;
    case Record::Kind::join:
    case Record::Kind::part:
    case Record::Kind::abort: return transactions_.apply(record);
    case Record::Kind::commit: return commit(record);
  }
}

const Catalog::Object* Catalog::object(const std::string& name) const {
  const auto object = objects_.find(name);
  return object == objects_.end() ? nullptr : &object->second;
}

const Catalog::Version* Catalog::find(std::uint64_t id) const { return const_cast<Catalog*>(this)->at(id); }

Catalog::Version* Catalog::at(std::uint64_t id) {
  const auto found = names_.find(id);
  return found == names_.end() ? nullptr
                               : &objects_.at(found->second.name).versions.at(found->second.number);
}

const Catalog::Version* Catalog::find(const std::string& name, std::uint64_t number) const {
  const Object* const known = object(name);
  if (!known) return nullptr;
  const auto version = known->versions.find(number);
  return version == known->versions.end() ? nullptr : &version->second;
}

const Catalog::Version* Catalog::find(const std::string& name, const Token& token) const {
  const Object* const known = object(name);
  if (!known) return nullptr;
  for (const auto& [number, version] : known->versions)
    if (version.record.token == token) return &version;
  return nullptr;
}

const Catalog::Version* Catalog::current(const std::string& name) const {
  const auto versions = by_shown(name);
  return versions.empty() ? nullptr : versions.back();
}

const DroppedVersion* Catalog::find_dropped(const std::string& name, const Token& token) const {
  const Object* const known = object(name);
  if (!known) return nullptr;
  const auto at = std::ranges::find(known->dropped, token, &DroppedVersion::token);
  return at == known->dropped.end() ? nullptr : &*at;
}

std::uint64_t Catalog::next_number(const std::string& name) const {
  const Object* const known = object(name);
  return (known ? known->last_number : floor_) + 1;
}

std::vector<const Catalog::Version*> Catalog::by_shown(const std::string& name) const {
  std::vector<const Version*> versions;
  if (const Object* const known = object(name))
    for (const auto& [number, version] : known->versions) versions.push_back(&version);
  std::ranges::sort(versions, shown_before);
  return versions;
}

std::vector<std::uint64_t> Catalog::older_than_newest(const std::string& name, std::size_t keep) const {
  const auto versions = by_shown(name);
  std::vector<std::uint64_t> ids;
  for (std::size_t i = 0; i + keep < versions.size(); ++i) ids.push_back(versions[i]->record.id);
  return ids;
}

void Catalog::forget_oldest() {
  std::vector<std::pair<std::uint64_t, std::string>> deleted;
  for (const auto& [name, object] : objects_)
    if (object.versions.empty()) deleted.emplace_back(object.last_shown, name);
  std::ranges::sort(deleted);
  for (std::size_t i = 0; i + kMaxDeleted < deleted.size(); ++i) {
    const auto object = objects_.find(deleted[i].second);
    floor_ = std::max(floor_, object->second.last_number);
    objects_.erase(object);
  }
}

Record Catalog::record(const std::string& name) const {
  const Object& object = objects_.at(name);
  Record record{.kind = Record::Kind::object, .dropped = {object.dropped.begin(), object.dropped.end()}};
  record.version.name = name;
  record.version.number = object.last_number;
  record.version.keep = object.keep;
  return record;
}

std::vector<Record> Catalog::records() const {
  std::vector<const Version*> versions;
  for (const auto& [name, object] : objects_)
    for (const auto& [number, version] : object.versions) versions.push_back(&version);
  std::ranges::sort(versions, shown_before);
  std::vector<Record> records{
      {.kind = Record::Kind::drop, .id = last_id_}};  // keeps later ids from being reused
  records.push_back({.kind = Record::Kind::floor});
  records.back().version.number = floor_;
  for (const Version* const version : versions)
    records.push_back(
        {.kind = Record::Kind::publish, .id = version->record.id, .version = version->record});
  std::vector<std::pair<std::uint64_t, std::string>> names;
  for (const auto& [name, object] : objects_) names.emplace_back(object.last_shown, name);
  std::ranges::sort(names);
  for (const auto& [shown, name] : names) records.push_back(record(name));
  transactions_.add_records(records);
  return records;
}

void Catalog::commit(const Record& record) {
  for (auto& [id, part] : transactions_.commit(record.transaction, record.version.number)) {
    part.number = record.version.number;
    part.made_at = record.version.made_at;
    add(part);
  }
}

void Catalog::add(const VersionRecord& version) {
  drop(version.id);
  if (const Version* const other = find(version.name, version.number)) drop(other->record.id);
  Object& object = objects_[version.name];
  std::erase_if(object.dropped, [&](const DroppedVersion& other) { return other.token == version.token; });
  if (version.number > object.last_number)
    for (DroppedVersion& other : object.dropped) other.number &= ~DroppedVersion::kGivenUp;
  object.versions[version.number] = {version, ++last_shown_};
  object.last_number = std::max(object.last_number, version.number);
  object.last_shown = last_shown_;
  object.keep = std::max<std::uint32_t>(version.keep, 1);
  names_[version.id] = {version.name, version.number};
}

void Catalog::drop(std::uint64_t id) {
  const auto found = names_.find(id);
  if (found == names_.end()) return;
  Object& object = objects_.at(found->second.name);
  const auto version = object.versions.find(found->second.number);
  object.dropped.push_back({version->second.record.number, version->second.record.token});
  if (object.dropped.size() > kMaxDropped) object.dropped.pop_front();
  object.versions.erase(version);
  names_.erase(found);
}

void Catalog::remember(const Record& record) {
  Object& object = objects_[record.version.name];
  object.last_number = std::max(object.last_number, record.version.number);
  object.last_shown = ++last_shown_;
  object.keep = std::max<std::uint32_t>(record.version.keep, 1);
  object.dropped.assign(record.dropped.begin(), record.dropped.end());
}

}  // namespace onecopy::store
