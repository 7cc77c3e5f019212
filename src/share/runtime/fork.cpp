// SPDX-License-Identifier: Apache-2.0
// The effects of a fork on a Runtime.
//
// Before: the watch thread stops, every lock is taken, and each owner (this process included) gets a claim page in
// which the child counts as holding everything. After, in the child, which is alone: exact claims replace
// "everything", and a new Runtime takes over. No owner is asked to answer.
#include <array>

#include "device/pinned_ranges.h"
#include "onecopy/core/error.h"
#include "os/log.h"
#include "share/borrower/leases.h"
#include "share/owner/late_releases.h"
#include "share/runtime/runtime.h"

namespace onecopy {
namespace {

void warn(const char* why) noexcept {
  try {
    log_warning("fork: {}; freed memory that the child may use stays reserved", why);
  } catch (const std::exception&) {  // no memory for the words either
  }
}

/// Runs a function. Logs an exception and goes on, since no exception may pass through fork().
template <class F>
void or_log(F&& f) noexcept {
  try {
    f();
  } catch (const std::exception& e) {
    warn(e.what());
  }
}

}  // namespace

const ForkHook Runtime::kForkHook{ForkRank::runtime, {&prepare_fork, &finish_in_parent, &finish_in_child}};

/// Locks making_ until the fork is over, so that no thread forks while another makes the first Runtime.
void Runtime::prepare_fork() {
  if (forked_from_) or_log([] { current(); });
  making_.lock();
  Runtime* process = existing();
  if (!process) return;
  or_log([&] {  // because the child may share what it inherits, whose borrowers must reach us
    if (process->ledger_.live() != 0) process->broker_.listen();
  });
  process->loop_.stop();
  process->lock_all();
  for (const auto& peer : process->peers_.list_locked()) peer->prepare_fork();
  for (InheritedOwner& from : process->inherited_)
    if (!from.is_counted_with_parent)
      from.child = send_child_page(from.owner->ledger_.inheritance().page(), from.socket);
  if (process->ledger_.inheritance().live() == 0) return;
  process->ledger_.inheritance().export_all();
  or_log([&] { process->child_ = process->broker_.prepare_fork(); });
  if (!process->child_) or_log([&] { process->ledger_.inheritance().hold_everything(); });
  or_log([&] { process->child_place_.emplace_back().owner = process; });
}

void Runtime::finish_in_parent() {
  const LockGuard forking(making_, std::adopt_lock);
  Runtime* process = existing();
  if (!process) return;
  process->child_.reset();
  process->child_place_.clear();
  for (InheritedOwner& from : process->inherited_) from.child.reset();
  for (const auto& peer : process->peers_.list_locked()) peer->finish_fork_in_parent();
  process->unlock_all();
  process->loop_.start_again();
}

void Runtime::finish_in_child() {
  Session::handled_pid_ = current_pid();
  if (Runtime* parent = existing()) parent->become_child();
  making_.unlock();
  if (forked_from_) or_log([] { current(); });  // if there are no descriptors now, at the next use
}

/// Turns the copy of the parent's Runtime, in the child, into the group of the inherited blocks.
void Runtime::become_child() {
  HazardGuard::forget_others();
  for (const auto& peer : peers_.list_locked()) peer->finish_fork_in_child();
  unlock_all();
  if (!child_ && ledger_.inheritance().live() != 0)  // even then the table belongs to the parent
    or_end_child([this] {
      if (!ledger_.inheritance().holds_everything())
        throw Error(ErrorCode::out_of_mappings, "the parent had no room to note that it has a child");
      child_ = ForkPage{private_claims(), {}};
    });
  inheritance_ = std::move(inherited_);
  if (child_) {
    if (child_place_.empty()) or_end_child([this] { child_place_.emplace_back().owner = this; });
    child_place_.back().child = std::move(child_);
    inheritance_.splice(inheritance_.end(), child_place_);
  }
  for (InheritedOwner& from : inheritance_) claim_inherited(from);
  LateReleases::end_in_child();
  abandon();
  ledger_.inheritance().leave_limbo_to_parent();
  Session::current_ = nullptr;
  forked_from_ = this;
}

/// Claims inherited blocks in the child's page. If the owner has ended, there is no page, and no process reuses its
/// memory. If the owner does not know the child, the child keeps a copy of its parent's socket to the owner open, so
/// that the owner does not end the parent's claims before the child has ended.
void Runtime::claim_inherited(InheritedOwner& from) noexcept {
  from.is_counted_with_parent = !from.child || !from.child->socket;
  if (!from.child)
    or_end_child([&] { from.child.emplace(ForkPage{private_claims(std::move(from.page)), {}}); });
  from.owner->ledger_.inheritance().become_borrower(claims_in(from.child->memory),
                                                    transits_in(from.child->memory));
  from.page = std::move(from.child->memory);
  if (!from.is_counted_with_parent) {
    from.socket = std::move(from.child->socket);
    greet_owner(from.socket);
  }
  from.child.reset();
}

void Runtime::inherit(Runtime& parent) {
  cleaned_up_ = parent.cleaned_up_;  // before the watch thread exists
  if (!inheritance_.empty() || !parent.peers_.list().empty())
    loop_.start();  // the first step that may fail, because the inheritance cannot be undone
  parent_ = &parent;
  peers_.inherit(parent.peers_);
  inherited_ = std::move(inheritance_);
  for (InheritedOwner& from : inherited_) or_log([&] { watch_inherited(from); });
  if (parent.ledger_.inheritance().page()) peers_.add_inherited(parent.ledger_);
}

/// Watches the connection to an owner, which tells when a segment is gone. The owner's end needs no action, because the
/// memory stays.
void Runtime::watch_inherited(InheritedOwner& from) {
  if (from.is_counted_with_parent) return;
  loop_.add(from.socket.fd(), [this, &from] {
    try {
      while (auto packet = from.socket.try_receive())
        if (wire::type_of(packet->bytes) == wire::Type::retire) {
          const std::uint32_t segment = wire::unpack<wire::Retire>(packet->bytes).segment;
          from.owner->segments_.remove(segment);
          retention_.retire({from.owner->name_, segment});
          PinnedRanges::segment_ended();
        }
    } catch (const Error& e) {
      loop_.remove(from.socket.fd());
      if (e.code() != ErrorCode::peer_died) throw;
    }
  });
}

/// Ends the parent's duties in the child's copy of its Runtime: answering, holding for others and returning memory.
void Runtime::abandon() noexcept {
  loop_.abandon();
  broker_.abandon();
  holds_.clear();
  former_.clear();
  retention_.clear();
  segments_.on_retire = nullptr;
  segments_.abandon();
  pools_.abandon();
  pinning_.abandon();
}

struct Runtime::PartLocks {
  template <auto Part>
  static void lock(Runtime& all) NO_THREAD_SAFETY_ANALYSIS {
    (all.*Part).lock();
  }
  template <auto Part>
  static void unlock(Runtime& all) NO_THREAD_SAFETY_ANALYSIS {
    (all.*Part).unlock();
  }

