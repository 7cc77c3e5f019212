// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "store/group/etcd.h"
#include "store/group/records.h"

namespace onecopy::store::group {

/// The group of this host, as `store serve --group` tells other processes of this user: a file in the keeper's directory, and
/// beside it one whose time is that at which etcd last answered. Thread safety: as a value; processes read the file while one writes it.
struct Config {
  std::string group, host, address;
  std::string rack;      ///< may be empty
  std::string memory;    ///< the file of Remembered
  std::string key_file;  ///< the key of the store
  EtcdOptions etcd;
  std::string problem;  ///< why this host changes nothing; empty if it does

  /// Returns the group of the keeper in that directory; nothing if it has none.
  static std::optional<Config> find(const std::string& home);
  static bool is_in(const std::string& home) noexcept;
  void save(const std::string& home) const;
  Records records() const;

  static void note_answer(const std::string& home);
  /// Returns the time since etcd last answered; nothing if it never has.
  static std::optional<std::chrono::nanoseconds> since_answer(const std::string& home);

  /// Counts bytes that have come from other hosts. Those that cannot be counted are left out.
  static void add_pulled(const std::string& home, std::uint64_t bytes) noexcept;
  static std::uint64_t pulled(const std::string& home);
};

}  // namespace onecopy::store::group
