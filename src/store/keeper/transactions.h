// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "store/format/record.h"

namespace onecopy::store {

/// The transactions that have not ended, and how the last ones ended, according to the records. Thread safety: none.
class Transactions {
 public:
  static constexpr std::size_t kMaxEnded = 1'024;

  using Records = std::map<std::uint64_t, VersionRecord>;  ///< by id
  struct Open {
    Records members;  ///< the processes that take part
    Records parts;    ///< the versions, which have no number yet
  };

  /// Applies a record that says join, part, abort or drop; a member that is dropped takes part no longer.
  void apply(const Record& record);
  /// Ends a transaction, and returns its parts in the order in which they came.
  Records commit(const Token& transaction, std::uint64_t number);

  const std::map<Token, Open>& open() const noexcept { return open_; }
  /// Returns null for a transaction that is not open.
  const Open* find(const Token& transaction) const;
  /// Returns the number that the versions of a transaction got, 0 for one that was aborted, and nothing for one that is
  /// open or unknown.
  std::optional<std::uint64_t> end_of(const Token& transaction) const;
  /// Returns whether the id is that of a member or a part of an open transaction.
  bool has(std::uint64_t id) const noexcept;
  /// Adds the records from which the same transactions can be made.
  void add_records(std::vector<Record>& records) const;

 private:
  void end(const Token& transaction, std::uint64_t number);

  std::map<Token, Open> open_;
  std::deque<std::pair<Token, std::uint64_t>> ended_;  ///< the oldest first
};

/// Returns the record with this token; null if there is none.
const VersionRecord* find(const Transactions::Records& records, const Token& token) noexcept;

}  // namespace onecopy::store
