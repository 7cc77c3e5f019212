// SPDX-License-Identifier: Apache-2.0
#include "share/runtime/open_queues.h"

#include <algorithm>
#include <chrono>

#include "onecopy/core/error.h"
#include "os/deadline_scope.h"
#include "os/log.h"
#include "share/borrower/broker_client.h"
#include "share/borrower/segment_retention.h"
#include "share/borrower/segment_source.h"
#include "share/broker/broker.h"
#include "share/format/process_name.h"

namespace onecopy {
namespace {

/// Returns whether an item can be put despite the error: processes that have the segment open can take it, and others
/// get the reason.
bool leaves_items_usable(const Error& error) noexcept {
  return is_absent(error) || error.code() == ErrorCode::owner_died || error.code() == ErrorCode::closed ||
         error.code() == ErrorCode::unsupported || error.code() == ErrorCode::timeout;
}

}  // namespace

OpenQueues::OpenQueues(const ProcessId& self, Peers& peers, SegmentSource& source,
                       SegmentRetention& retention, Broker& broker, EventLoop& loop)
    : self_(self),
      peers_(peers),
      source_(source),
      retention_(retention),
      broker_(broker),
      telling_(loop, [this] { return tell(); }) {
  retention_.elsewhere.on_news = [this] { telling_.request(); };
}

bool OpenQueues::open(const ProcessId& creator, std::uint64_t queue, QueueHooks hooks) {
  broker_.listen();
  hooks.creator = creator;
  retention_.queues.add(queue, std::move(hooks));
  if (creator == self_) return true;
  {
    const LockGuard lock(left_mutex_);
    // The creator was not told that the queue was left, and need not be.
    std::erase(left_, LeftQueue{creator, queue});
  }
  try {
    join(creator, queue);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::timeout) return false;
    if (!is_absent(error)) throw;
  }
  return true;
}

void OpenQueues::join(const ProcessId& creator, std::uint64_t queue) {
  const Peers::PeerRef peer = peers_.connect(creator);
  try {
    peer->broker().request(wire::pack(wire::JoinQueue{queue}), wire::Type::joined);
  } catch (const Error& error) {  // a stopped creator reads it later
    if (error.code() != ErrorCode::timeout) throw;
  }
}

void OpenQueues::close(const ProcessId& creator, std::uint64_t queue, bool is_over) noexcept {
  retention_.remove_queue(queue, is_over);
  peers_.note_closed_queue();
  if (creator == self_) return broker_.forget_queue(queue);
  const auto peer = peers_.find_open(creator);
  if (!peer || peer->broker().notify(wire::LeaveQueue{queue}) || peer->broker().is_over()) return;
  try {
    const LockGuard lock(left_mutex_);
    left_.push_back({creator, queue});
    telling_.request();
  } catch (const std::bad_alloc&) {  // the creator learns it when this process ends
  }
}

Retention OpenQueues::retain(const BlockRef& block, const ProcessId& creator, std::uint64_t queue) {
  constexpr std::chrono::seconds kCreatorTakesAtMost{2};
  const SharedBlocks& group = as_shared(*block.group());
  if (group.owner() == creator && creator != self_) {
    const auto peer = peers_.find_open(creator);
    return peer && peer->has_left() ? Retention::not_retained : Retention::not_needed;
  }
  try {
    const DeadlineScope scope(std::chrono::steady_clock::now() +
                              std::min<std::chrono::milliseconds>(reply_timeout(), kCreatorTakesAtMost));
    ask_to_retain(block, creator, queue);
    return Retention::retained;
  } catch (const Error& error) {
    if (!leaves_items_usable(error)) throw;
    report_refusal(error);
    return why_not_retained(error, creator);
  }
}

/// Logs once why the creator cannot retain a segment, since it can then retain none. Does not log that a queue is
/// closed.
void OpenQueues::report_refusal(const Error& error) noexcept {
  const bool is_refusal = error.code() == ErrorCode::unsupported || error.code() == ErrorCode::other_user;
  if (!is_refusal || has_reported_refusal_.exchange(true)) return;
  log_warning(
      "the creator of a queue cannot keep memory that this process puts into it ({}): items that have not "
      "been taken when this process ends are lost",
      error.what());
}

Retention OpenQueues::why_not_retained(const Error& error, const ProcessId& creator) const {
  const bool is_late = error.code() == ErrorCode::timeout;
  if (!is_late && error.code() != ErrorCode::peer_died) return Retention::not_retained;
  if (is_late && is_silent(creator)) return Retention::pending;
  const auto peer = peers_.find_open(creator);
  return peer && !peer->has_left() ? Retention::unreachable : Retention::not_retained;
}

