// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "os/fd.h"
#include "store/format/record.h"

namespace onecopy::store::ferry {

/// Knows which versions of an object came from other hosts: a file of pairs in the keeper's directory. A version has one token on the
/// host that published it, which names it on all hosts, and another one in the keeper of each host that pulled it, since a host
/// may drop a version and pull it again. The last pair is the version that is arriving, or was shown last.
///
/// Thread safety: none. Processes read the file while one of them writes: pairs are only added, by one write each.
class Origins {
 public:
  struct Pair {
    Token origin{}, local{};
    std::uint64_t number = 0;  ///< on the host that it came from
    std::uint64_t source = 0;  ///< a number that stands for that host
  };
  static_assert(sizeof(Pair) == 48);

  Origins(const std::string& home, const std::string& name);

  /// Returns whether this process may add pairs from now on: one process at a time pulls an object.
  bool try_lock();
  /// REQUIRES: try_lock() has returned true.
  void add(const Pair& pair);

  /// Returns the token by which other hosts know the version of this keeper: its own, unless it was pulled.
  Token origin_of(const Token& local) const;
  /// Returns the last 1,024 pairs, the oldest first.
  std::vector<Pair> pairs() const;
  std::optional<Pair> last() const;
  /// Returns a number that changes with each pair.
  std::int64_t size() const noexcept;

 private:
  std::string path_;
  Fd file_;  ///< locked; empty if this process only reads
};

}  // namespace onecopy::store::ferry
