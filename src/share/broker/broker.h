// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "device/order/timeline.h"
#include "onecopy/share/stats.h"
#include "os/event_loop.h"
#include "os/mapping.h"
#include "os/mutex.h"
#include "os/page_users.h"
#include "os/process_watch.h"
#include "os/unix_socket.h"
#include "share/borrower/segment_retention.h"
#include "share/borrower/segment_source.h"
#include "share/broker/connection_stage.h"
#include "share/owner/claim_memory.h"
#include "share/owner/holds.h"
#include "share/owner/ledger.h"

namespace onecopy {

/// The max time that a stranger may be silent before it has proved that it holds a handle. The time counts from the
/// broker's first look at the connection. Tests lower it.
inline std::atomic<int> stranger_silence_ms{5'000};

/// The server inside a process. Lets borrowers of the same user attach once they have proved that they hold one of its
/// handles. Sends descriptors, and ends a borrower's claims when it dies.
///
/// A borrower whose socket closes is not dead yet. A borrower's claims end when the pidfd says that the borrower is
/// gone, or when it no longer maps its claim page because it has exec'ed another program. An exec does not end the
/// claims of a borrower that was sent memory of a device, which may still be at work.
///
/// Thread safety: connections are handled on the watch thread only; comments name the members that any thread may call.
class Broker {
 public:
  /// Returns the answer to `want_info`.
  using Describe = std::function<std::string()>;

  Broker(const ProcessId& self, Ledger& ledger, SegmentSource& source, SegmentRetention& retention,
         Holds& holds, Timeline& timeline, EventLoop& loop, Describe describe);

  /// Starts listening at the first call. Any thread.
  void listen();
  /// Closes the listening socket, and removes its file if it has one. REQUIRES: called at exit, with the event loop
  /// stopped.
  void stop_listening() noexcept { listener_ = UnixSocket(); }

  /// Tells borrowers to unmap a segment of ours that has left the table. Any thread.
  void announce_retired(std::uint32_t segment);
  /// Gives a segment of ours to each process that has `queue` open, or opens it later, to be retained in case this
  /// process dies. Any thread.
  void spread(std::uint32_t segment, std::uint64_t queue);
  void forget_queue(std::uint64_t queue) noexcept;
  std::vector<BorrowerInfo> borrowers() const;
  std::size_t borrower_count() const;
  /// Returns whether a forked child of this process is known to live.
  bool has_children() const;
  /// Returns the blocks of dead borrowers' items that are still in queues.
  std::vector<TransitInfo> undelivered() const;

  // The fork handlers call the following members, with the event loop stopped.
  void lock() ACQUIRE(mutex_) { mutex_.lock(); }
  void unlock() RELEASE(mutex_) { mutex_.unlock(); }
  /// Attaches a claim page for a child that is about to be forked. The child gets the returned ForkPage.
  ForkPage prepare_fork() NO_THREAD_SAFETY_ANALYSIS;
  /// Closes what a forked child inherited.
  void abandon() noexcept;

 private:
  using Clock = Holds::Clock;

  struct Connection {
    UnixSocket socket;
    PeerCredentials credentials;
    ProcessWatch process;
    peer::Gate gate{wire::kProtocol};
    Stage stage;
    Mapping page;
    std::uint64_t page_inode = 0;
    std::optional<Ledger::PageRef> attached;  ///< the attached page; empty for a stranger
    std::vector<std::uint64_t> joined;        ///< the queues that the borrower has open
    std::vector<std::uint32_t> untold;        ///< retired segments of which its socket had no room to tell
    /// The time since which messages of the borrower may have been lost, such as a child's page. Set if this process
    /// hung up on it, or was short of memory or descriptors when the page arrived.
    std::optional<Clock::time_point> suspect_since;
    /// Says that memory of a device was sent on this connection, or on another one to the same process.
    std::atomic<bool> has_device_memory{false};
    bool is_child = false;      ///< forked from this process, or from a child of it
    bool has_detached = false;  ///< the borrower holds nothing and ends the connection
    bool leaving = false;       ///< the page is being detached, so only the watch thread may use `attached`
    const Clock::time_point since = Clock::now();
    std::uint32_t serial = 0;  ///< the number of the question that is being answered

    bool is_stranger() const noexcept { return std::holds_alternative<Stranger>(stage); }
    bool is_open() const noexcept { return std::holds_alternative<Borrower>(stage); }
    bool has_joined(std::uint64_t queue) const noexcept {
      return std::find(joined.begin(), joined.end(), queue) != joined.end();
    }
    /// Returns whether the connection is a borrower's that is not known to be dead.
    bool is_borrower() const noexcept { return is_open() || std::holds_alternative<HungUp>(stage); }
  };
  using Connections = std::list<Connection>;
  using At = Connections::iterator;

  // broker.cpp: connections
  /// Looks at borrowers whose socket has closed but whose process has not ended.
  Timer::Pause poll();
  void accept_some();
  At add_connection(UnixSocket socket);
  void serve(At at);
  void reply(Connection& c, Bytes message, const std::vector<int>& fds = {});
  void send(Connection& c, const Bytes& message, const std::vector<int>& fds);
  void refuse(Connection& c, const Error& why);
  void make_spare_page() noexcept;
  void tell_retired(Connection& c) noexcept REQUIRES(mutex_);
  bool tell_all_retired() noexcept;

  // broker_answers.cpp
  void answer(At at, Packet packet);
  bool answer_anybody(At at, wire::Type type, ByteSpan packet);
  void answer_borrower(Connection& c, wire::Type type, Packet packet);
  void challenge(Connection& c, ByteSpan packet);
  std::size_t challenged() const;
  void welcome(Connection& c, ByteSpan packet);
  void send_info(Connection& c);
  void send_limbo(Connection& c, ByteSpan packet);
  void send_timeline(Connection& c);
  void send_segment(Connection& c, ByteSpan packet);
  void send_segments(Connection& c, ByteSpan packet);
  wire::Described try_describe(const Connection& c, const wire::WantSegment& wanted) noexcept;
  void send_rest(Connection& c, ByteSpan packet);
  void send_foreign(Connection& c, ByteSpan packet);
  void flag_device_memory(const Connection& c, const ExportedMemory& memory) noexcept;
  void adopt_child(Connection& parent, Packet packet);
  void greet_child(At at, ByteSpan packet);
  void retain(Connection& c, Packet packet);
  void forget(ByteSpan packet);
  void release(const Connection& c, ByteSpan packet);

  // broker.cpp: queues
  void join(Connection& c, ByteSpan packet);
  void leave(Connection& c, std::uint64_t queue);
  void ask_to_retain(Connection& c, std::uint32_t segment, std::uint64_t queue) noexcept;
  void report_users(std::uint64_t queue);

  // broker_deaths.cpp
  void on_hangup(At at);
  bool poll_closed();
  Sight sight_of(const Connection& c) const;
  Step look_at(Connection& c, std::optional<bool> may_have_children);
  void bury(At at) noexcept;
  bool may_be_used_unseen(const Connection& c) const;
  void lose(At at);
  std::optional<Clock::time_point> first_suspect_since() const;
  std::optional<bool> look_for_unseen();
  void leave_in_transit(At at) noexcept;
  void drop(At at) noexcept;

  const ProcessId self_;
  Ledger& ledger_;
  SegmentSource& source_;
  SegmentRetention& retention_;
  Holds& holds_;
  Timeline& timeline_;
  EventLoop& loop_;
  const Describe describe_;
  /// Guards the list of connections and `untold`. Each connection is changed by the watch thread only; other threads
  /// read socket, credentials, stage, attached, joined and leaving under this lock.
  mutable Mutex mutex_;
  std::atomic<bool> listening_{false};
  UnixSocket listener_;
  /// A page for the next borrower; used by the watch thread once the broker listens.
  ClaimFile spare_page_;
  /// The listener is not watched, because there are no descriptors; watch thread.
  bool starved_ = false;
  bool starving_ = false;       ///< the shortage has been logged
  UntrackedMappers untracked_;  ///< watch thread
  Connections connections_;
  std::map<std::uint64_t, std::set<std::uint32_t>> spread_
      GUARDED_BY(mutex_);  ///< the segments of ours in each queue
  Timer polling_{loop_, [this] { return poll(); }};
};

}  // namespace onecopy