void OpenQueues::ask_to_retain(const BlockRef& block, const ProcessId& creator, std::uint64_t queue) {
  SharedBlocks& group = as_shared(*block.group());
  const ExportedBlock place = group.export_block(block.number(), Access::read_write);
  const std::uint32_t segment = place.info.segment;
  if (creator == self_ && group.owner() == self_) return broker_.spread(segment, queue);
  const SegmentKey key{public_name(group.owner()), segment};
  if (creator != self_) {
    // Noted before the request, because a request that times out may be served later.
    const std::uint64_t number = retention_.elsewhere.add(key, creator);
    const Peers::PeerRef peer = peers_.connect(creator);
    const ProcessOrigin origin = group.origin();
    const Fd table = group.export_table();
    const ExportedMemory memory = source_.pass_on(group, segment);
    const wire::Retain request{key.first, segment, origin, queue, number, wire::Described(memory)};
    peer->broker().request(wire::pack(request), wire::Type::retained, wire::descriptors(memory, table),
                           BrokerClient::WhenSilent::leave);
  } else if (device_type(place.kind) != DeviceType::cpu && !is_weak(place.kind)) {
    // A segment of the host that is open here can be served without being retained.
    if (retention_.segments.add(key, group.origin(), group.export_table(), source_.pass_on(group, segment),
                                queue, RetainRequest{}) == RetainedSegments::Added::no_room)
      throw Error(ErrorCode::unsupported, "this process keeps no more descriptors of device memory");
  }
}

bool OpenQueues::is_silent(const ProcessId& process) const {
  const auto peer = peers_.find_open(process);
  return peer && !peer->broker().is_over() && peer->broker().is_silent();
}

std::shared_ptr<const std::atomic<bool>> OpenQueues::connection_end(const ProcessId& process) const {
  const auto peer = peers_.find_open(process);
  if (!peer || peer->broker().is_over()) return {};
  return {peer, &peer->broker().end()};
}

std::uint64_t OpenQueues::add_transit(Transit transit) {
  const LockGuard lock(transits_mutex_);
  transits_[++last_transit_] = std::move(transit);
  return last_transit_;
}

void OpenQueues::remove_transit(std::uint64_t id) noexcept {
  const LockGuard lock(transits_mutex_);
  transits_.erase(id);
}

void OpenQueues::list_transits(std::vector<TransitInfo>& list) const {
  const LockGuard lock(transits_mutex_);
  for (const auto& [id, transit] : transits_)
    if (TransitInfo info = transit.info(); info.blocks != 0) list.push_back(std::move(info));
}

std::uint64_t OpenQueues::unkept() const {
  std::uint64_t sum = 0;
  const LockGuard lock(transits_mutex_);
  for (const auto& [id, transit] : transits_) sum += transit.unkept();
  return sum;
}

Timer::Pause OpenQueues::tell() {
  bool more = flush_retirements();
  more = flush_releases() || more;
  return Timer::soon_if(flush_left_queues() || more);
}

/// Tells keepers that segments are gone. Returns true while a keeper has to be told again.
bool OpenQueues::flush_retirements() {
  bool again = false;
  for (const auto& [segment, keepers] : retention_.elsewhere.take_retired())
    for (const ProcessId& keeper : keepers) {
      const auto peer = peers_.find_open(keeper);
      if (!peer || peer->broker().notify(wire::Forget{segment.first, segment.second}) || peer->is_gone())
        continue;
      retention_.elsewhere.add(segment, keeper);
      again = (retention_.elsewhere.note_retired(segment) && !peer->broker().is_over()) || again;
    }
  return again;
}

/// Tells creators that queues were left. Returns true while a creator has to be told again, which counts this process
/// among the queue's users until then.
bool OpenQueues::flush_left_queues() noexcept {
  const LockGuard lock(left_mutex_);
  std::erase_if(left_, [this](const LeftQueue& left) {
    const auto peer = peers_.find_open(left.creator);
    return !peer || peer->broker().notify(wire::LeaveQueue{left.queue}) || peer->broker().is_over();
  });
  return !left_.empty();
}

/// Tells keepers what they need not retain. Returns true while a keeper has to be told again. A keeper that hung up
/// retains the segment until this process ends.
bool OpenQueues::flush_releases() {
  bool again = false;
  for (Release& last : retention_.elsewhere.take_releases()) {
    const auto peer = peers_.find_open(last.keeper);
    if (!peer ||
        peer->broker().notify(wire::Release{last.segment.first, last.segment.second, last.number}) ||
        peer->broker().is_over())
      continue;
    retention_.elsewhere.release_later(std::move(last));
    again = true;
  }
  return again;
}

}  // namespace onecopy
