// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "os/fd.h"
#include "os/hmac.h"
#include "os/unix_socket.h"

namespace onecopy::store {

/// The place where the keeper of this user is found: a directory that no other user may enter, with the keeper's socket and the
/// secret that both sides prove. Thread safety: const members may be called concurrently.
class Place {
 public:
  /// Returns ONECOPY_STORE_DIR if it is set, else `store` in ONECOPY_RUNTIME_DIR, else /tmp/onecopy-store-<uid>.
  static Place of_this_user();
  explicit Place(std::string directory) : directory_(std::move(directory)) {}

  const std::string& directory() const noexcept { return directory_; }
  SocketName socket() const { return {directory_ + "/keeper", false}; }
  /// Makes the directory, or checks the one that exists. Throws other_user, system.
  void ensure() const;
  /// Returns a lock, which is released with the last process that inherits the descriptor; empty if another process
  /// holds the lock. REQUIRES: ensure() was called.
  Fd try_lock() const;
  /// Reads the secret. Throws system if there is no secret yet, and bad_file.
  Digest secret() const;
  /// Makes a new secret and writes it. REQUIRES: the caller holds the lock.
  Digest make_secret() const;

 private:
  std::string secret_path() const { return directory_ + "/secret"; }

  std::string directory_;
};

}  // namespace onecopy::store
