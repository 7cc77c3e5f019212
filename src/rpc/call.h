// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "channel/ring/ring_wait.h"
#include "onecopy/channel/queue.h"
#include "rpc/message.h"

namespace onecopy::rpc {

/// The way in which a call ended.
enum class End : std::uint8_t {
  pending,
  answered,  ///< the answer has arrived: a value or a failure
  late,      ///< the deadline has passed
  member_ended,
  stopped,  ///< this process has left the group
  cancelled,
};

/// A call under way, and its outcome. A call completes once: answer, deadline, death and shutdown race for claim(), and
/// the winner alone writes the outcome.
///
/// Thread safety: all members may be called concurrently, but the outcome is read after is_done() only.
class Call {
 public:
  Call(std::uint32_t member, Deadline deadline, std::uint32_t session = 0)
      : member_(member), session_(session), deadline_(deadline) {}
  ~Call() {
    if (void* const left = owner.exchange(nullptr)) drop_owner(left);
    if (void* const left = arguments.exchange(nullptr)) drop_owner(left);
  }

  std::uint32_t member() const noexcept { return member_; }
  /// Returns the session with the member in which the call was sent.
  std::uint32_t session() const noexcept { return session_; }
  Deadline deadline() const noexcept { return deadline_; }
  bool is_done() const noexcept { return (word_.load(std::memory_order_acquire) & kDone) != 0; }

  // The following fields are set before the call is sent.
  std::uint64_t number = 0;  ///< the number by which the answer names the call
  /// An opaque object of the caller's language, such as the Python Future; released with the call.
  std::atomic<void*> owner{nullptr};
  void (*drop_owner)(void*) noexcept = nullptr;
  /// The arguments of a call that this process makes to itself without writing them; of the same language as the owner.
  std::atomic<void*> arguments{nullptr};
  bool stays_here = false;           ///< the call had `arguments`
  std::int64_t spin_ns = INT64_MAX;  ///< the max time that a waiting thread spins
  /// The mean time of calls of the same function. The first thread that sees the end takes the pointer and updates the
  /// mean.
  std::atomic<std::atomic<std::uint32_t>*> mean_ns{nullptr};

  /// The moment at which a thread began to wait, by the steady clock; 0: no thread has waited for long.
  std::atomic<std::int64_t> waited_since_ns{0};

  // The outcome.
  End end = End::pending;
  Status status = Status::value;
  Message answer;  ///< the body; take_context() takes the context off

 private:
  friend class CompletionWaiter;

  static constexpr std::uint32_t kDone = 1;
  static constexpr std::uint32_t kWaited = 2;   ///< a thread waits, and handles the outcome
  static constexpr std::uint32_t kAsleep = 4;   ///< a thread sleeps on the word
  static constexpr std::uint32_t kLead = 8;     ///< the sleeping thread has to become the leader
  static constexpr std::uint32_t kIsWork = 16;  ///< a worker handles the outcome if no thread waits
  static constexpr std::uint32_t kClaimed = 32;

  /// Returns true to the first caller, which may write the outcome, and false to all others.
  bool claim() noexcept { return (word_.fetch_or(kClaimed) & kClaimed) == 0; }

  const std::uint32_t member_, session_;
  const Deadline deadline_;
  std::atomic<std::uint32_t> word_{0};  ///< the bits above; a futex of this process
};

/// A call is shared by the table of calls and the threads that wait for it.
using CallRef = std::shared_ptr<Call>;

}  // namespace onecopy::rpc
