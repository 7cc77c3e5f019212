// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "os/fd.h"
#include "os/unix_socket.h"

namespace onecopy::store {

/// The other half of the keeper, as one half sees it: a process and a socket to it.
///
/// Thread safety: none. A process with one thread makes it.
class Partner {
 public:
  /// The notes of the worker to the guard.
  enum class Kind : std::uint32_t {
    take = 1,     ///< descriptors of a version, which may exist from now on; in one or several notes
    drop,         ///< the version was dropped, or never published
    index,        ///< the descriptor of a new index
    directories,  ///< the descriptors of directories that were made again, and the listener last
    end,          ///< the keeper ends
  };
  struct Note {
    Kind kind;
    std::uint64_t id;
    std::vector<Fd> fds;
  };

  /// Forks. Returns the child in the parent, and the parent in the child; is_child() tells the two apart. Throws
  /// out_of_descriptors, system.
  static Partner fork();

  bool is_child() const noexcept { return is_child_; }
  int pid() const noexcept { return pid_; }
  /// Returns a descriptor that is readable when the process has ended.
  int pidfd() const noexcept { return pidfd_.get(); }
  int socket() const noexcept { return socket_.fd(); }
  bool has_ended() const noexcept;
  /// Waits for the end of a child, so that no zombie stays.
  void reap() const noexcept;

  /// Sends a note. Does nothing if the partner has ended, and kills a partner that reads nothing for a second.
  void send(Kind kind, std::uint64_t id = 0, std::span<const int> fds = {});
  /// Returns the next note, or nothing if none is there.
  std::optional<Note> receive();

 private:
  Partner(UnixSocket socket, Fd pidfd, int pid, bool is_child)
      : socket_(std::move(socket)), pidfd_(std::move(pidfd)), pid_(pid), is_child_(is_child) {}

  UnixSocket socket_;
  Fd pidfd_;
  int pid_;
  bool is_child_;
};

}  // namespace onecopy::store
