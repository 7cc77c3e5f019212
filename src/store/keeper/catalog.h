// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "store/format/record.h"

namespace onecopy::store {

/// The objects and versions that exist according to the records, without descriptors, readers or sockets. Thread
/// safety: none.
class Catalog {
 public:
  struct Version {
    VersionRecord record;
    std::uint64_t shown = 0;  ///< increases each time that a version becomes the current one
  };
  struct Object {
    std::map<std::uint64_t, Version> versions;  ///< by number; never empty
    std::uint64_t last_number = 0;              ///< the largest number that a version ever had
  };

  /// Applies a record. Records about unknown objects or versions have no effect.
  void apply(const Record& record);

  const std::map<std::string, Object>& objects() const noexcept { return objects_; }
  /// Returns null for a version that does not exist.
  const Version* find(std::uint64_t id) const;
  const Version* find(const std::string& name, std::uint64_t number) const;
  const Version* current(const std::string& name) const;
  const Version* find(const std::string& name, const Token& token) const;

  /// Returns an id that no version has ever had.
  std::uint64_t next_id() const noexcept { return last_id_ + 1; }
  std::uint64_t next_number(const std::string& name) const;
  /// Returns the ids of the object's versions except the `keep` versions that were current last, the oldest first.
  std::vector<std::uint64_t> beyond(const std::string& name, std::size_t keep) const;
  std::uint64_t bytes() const noexcept { return bytes_; }
  /// Returns records from which the same catalog can be made.
  std::vector<Record> records() const;

 private:
  struct Place {
    std::string name;
    std::uint64_t number;
  };
  Version* at(std::uint64_t id);
  void add(const VersionRecord& version);
  void drop(std::uint64_t id);

  std::map<std::string, Object> objects_;
  std::map<std::uint64_t, Place> places_;  ///< the place of each version, by its id
  std::uint64_t last_id_ = 0, last_shown_ = 0, bytes_ = 0;
};

}  // namespace onecopy::store
