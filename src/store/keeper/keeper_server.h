// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "os/poller.h"
#include "os/unix_socket.h"
#include "store/format/message.h"
#include "store/keeper/directory_watch.h"
#include "store/keeper/keeper_state.h"
#include "store/keeper/partner.h"
#include "store/keeper/version_rules.h"

namespace onecopy::store {

/// A client of the worker. Thread safety: none.
struct Connection {
  explicit Connection(UnixSocket connected) : socket(std::move(connected)), pid(socket.peer().pid) {}

  UnixSocket socket;
  PacketJoiner joiner;
  const int pid;
  const std::chrono::steady_clock::time_point since = std::chrono::steady_clock::now();
  peer::Gate gate{kProtocol};
  bool is_client = false;              ///< the secret is proved
  std::optional<WaitForChange> watch;  ///< a question whose answer is pending
  std::optional<Open> open;            ///< another one
};

/// The half of the keeper that answers clients, by the rules of versions. Each change is a record in the index, and the
/// guard gets the descriptors of a version before the record is written. So a new worker begins with the index and the
/// descriptors, and with no clients, which connect again.
///
/// Thread safety: none; its process has one thread. Invariant: the rules' catalog is what the index says.
class KeeperServer final : private VersionKeeper {
 public:
  KeeperServer(KeeperState& state, Partner& guard);

  /// Returns what this process does next: a child that was forked becomes the guard.
  Next run();

 private:
  using Connections = std::map<std::uint64_t, Connection>;

  // keeper_server.cpp contains the loop and the sockets.
  Next replace_guard();
  void watch_guard();
  void tidy_up();
  std::chrono::milliseconds patience() const;
  Clock::time_point end() const noexcept;
  void poll_directories();
  void accept_some();
  void close_strangers();
  void listen_again();
  void serve(std::uint64_t token);
  void close(std::uint64_t token);
  static void send(Connection& c, const Bytes& message, std::span<const int> fds = {});

  // keeper_server_answers.cpp contains a function for each question.
  void answer(std::uint64_t token, Connection& c, Packet packet);
  void greet(Connection& c, ByteSpan packet);
  void admit(Connection& c, ByteSpan packet);
  void publish(Connection& c, Packet packet);
  void reserve(std::uint64_t token, Connection& c, ByteSpan packet);
  void join(Connection& c, Packet packet);
  void conclude(Connection& c, ByteSpan packet);
  void open_draft(Connection& c, ByteSpan packet);
  void open(Connection& c, ByteSpan packet);
  bool try_open(Connection& c, const Open& wanted);
  void restore(Connection& c, Packet packet);
  void list(Connection& c, ByteSpan packet);
  void rollback(Connection& c, ByteSpan packet);
  void remove(Connection& c, ByteSpan packet);
  void watch(Connection& c, ByteSpan packet);
  ListedVersion describe(const VersionRecord& version) const;
  void answer_waiting();
  void answer_open(Connection& c);
  void answer_watch(Connection& c);

  // keeper_server_replace.cpp hands the versions over to another keeper.
  void replace(Connection& c);

  // keeper_server_versions.cpp contains what the rules ask for.
  Clock::time_point now() const override { return Clock::now(); }
  std::int64_t wall_clock() const override;
  bool is_here(std::uint64_t id) const override { return state_.versions.contains(id); }
  bool may_be_read(std::uint64_t id) const override;
  void write(const Record& record) override;
  void forget(std::uint64_t id) override;
  void take(std::uint64_t id, std::vector<Fd> files);
  void recover();
  void replace_index();
  void rewrite_index() noexcept;

  KeeperState& state_;
  Partner& guard_;
  VersionRules rules_;
  Poller poller_;
  Connections connections_;
  std::uint64_t last_token_ = 0;
  std::uint64_t max_index_ = 0;  ///< the size beyond which the index is written anew
  Clock::time_point last_use_ = Clock::now();
  DirectoryWatch directory_watch_{Clock::now()};
  bool must_rewrite_ = false;     ///< no record may be appended before the index is written anew
  bool listener_paused_ = false;  ///< the listener is ignored, because there are no free descriptors
  bool is_stopping_ = false;
  bool is_replaced_ = false;  ///< another keeper has taken the versions over
};

}  // namespace onecopy::store
