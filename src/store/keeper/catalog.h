// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "store/format/record.h"
#include "store/keeper/transactions.h"

namespace onecopy::store {

/// The objects, versions and transactions that exist according to the records, without memory, readers or sockets. An object whose
/// versions were all dropped stays, so that its numbers go on. Thread safety: none.
class Catalog {
 public:
  static constexpr std::size_t kMaxDropped = 64;  ///< the max number of dropped versions of an object
  static constexpr std::size_t kMaxDeleted =
      10'000;  ///< the max number of objects without versions after forget_oldest()

  struct Version {
    VersionRecord record;
    std::uint64_t shown = 0;  ///< increases each time that a version becomes the current one
  };
  struct Object {
    std::map<std::uint64_t, Version> versions;  ///< by number
    std::uint64_t last_number = 0;              ///< the largest number that a version ever had
    std::uint64_t last_shown = 0;               ///< the largest `shown` that a version ever had
    std::uint32_t keep = 1;                     ///< as the last publisher wanted
    std::deque<DroppedVersion> dropped;         ///< the oldest first
  };

  /// Applies a record. Records about unknown versions have no effect.
  void apply(const Record& record);

  const std::map<std::string, Object>& objects() const noexcept { return objects_; }
  const Transactions& transactions() const noexcept { return transactions_; }
  /// Returns null for an object of which no version was ever published.
  const Object* object(const std::string& name) const;
  /// Returns null for a version that does not exist.
  const Version* find(std::uint64_t id) const;
  const Version* find(const std::string& name, std::uint64_t number) const;
  const Version* find(const std::string& name, const Token& token) const;
  const Version* current(const std::string& name) const;
  /// Returns null for a version that was not dropped, or long ago.
  const DroppedVersion* find_dropped(const std::string& name, const Token& token) const;

  /// Returns an id that no version has ever had.
  std::uint64_t next_id() const noexcept { return last_id_ + 1; }
  std::uint64_t next_number(const std::string& name) const;
  /// Returns the versions of an object; the one that was current last is the last one.
  std::vector<const Version*> by_shown(const std::string& name) const;
  /// Returns the ids of the object's versions except the `keep` versions that were current last, the oldest first.
  std::vector<std::uint64_t> older_than_newest(const std::string& name, std::size_t keep) const;
  std::size_t size() const noexcept { return names_.size(); }  ///< the number of versions

  /// Forgets the objects without versions beyond the kMaxDeleted that were current last. Objects that
  /// are published under a forgotten name begin above the numbers of all forgotten objects.
  void forget_oldest();
  /// Returns a record by which apply() changes nothing about an object. REQUIRES: object(name).
  Record record(const std::string& name) const;
  /// Returns records from which the same catalog can be made.
  std::vector<Record> records() const;

 private:
  struct VersionName {
    std::string name;
    std::uint64_t number;
  };
  Version* at(std::uint64_t id);
  void add(const VersionRecord& version);
  void drop(std::uint64_t id);
  void remember(const Record& record);
  void commit(const Record& record);

  std::map<std::string, Object> objects_;
  Transactions transactions_;
  std::map<std::uint64_t, VersionName> names_;  ///< the name of each version, by its id
  std::uint64_t last_id_ = 0, last_shown_ = 0;
  std::uint64_t floor_ = 0;  ///< the largest number that a version of a forgotten object may have had
};

}  // namespace onecopy::store
