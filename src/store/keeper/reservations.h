// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "store/format/message.h"
#include "store/format/record.h"

namespace onecopy::store {

/// The limits that a keeper was started with. A version that would exceed a limit is refused if dropping all old
/// versions without a reader does not make room.
struct Limits {
  std::uint64_t bytes = UINT64_MAX;         ///< the max size of all versions together
  std::uint64_t client_bytes = UINT64_MAX;  ///< the max size of one publisher's versions
  /// The max size of the versions on a device, such as "cuda:0".
  std::map<std::string, std::uint64_t> devices{};
  /// The age from which versions are dropped that are not current and have no reader.
  std::optional<std::chrono::seconds> age{};
  /// The time after which the keeper ends that holds nothing and has no client. Empty: it stays.
  std::optional<std::chrono::seconds> unused{};

  bool operator==(const Limits&) const = default;

  /// Returns these limits as a message, and the limits in a message.
  KeptLimits kept() const;
  static Limits from(const KeptLimits& kept);
  /// Takes the limits of a former keeper for those that are not set.
  void inherit(const Limits& former);
};

/// The reservations of drafts, and the decision whether a version fits into the limits. A draft is reserved before its
/// memory is made, so a draft that does not fit takes no memory. A reservation ends with release(), with its version, or
/// with its owner, and drops nothing.
///
/// Thread safety: none.
class Reservations {
 public:
  using Versions = std::span<const VersionRecord* const>;

  explicit Reservations(Limits limits) : limits_(std::move(limits)) {}

  const Limits& limits() const noexcept { return limits_; }
  /// Returns the ids of the versions to drop so that `version` fits beside `all` and the reservations: the first ones of
  /// `old`, which are some of `all`. Throws out_of_memory if dropping all of `old` would not suffice.
  std::vector<std::uint64_t> make(const VersionRecord& version, Versions all, Versions old) const;

  void reserve(std::uint64_t owner, const VersionRecord& version) {
    reserved_[version.token] = {owner, version};
  }
  void release(const Token& token) { reserved_.erase(token); }
  void release_all(std::uint64_t owner) {
    std::erase_if(reserved_, [owner](const auto& entry) { return entry.second.owner == owner; });
  }
  bool is_reserved() const noexcept { return !reserved_.empty(); }

 private:
  struct Reservation {
    std::uint64_t owner;
    VersionRecord version;
  };

  const Limits limits_;
  std::map<Token, Reservation> reserved_;
};

}  // namespace onecopy::store