  static void lock_inherited(Runtime& all) NO_THREAD_SAFETY_ANALYSIS {
    for (InheritedOwner& from : all.inherited_) {
      from.owner->ledger_.lock();
      from.owner->segments_.lock();
    }
  }
  static void unlock_inherited(Runtime& all) NO_THREAD_SAFETY_ANALYSIS {
    for (InheritedOwner& from : all.inherited_) {
      from.owner->segments_.unlock();
      from.owner->ledger_.unlock();
    }
  }
  /// Locks all peers. None can be closed during the call, because the list is locked.
  static void lock_peers(Runtime& all) NO_THREAD_SAFETY_ANALYSIS {
    for (const auto& peer : all.peers_.list_locked())
      if (!peer->is_closed()) peer->lock();
  }
  static void unlock_peers(Runtime& all) NO_THREAD_SAFETY_ANALYSIS {
    for (const auto& peer : all.peers_.list_locked())
      if (!peer->is_closed()) peer->unlock();
  }

  struct Pair {
    void (*lock)(Runtime& all);
    void (*unlock)(Runtime& all);
  };
  template <auto Part>
  static constexpr Pair kOf{&lock<Part>, &unlock<Part>};

  /// Segments are locked after the parts that call them with a lock held, the ledger after pins, and retained segments
  /// after the peers' sockets, from which they arrive.
  static constexpr std::array kOrder{
      kOf<&Runtime::pools_>,
      kOf<&Runtime::peers_>,
      kOf<&Runtime::broker_>,
      kOf<&Runtime::holds_>,
      kOf<&Runtime::former_>,
      kOf<&Runtime::pinning_>,
      kOf<&Runtime::ledger_>,
      Pair{[](Runtime&) { LateReleases::lock(); }, [](Runtime&) { LateReleases::unlock(); }},
      kOf<&Runtime::segments_>,
      Pair{&lock_inherited, &unlock_inherited},
      Pair{&lock_peers, &unlock_peers},
      kOf<&Runtime::retention_>,
  };
};

void Runtime::lock_all() {
  for (const PartLocks::Pair& part : PartLocks::kOrder) part.lock(*this);
}

void Runtime::unlock_all() {
  for (auto part = PartLocks::kOrder.rbegin(); part != PartLocks::kOrder.rend(); ++part)
    part->unlock(*this);
}

}  // namespace onecopy
