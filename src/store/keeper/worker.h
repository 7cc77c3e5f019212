// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "os/poller.h"
#include "store/keeper/catalog.h"
#include "store/keeper/connection.h"
#include "store/keeper/holdings.h"
#include "store/keeper/partner.h"

namespace onecopy::store {

/// The half of the keeper that answers clients. Each change is a record in the index, and the guard gets the
/// descriptors of a version before the record is written. So a new worker begins with the index and the descriptors,
/// and with no clients, which connect again.
///
/// Thread safety: none; its process has one thread. Invariant: `catalog_` is what the index says, and
/// `holdings_.versions` has the descriptors of all its versions.
class Worker {
 public:
  Worker(Holdings& holdings, Partner& guard);

  /// Returns what this process does next: a child that was forked becomes the guard.
  Next run();

 private:
  using Clock = std::chrono::steady_clock;
  using Connections = std::map<std::uint64_t, Connection>;

  // worker.cpp contains the loop and the sockets.
  void recover();
  Next replace_guard();
  void watch_guard();
  std::chrono::milliseconds patience() const;
  bool is_unused() const noexcept { return connections_.empty() && catalog_.objects().empty(); }
  void accept_some();
  void listen_again();
  void serve(std::uint64_t token);
  void close(std::uint64_t token);
  static void send(Connection& c, const Bytes& message, std::span<const int> fds = {});

  // worker_answers.cpp contains a function for each question.
  void answer(Connection& c, Packet packet);
  void greet(Connection& c, ByteSpan packet);
  void admit(Connection& c, ByteSpan packet);
  void publish(Connection& c, Packet packet);
  void open(Connection& c, ByteSpan packet);
  void release(Connection& c, ByteSpan packet);
  void offer(Connection& c, Packet packet);
  void list(Connection& c, ByteSpan packet);
  void check_kind(const VersionRecord& version) const;
  ListedVersion describe(const VersionRecord& version) const;
  void rollback(Connection& c, ByteSpan packet);
  void remove(Connection& c, ByteSpan packet);
  void watch(Connection& c, ByteSpan packet);

  // worker_replace.cpp hands the versions over to another keeper.
  void replace(Connection& c);

  // worker_limits.cpp drops versions to make room.
  void make_room(const VersionRecord& version);
  std::vector<const VersionRecord*> reclaimable() const;
  Clock::time_point next_old() const;
  void reclaim_old();

  // worker_versions.cpp contains the functions on versions that the answers use.
  const Catalog::Version& require(const std::string& name, std::uint64_t number) const;
  const VersionRecord& add(VersionRecord version, std::vector<Fd> fds);
  void write(const Record& record);
  void rewrite_index();
  void drop(std::uint64_t id);
  void begin_reading(Connection& c, std::uint64_t id);
  void end_reading(Connection& c, std::uint64_t id);
  void reclaim(const std::string& name);
  void reclaim_all();
  void show_newest(const std::string& name);
  void tell_watchers();

  Holdings& holdings_;
  Partner& guard_;
  Catalog catalog_;
  Poller poller_;
  Connections connections_;
  std::uint64_t last_token_ = 0;
  std::map<std::uint64_t, unsigned> readers_;  ///< the number of connections that read a version, by its id
  /// The time from which versions are reclaimed: by then the readers of the last worker have connected again.
  Clock::time_point reclaims_from_;
  /// The first id of a version that was published while this worker ran. The worker knows all readers of this and later versions.
  std::uint64_t first_own_id_ = 0;
  std::set<std::string> unreclaimed_;
  Clock::time_point last_use_ = Clock::now();
  bool is_starved_ = false;  ///< the listener is ignored, because there are no free descriptors
  bool is_stopping_ = false;
  bool is_replaced_ = false;  ///< another keeper has taken the versions over
};

}  // namespace onecopy::store
