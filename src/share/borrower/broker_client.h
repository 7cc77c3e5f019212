// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "onecopy/core/error.h"
#include "onecopy/share/handle_fields.h"
#include "os/event_loop.h"
#include "os/mutex.h"
#include "os/unix_socket.h"
#include "share/format/wire.h"

namespace onecopy {

/// Returns whether the error means that the called process is gone: no socket has its name, or only one of another
/// user, which took the name after the process had ended.
inline bool is_absent(const Error& error) noexcept {
  return error.code() == ErrorCode::peer_died || error.code() == ErrorCode::other_user;
}

/// Connects to the broker of this public_name(). Does not wait for a socket of another user, if the kernel tells its
/// user. Throws peer_died, other_user, timeout.
UnixSocket dial(const std::string& name, std::chrono::milliseconds patience);

/// The beginning of a connection to another process, which has been greeted and wakes up to answer.
struct Dial {
  /// Connects and sends the greeting. Throws peer_died, other_user, timeout.
  Dial(const ProcessId& called, std::chrono::milliseconds patience);

  ProcessId to;
  std::string name;  ///< public_name() of the called process
  UnixSocket socket;
  PeerCredentials credentials;
  peer::Greeting greeting{wire::kProtocol};
};

/// A call that is made ahead: while the object lives, this thread's first connection to that process continues the
/// call. So the called process wakes up while this one makes its own tables. If the call fails, nothing happens, and
/// the connection that follows reports the reason.
class EarlyDial {
 public:
  explicit EarlyDial(const ProcessId& to) noexcept;
  ~EarlyDial();
  EarlyDial& operator=(EarlyDial&&) = delete;

  /// Returns whether this thread has made a call that no connection has continued yet.
  static bool is_waiting() noexcept;
  /// Returns the call of this thread, or nothing if there is none or it went to another process.
  static std::optional<Dial> take(const ProcessId& to) noexcept;

 private:
  std::optional<Dial> call_;
};

/// A connection to another process's broker: questions with their answers, one at a time, and notices that need no
/// answer. A thread that waits for an answer also handles the packets that the broker sends unasked; otherwise the watch
/// thread does.
///
/// A connection is over when the broker closes it or the broker's process is gone, and does not begin again.
///
/// Thread safety: all members may be called concurrently, except during the introduction and around a fork. on_unsolicited
/// runs with the lock for reading held. on_unsolicited must not ask, and takes only locks that no asking thread holds.
class BrokerClient {
 public:
  /// Constructs a connection, which is over from the start if there is no socket. `pid` appears in error messages.
  BrokerClient(UnixSocket socket, int pid);

  /// Handles a packet that is not an answer. REQUIRES: set before the first packet is read.
  std::function<void(Packet)> on_unsolicited;
  /// Runs on the watch thread when the connection has ended.
  std::function<void()> on_end;

  // The introduction. REQUIRES: no other thread knows this object yet. All throw peer_died, timeout.
  void send(const Bytes& message);
  /// Asks a question before its turn, which saves a round trip; receive_answer() returns the answer.
  void request_ahead(Bytes question) NO_THREAD_SAFETY_ANALYSIS;
  Packet receive();
  Packet receive_answer();

  /// Lets the watch thread handle packets that are not answers.
  void watch(EventLoop& loop);
  enum class WhenSilent : std::uint8_t { wait, leave };
  /// Returns the answer, which is of type `answer`. Throws the broker's refusal, peer_died, timeout. If the caller
  /// may leave a silent broker, throws timeout at once.
  Packet request(Bytes question, wire::Type answer, std::span<const int> fds = {},
                 WhenSilent when_silent = WhenSilent::wait);
  /// Asks several questions, `ahead` of them before the first is answered. So few must be ahead that their answers fit
  /// into the socket unread. `take` gets each answer or refusal in order, while the broker works on the next; it must
  /// neither ask nor throw. Throws peer_died and timeout, after which the remaining answers are dropped.
  void request_all(std::vector<Bytes> questions, std::size_t ahead,
                   const std::function<void(std::size_t, Packet)>& take);
  /// Returns whether the broker let a question wait too long and has sent nothing since.
  bool is_silent() const noexcept { return is_silent_; }
  /// Sends a notice that needs no answer, without waiting. Returns false if the broker does not read or is gone.
  template <class Body>
  bool notify(const Body& body) noexcept {
    try {
      return try_send(wire::pack(body));
    } catch (const std::exception&) {
      return false;
    }
  }
  bool is_over() const noexcept { return is_over_; }
  /// Returns the flag of is_over(), for callers that look often.
  const std::atomic<bool>& end() const noexcept { return is_over_; }

  /// Ends the connection to a process that is gone. Handles the last packets of that process, which may be needed now.
  /// Returns false while another thread asks a question, which ends soon. Watch thread.
  bool try_end();
  /// Returns whether close() was called. Watch thread.
  bool is_closed() const noexcept NO_THREAD_SAFETY_ANALYSIS { return !socket_; }
  /// Closes the socket. REQUIRES: the connection is over.
  void close() noexcept;

  // The fork handlers call the following members.
  void lock() ACQUIRE(mutex_, telling_mutex_);
  void unlock() RELEASE(mutex_, telling_mutex_);
  /// Returns the socket. REQUIRES: locked.
  UnixSocket& socket() noexcept { return socket_; }
  /// Continues in a forked child over a connection of its own. If `socket` is empty, sends nothing more and keeps the
  /// parent's socket open, because the broker counts the child with its parent as long as that socket is open.
  void go_on_in_child(UnixSocket socket) noexcept;

 private:
  class RightToAsk;

  template <class F>
  auto describe_timeout(F&& f);
  bool try_send(const Bytes& message);
  void number(Bytes& question) REQUIRES(mutex_);
  void number_while_open(Bytes& question);
  void send_question(const Bytes& question, std::span<const int> fds);
  [[noreturn]] void request_and_leave(Bytes question, std::span<const int> fds) REQUIRES(mutex_);
  Packet receive_soon();
  std::optional<Packet> try_receive();
  [[noreturn]] void fall_silent(std::chrono::milliseconds patience);
  Packet receive_answer(std::uint32_t serial);
  void rearm();
  void on_readable();
  void receive_unsolicited() REQUIRES(mutex_);

  const int pid_;
  Mutex mutex_;          ///< held while the socket is read; never while the broker is waited for
  Mutex telling_mutex_;  ///< after mutex_; held while the socket is used without mutex_, or closed
  UnixSocket socket_;
  std::atomic<bool> is_over_;
  std::atomic<bool> is_silent_{false};
  std::atomic<int> asking_{0};     ///< 1 while a thread asks, which then handles other packets as well
  std::uint32_t last_serial_ = 0;  ///< the number of the last question, whose answer is awaited
  EventLoop* loop_ = nullptr;
};

/// Tells a process that the handle with this hold has arrived, without a connection and a handshake. The number of
/// the hold is proof enough: only a process with the handle knows it.
void acknowledge_to(const ProcessId& maker, std::uint64_t hold) noexcept;

}  // namespace onecopy
