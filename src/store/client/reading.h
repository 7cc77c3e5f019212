// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "os/fd.h"
#include "os/mapping.h"
#include "os/unix_socket.h"
#include "store/format/record.h"

namespace onecopy::store {

class Client;

/// A version that this process reads. Thread safety: `files` and `keeper` belong to the Client's lock.
struct ReadVersion {
  /// Takes over the descriptors that the keeper sent: the table, then the chunks. Throws bad_handle if the first one is
  /// not a table. `keeps`: what may_keep_more() said.
  ReadVersion(VersionRecord read, Token keeper_of_it, std::vector<Fd> received, bool keeps);
  ~ReadVersion();
  ReadVersion& operator=(ReadVersion&&) = delete;

  /// Returns whether the next version's descriptors may be kept.
  static bool may_keep_more() noexcept;

  const VersionRecord version;
  Token keeper;  ///< the keeper that knows of the version
  const Mapping
      table;  ///< keeps the table's open file, and so its lock, in this process and its forked children
  std::vector<Fd> files;  ///< empty if the process keeps enough descriptors already
  std::size_t kept = 0;   ///< the number of descriptors that count
};

/// A reading of a version, which the kernel shows to the keeper until the destructor: a lock of an open file of the
/// table that a mapping keeps open. It needs no connection, counts for forked children too, and ends with the process.
/// The destructor waits for nobody.
///
/// Descriptors are kept, so that the version can be given back to a new keeper, while they are a quarter of RLIMIT_NOFILE
/// or fewer. Beyond that a version is readable as others, and is lost with its last reader if both halves of the keeper
/// die. Versions that need their descriptors (as_is, KV pools) always keep them.
///
/// Thread safety: as a value. Move-only.
class Reading {
 public:
  Reading() = default;
  Reading(std::shared_ptr<Client> client, std::shared_ptr<ReadVersion> read) noexcept
      : client_(std::move(client)), read_(std::move(read)) {}
  Reading(Reading&& other) noexcept = default;
  Reading& operator=(Reading&& other) noexcept {
    std::swap(client_, other.client_);
    std::swap(read_, other.read_);
    return *this;
  }
  ~Reading() {
    if (read_) end();
  }

  explicit operator bool() const noexcept { return read_ != nullptr; }
  const VersionRecord& version() const noexcept { return read_->version; }
  /// Returns the descriptors, to map the version: the table, then the chunks. Duplicates, or, at the first call, the
  /// descriptors themselves if they are not kept; later calls return nothing then.
  std::vector<Fd> files() const;
  /// Returns descriptors as files() does, but asks the keeper for others if they are not kept. Throws what
  /// Client::open() throws.
  std::vector<Fd> files_for_others() const;

 private:
  void end() noexcept;

  std::shared_ptr<Client> client_;     // shared with stores and other readings
  std::shared_ptr<ReadVersion> read_;  // shared with a Client that gives the version back
};

/// A draft that counts in the keeper's limits until the last copy of this is dropped, or until its version is published.
using ReservedRoom = std::shared_ptr<const void>;

}  // namespace onecopy::store
