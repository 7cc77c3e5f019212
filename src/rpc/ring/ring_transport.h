// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <memory>

#include "os/mutex.h"
#include "os/process_watch.h"
#include "rpc/member.h"
#include "rpc/ring/lane.h"
#include "rpc/transport.h"

namespace onecopy {
class Session;
}

namespace onecopy::rpc {

/// Reaches members of this host through rings in shared memory, one each way.
///
/// The first of two members puts a greeting through the other's door, a queue that its address names: which ring to send
/// through. The other answers with a greeting of its own. A worker reads the door, since the sender of a greeting may be
/// stopped. A pidfd tells of a member's exit.
/// Thread safety: as Transport.
class RingTransport final : public Transport {
 public:
  /// Throws out_of_memory, out_of_descriptors, out_of_mappings.
  RingTransport(TransportHost& host, Session& session) : host_(host), session_(session) {}

  std::string_view name() const noexcept override { return "ring"; }
  bool shares_memory() const noexcept override { return true; }
  bool reaches(const Address& address) const override { return address.host == this_host(); }
  void complete(Address& own) override { own.door = door().handle(); }
  void watch(Member& member) override;
  void open(Member& member, Deadline deadline) override;
  void say_farewell(Member& member, Deadline deadline) override;
  bool has_exited(Member& member) const override;
  void close(Member& member) noexcept override;

  /// Returns whether the door contains messages that no thread reads yet.
  bool has_newcomers() const { return !is_door_read_.load(std::memory_order_relaxed) && door_->is_ready(); }
  /// Returns true to one caller if there are newcomers; a worker must then call serve_newcomers().
  bool claim_newcomers() { return door_->is_ready() && !is_door_read_.exchange(true); }
  /// Answers greetings, and waits for the processes that sent them.
  void serve_newcomers() noexcept;
  /// Takes no further greetings, and tells the processes whose greetings were not read yet that this process leaves.
  /// Waits for other processes until about the deadline. REQUIRES: TransportHost::is_stopped().
  void close_door(Deadline deadline) noexcept;
  /// Gives the door back, unless a thread reads it. REQUIRES: close_door() was called, and no thread looks for newcomers.
  void release_door() noexcept;

 private:
  struct State : TransportState {
    ProcessWatch process;
    bool is_greeted = false;
    std::shared_ptr<const DoorbellMemory> bell;
  };

  static State& state_of(Member& member) { return static_cast<State&>(*member.state); }
  Inbound& door() const;
  void greet(Member& to) REQUIRES(to.opening);
  void open_lane_of(ByteSpan greeting);
  bool try_read_door(bool is_first) noexcept;
  void take_from_door(const Message& message);
  void refuse_newcomer(const Message& message) noexcept;
  void turn_away(const Address& from, NoteKind why) noexcept;
  /// Returns the member that greets. Throws invalid_argument if another process has its number, after the greeter was told.
  Member& enter_greeter(const Address& from);

  TransportHost& host_;
  Session& session_;
  std::unique_ptr<Inbound> door_ = std::make_unique<Inbound>();  ///< null after release_door()
  Mutex door_mutex_;                                             ///< held by the thread that reads the door
  std::atomic<bool> is_door_read_{
      false};  ///< a worker reads the door, or is about to, or the door is closed
};

}  // namespace onecopy::rpc
