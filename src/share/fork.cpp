// SPDX-License-Identifier: Apache-2.0
// What a fork does to a Process.
//
// Before: the watch thread stops, every lock is taken, and each owner (ourselves included) gets a
// claim page in which the child counts as holding everything. After, in the child, which is alone:
// exact claims replace "everything", and a new Process takes over. No owner is asked to answer.
#include <fmt/format.h>
#include <pthread.h>

#include <cerrno>

#include "onecopy/core/error.h"
#include "onecopy/os/log.h"
#include "share/process.h"

namespace onecopy {
namespace {

/// No exception may pass through fork().
template <class F>
void or_log(F&& f) noexcept {
  try {
    f();
  } catch (const std::exception& e) {
    log_warning(fmt::format("fork: {}; freed memory that the child may use stays reserved", e.what()));
  }
}

}  // namespace

void Process::handle_forks() {
  const int error = pthread_atfork(&prepare_fork, &finish_in_parent, &finish_in_child);
  if (error != 0) throw_errno("pthread_atfork", error);
  handled_pid_ = current_pid();
}

void Process::prepare_fork() {
  if (forked_from_) or_log([] { current(); });
  Process* process = existing();
  if (!process) return;
  or_log([&] {  // the child may share on what it inherits: whoever gets that must reach us
    if (process->ledger_.live() != 0) process->broker_.listen();
  });
  process->watch_.stop();
  process->lock_all();
  for (const auto& peer : process->importer_.peers_locked()) {
    if (peer->is_closed()) continue;  // for good: the importer is locked
    peer->lock_for_fork();
    peer->prepare_fork();
  }
  process->deposits_.lock();  // after the peers' sockets: what arrives there is deposited
  for (Inherited& from : process->inherited_)
    from.child = send_child_page(from.owner->ledger_.inherited_page(), from.socket);
  if (process->ledger_.live_locked() == 0) return;
  process->ledger_.export_all();
  or_log([&] { process->child_ = process->broker_.prepare_fork(); });
  if (!process->child_) or_log([&] { process->ledger_.hold_everything(); });
}

void Process::finish_in_parent() {
  Process* process = existing();
  if (!process) return;
  process->child_.reset();
  for (Inherited& from : process->inherited_) from.child.reset();
  for (const auto& peer : process->importer_.peers_locked()) {
    if (peer->is_closed()) continue;
    peer->finish_fork_in_parent();
    peer->unlock_after_fork();
  }
  process->unlock_all();
  process->watch_.start_again();
}

void Process::finish_in_child() {
  handled_pid_ = current_pid();
  Process* parent = existing();
  if (!parent) return;
  for (const auto& peer : parent->importer_.peers_locked()) {
    if (peer->is_closed()) continue;
    peer->finish_fork_in_child();
    peer->unlock_after_fork();
  }
  parent->unlock_all();
  if (!parent->child_ && parent->ledger_.live_locked() != 0)  // the table is the parent's all the same
    or_log([&] { parent->child_ = ForkPage{private_claims(), {}}; });
  inheritance_ = std::move(parent->inherited_);
  if (parent->child_) inheritance_.push_back({parent, {}, {}, std::move(parent->child_)});
  for (Inherited& from : inheritance_) claim_inherited(from);
  parent->abandon();
  current_ = nullptr;
  forked_from_ = parent;
  or_log([] { current(); });  // without descriptors: at the next use
}

/// Nothing is there to claim when that owner is gone: its memory is frozen.
void Process::claim_inherited(Inherited& from) noexcept {
  if (!from.child) return;
  from.owner->ledger_.become_borrower(claims_in(from.child->memory), transits_in(from.child->memory));
  from.page = std::move(from.child->memory);
  from.socket = std::move(from.child->socket);
  from.child.reset();
  greet_owner(from.socket);
}

void Process::inherit(Process& parent) {
  parent_ = &parent;
  importer_.inherit(parent.importer_);
  inherited_ = std::move(inheritance_);
  for (Inherited& from : inherited_) watch_inherited(from);
  if (parent.ledger_.is_inherited()) importer_.add_inherited(parent.ledger_);
}

/// The owner tells when a segment is gone; its end is no news, the memory stays.
void Process::watch_inherited(Inherited& from) {
  if (!from.socket) return;
  watch_.add(from.socket.fd(), [this, &from] {
    try {
      while (auto packet = from.socket.try_receive())
        if (wire::type_of(packet->bytes) == wire::Type::retire) {
          const std::uint32_t segment = wire::body_of<wire::Retire>(packet->bytes).segment;
          from.owner->segments_.remove(segment);
          if (deposits_.retire({from.owner->name_, segment})) watch_.request_tick();
        }
    } catch (const Error& e) {
      watch_.remove(from.socket.fd());
      if (e.code() != ErrorCode::peer_died) throw;
    }
  });
}

/// In the child's copy of its parent: what only the parent may do stops here, which is answering,
/// holding for others and returning memory.
void Process::abandon() noexcept {
  watch_.abandon();
  broker_.abandon();
  holds_.clear();
  deposits_.clear();
  segments_.on_retire = nullptr;
  segments_.abandon();
  for (auto& [key, pool] : pools_) pool->abandon();
}

void Process::lock_all() {
  making_.lock();
  pools_mutex_.lock();
  for (auto& [key, pool] : pools_) pool->prepare_fork();
  importer_.lock();
  broker_.lock();
  holds_.lock();
  ledger_.lock();
  segments_.prepare_fork();  // last: everybody asks it with a lock of their own held
}

void Process::unlock_all() {
  segments_.finish_fork();
  ledger_.unlock();
  deposits_.unlock();
  holds_.unlock();
  broker_.unlock();
  importer_.unlock();
  for (auto& [key, pool] : pools_) pool->finish_fork();
  pools_mutex_.unlock();
  making_.unlock();
}

}  // namespace onecopy
