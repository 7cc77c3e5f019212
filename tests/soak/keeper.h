// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace onecopy::soak {

/// The keeper of the agents' store: a program whose two halves this process finds by their names and kills.
/// Thread safety: used by one thread. The destructor kills both halves and removes the directory.
class Keeper {
 public:
  /// Makes the directory the store of this process and of its children.
  explicit Keeper(std::string directory);
  ~Keeper();
  Keeper& operator=(Keeper&&) = delete;

  /// Starts a keeper, and waits until both halves run and clients can connect. Throws timeout.
  void start();
  /// Kills the worker or the guard. Returns its pid; nothing while the half that was killed last is not replaced.
  std::optional<int> kill_half(std::uint64_t choice) const;
  /// Kills both halves at once. Returns their pids.
  std::vector<int> kill_both() const;
  /// Asks the keeper to end. Returns whether both halves did.
  bool end() const;
  /// Returns the number of versions of which a half has the memory, and which none of the processes maps.
  std::size_t count_unread(std::span<const int> pids) const;

 private:
  std::vector<int> halves() const;

  const std::string directory_;
};

}  // namespace onecopy::soak
