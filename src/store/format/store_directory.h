// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "os/deadline.h"
#include "os/fd.h"
#include "os/hmac.h"
#include "os/unix_socket.h"

namespace onecopy::store {

/// A directory where a keeper of this user is found. No other user may enter the directory, which has the keeper's socket and
/// the secret that both sides prove, or links to them. Thread safety: const members may be called concurrently.
class StoreDirectory {
 public:
  explicit StoreDirectory(std::string path, bool has_own_parent = false)
      : path_(std::move(path)), has_own_parent_(has_own_parent) {}

  const std::string& path() const noexcept { return path_; }
  SocketName socket() const { return {path_ + "/keeper", false}; }
  /// Returns the path of the log of a keeper in the background.
  std::string log() const { return path_ + "/keeper.log"; }
  /// Makes the directory, or checks the one that exists. A parent of its own is made and checked as well. Throws
  /// other_user, system.
  void ensure() const;
  /// Throws what ensure() would throw, and makes nothing.
  void check() const;
  /// Locks the directory itself, which programs that clean /tmp leave alone as long as the lock is held. Returns the
  /// lock, which ends with the last process that inherits the descriptor; empty if another process holds the lock.
  /// REQUIRES: ensure() was called.
  Fd try_lock() const;
  /// Returns whether `lock` locks the directory that has this name now.
  bool is_locked_by(const Fd& lock) const noexcept;
  /// Reads the secret. Throws system if there is no secret yet, and bad_file.
  Digest secret() const;
  /// Returns the secret that lies here, or writes a new one. REQUIRES: the caller holds the lock.
  Digest make_secret() const;
  /// Writes a secret. REQUIRES: the caller holds the lock.
  void write_secret(const Digest& secret) const;
  /// Makes socket and secret links to the files of another directory. REQUIRES: the caller holds the lock.
  void link_to(const StoreDirectory& home) const;
  /// Removes the socket, or the link to it. REQUIRES: the caller holds the lock.
  void remove_socket() const noexcept;

 private:
  std::string secret_path() const { return path_ + "/secret"; }

  std::string path_;
  bool has_own_parent_;
};

/// The directories where processes of this user look for a keeper, in this order. Which keeper they find does not depend on the
/// environment of one login: a keeper listens in the first directory that can be made, and leaves links in the others.
///
/// The last directory is the one that two keepers cannot both have. A keeper also answers at an abstract name that follows from
/// the last directory, so that it is found when files were removed. Thread safety: const members may be called concurrently.
class StoreDirectories {
 public:
  /// Returns ONECOPY_STORE_DIR alone if it is set. Otherwise returns `store` in ONECOPY_RUNTIME_DIR if that is set, then
  /// /run/user/UID/onecopy/store and /tmp/onecopy-store-UID. Throws invalid_argument if a variable is a relative path.
  static StoreDirectories of_this_user();
  StoreDirectories(StoreDirectory only);  // NOLINT: a directory is a list of one

  const std::vector<StoreDirectory>& all() const noexcept { return all_; }
  /// Returns the variables of the environment with which another process has these directories.
  const std::vector<std::string>& environment() const noexcept { return environment_; }
  /// Returns whether the user asked for the first directory, so that a keeper may not do without it.
  bool is_first_required() const noexcept { return is_first_required_; }
  /// Throws what a keeper would throw that starts here, and makes nothing.
  void check() const;
  /// Makes `home` the first directory, unless one of these is that directory.
  void begin_with(const std::string& home);
  /// Returns the abstract name; empty if the parent of the last directory does not exist.
  std::string bell() const;
  /// Makes a keeper that has the bell look after its directories. Returns false if no keeper of this user answers.
  bool ring(Deadline deadline) const;

 private:
  StoreDirectories() = default;

  std::vector<StoreDirectory> all_;
  std::vector<std::string> environment_;
  bool is_first_required_ = true;
};

}  // namespace onecopy::store
