// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "os/fd.h"
#include "os/mapping.h"

namespace onecopy::bench {

/// A channel of whole messages between two processes. Thread safety: none.
class Talk {
 public:
  explicit Talk(Fd socket) : socket_(std::move(socket)) {}
  void say(std::string_view text);
  /// Returns the next message. Throws peer_died if the other end has ended, timeout after two minutes.
  std::string hear();
  double hear_number();
  /// Waits for the next message without a limit. Returns false if the other end sends no more.
  bool try_hear(std::string& text);

 private:
  Fd socket_;
};

/// The four objects, shared by both processes, for measuring raw limits.
struct RawLink {
  Mapping arena;  ///< shared memory for words to spin and sleep on
  Fd from;        ///< pipe, reading end
  Fd to;          ///< pipe, writing end
  Fd socket;      ///< SOCK_SEQPACKET
};
inline constexpr std::size_t kArenaBytes = 1 << 16;

/// A child process that runs `program peer <role>`. The destructor kills and reaps the process. Thread safety: none.
class Peer {
 public:
  /// Starts the process. An empty `program` is this program.
  explicit Peer(const std::string& role, const std::string& program = {});
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;
  ~Peer();

  void say(std::string_view text) { talk_.say(text); }
  std::string hear() { return talk_.hear(); }
  double hear_number() { return talk_.hear_number(); }
  std::string ask(std::string_view text) {
    say(text);
    return hear();
  }
  const RawLink& raw() const { return raw_; }
  int pid() const { return pid_; }

 private:
  void spawn(const std::string& program, const std::string& role, const std::vector<int>& fds);

  RawLink raw_;
  Talk talk_;
  int pid_ = -1;
};

/// The member in the other process.
struct Parent {
  Parent();
  RawLink raw;
  Talk talk;
};

}  // namespace onecopy::bench
