// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "os/hmac.h"
#include "os/unix_socket.h"
#include "store/format/store_directory.h"

namespace onecopy::store {

/// The directories of a running keeper: it holds the lock of each directory that can be made, listens in the first one (its home),
/// and keeps links to that in the others. Both halves of the keeper have a copy, which inherits the descriptors.
/// Thread safety: none.
class KeeperDirectories {
 public:
  enum class State : std::uint8_t { whole, made_again, lost };

  KeeperDirectories() = default;
  explicit KeeperDirectories(StoreDirectories directories) : directories_(std::move(directories)) {
    locks_.resize(directories_.all().size());
  }
  /// The directories of a keeper that this process replaces, whose descriptors came with its answer.
  KeeperDirectories(StoreDirectories directories, const std::string& home, std::vector<Fd> descriptors);

  /// Locks the directories, and takes the abstract name. Returns false, with nothing taken, if another keeper has one of them.
  /// Throws other_user, system.
  bool try_take();
  /// Listens in the home. Then reads or makes the secret, and makes the links. REQUIRES: try_take() returned true.
  std::pair<UnixSocket, Digest> listen();
  /// Checks all directories, and makes again what is missing of them. Returns a new `listener` if clients cannot reach
  /// the present one. `lost`: no directory can be made. Throws system, out_of_memory.
  State poll(std::optional<UnixSocket>& listener, const Digest& secret);
  /// Tells the processes that rang, after poll().
  void answer_bell();
  /// Removes the socket and the links.
  void leave() const noexcept;

  const StoreDirectories& directories() const noexcept { return directories_; }
  const StoreDirectory& home() const noexcept { return directories_.all()[home_]; }
  /// Returns the path of the index that was written last in one of the directories, since keepers with other environments have
  /// other homes; a path in the home if there is none.
  std::string index() const;
  int bell() const noexcept { return bell_.fd(); }
  /// The descriptors that another half or keeper needs to hold the directories: see the constructor and adopt().
  std::vector<int> descriptors() const;
  /// Takes the descriptors of the other half, which has made directories again.
  void adopt(std::vector<Fd> descriptors);

 private:
  using File = std::pair<std::uint64_t, std::uint64_t>;  ///< device and inode

  static std::optional<File> file_at(const std::string& path) noexcept;
  bool lock_directories(bool is_start);
  void find_home() noexcept;
  bool lock_files();
  bool take_bell();
  UnixSocket bind();
  bool leads_here(const StoreDirectory& directory, const Digest& secret) const noexcept;
  void link_others(const Digest& secret) const;

  StoreDirectories directories_{StoreDirectory("")};
  std::vector<Fd> locks_;  ///< of each directory; empty for one that cannot be made
  std::vector<Fd> kept_;   ///< locks of lock_files(), and of directories that this process does not know
  std::size_t home_ = 0;
  std::optional<File> socket_;
  UnixSocket bell_;
};

}  // namespace onecopy::store
