// SPDX-License-Identifier: Apache-2.0
#include "store/keeper/catalog.h"

#include <algorithm>

namespace onecopy::store {
namespace {

Record count_of(const std::string& name, std::uint64_t number) {
  Record record{Record::Kind::count, 0, {}};
  record.version.name = name;
  record.version.number = number;
  return record;
}

}  // namespace

void Catalog::apply(const Record& record) {
  last_id_ = std::max(last_id_, record.id);
  switch (record.kind) {
    case Record::Kind::publish: return add(record.version);
    case Record::Kind::show:
      if (Version* const version = at(record.id)) version->shown = ++last_shown_;
      return;
    case Record::Kind::drop: return drop(record.id);
    case Record::Kind::count:
      if (const auto object = objects_.find(record.version.name); object != objects_.end())
        object->second.last_number = std::max(object->second.last_number, record.version.number);
      return;
  }
}

const Catalog::Version* Catalog::find(std::uint64_t id) const { return const_cast<Catalog*>(this)->at(id); }

Catalog::Version* Catalog::at(std::uint64_t id) {
  const auto place = places_.find(id);
  return place == places_.end() ? nullptr
                                : &objects_.at(place->second.name).versions.at(place->second.number);
}

const Catalog::Version* Catalog::find(const std::string& name, std::uint64_t number) const {
  const auto object = objects_.find(name);
  if (object == objects_.end()) return nullptr;
  const auto version = object->second.versions.find(number);
  return version == object->second.versions.end() ? nullptr : &version->second;
}

const Catalog::Version* Catalog::current(const std::string& name) const {
  const auto object = objects_.find(name);
  if (object == objects_.end()) return nullptr;
  const auto shown_before = [](const auto& a, const auto& b) { return a.second.shown < b.second.shown; };
  return &std::max_element(object->second.versions.begin(), object->second.versions.end(), shown_before)
              ->second;
}

const Catalog::Version* Catalog::find(const std::string& name, const Token& token) const {
  const auto object = objects_.find(name);
  if (object == objects_.end()) return nullptr;
  for (const auto& [number, version] : object->second.versions)
    if (version.record.token == token) return &version;
  return nullptr;
}

std::uint64_t Catalog::next_number(const std::string& name) const {
  const auto object = objects_.find(name);
  return object == objects_.end() ? 1 : object->second.last_number + 1;
}

std::vector<std::uint64_t> Catalog::beyond(const std::string& name, std::size_t keep) const {
  const auto object = objects_.find(name);
  if (object == objects_.end() || object->second.versions.size() <= keep) return {};
  std::vector<const Version*> versions;
  for (const auto& [number, version] : object->second.versions) versions.push_back(&version);
  std::sort(versions.begin(), versions.end(), [](auto* a, auto* b) { return a->shown < b->shown; });
  std::vector<std::uint64_t> ids;
  for (std::size_t i = 0; i + keep < versions.size(); ++i) ids.push_back(versions[i]->record.id);
  return ids;
}

std::vector<Record> Catalog::records() const {
  std::vector<const Version*> versions;
  for (const auto& [name, object] : objects_)
    for (const auto& [number, version] : object.versions) versions.push_back(&version);
  std::sort(versions.begin(), versions.end(), [](auto* a, auto* b) { return a->shown < b->shown; });
  std::vector<Record> records{{Record::Kind::drop, last_id_, {}}};  // keeps later ids from being reused
  for (const Version* const version : versions)
    records.push_back({Record::Kind::publish, version->record.id, version->record});
  for (const auto& [name, object] : objects_) records.push_back(count_of(name, object.last_number));
  return records;
}

void Catalog::add(const VersionRecord& version) {
  drop(version.id);
  if (const Version* const other = find(version.name, version.number)) drop(other->record.id);
  Object& object = objects_[version.name];
  object.versions[version.number] = {version, ++last_shown_};
  object.last_number = std::max(object.last_number, version.number);
  places_[version.id] = {version.name, version.number};
  bytes_ += version.bytes;
}

void Catalog::drop(std::uint64_t id) {
  const auto place = places_.find(id);
  if (place == places_.end()) return;
  const auto object = objects_.find(place->second.name);
  const auto version = object->second.versions.find(place->second.number);
  bytes_ -= version->second.record.bytes;
  object->second.versions.erase(version);
  if (object->second.versions.empty()) objects_.erase(object);
  places_.erase(place);
}

}  // namespace onecopy::store
