// SPDX-License-Identifier: Apache-2.0
#include "share/borrower/retained_segments.h"

#include <algorithm>

#include "os/log.h"
#include "os/one_descriptor.h"
#include "share/owner/claim_memory.h"
#include "share/owner/holds.h"

namespace onecopy {

void LocalQueues::add(std::uint64_t queue, QueueHooks hooks) {
  const LockGuard lock(mutex_);
  queues_[queue] = std::move(hooks);
}

void LocalQueues::remove(std::uint64_t queue, bool is_over) noexcept {
  const LockGuard lock(mutex_);
  queues_.erase(queue);
  if (is_over) note_over(queue);
}

/// Notes that a queue is over. If there is no memory for the note, items of dead processes are kept until a timeout.
void LocalQueues::note_over(std::uint64_t queue) noexcept {
  const auto now = std::chrono::steady_clock::now();
  std::erase_if(over_, [&](const auto& one) { return now - one.second > 2 * Holds::kLifetime; });
  try {
    over_[queue] = now;
  } catch (const std::bad_alloc&) {
    return;
  }
}

bool LocalQueues::has_any_of(const ProcessId& creator) const noexcept {
  const LockGuard lock(mutex_);
  return std::ranges::any_of(queues_, [&](const auto& queue) { return queue.second.creator == creator; });
}

bool LocalQueues::contains(std::uint64_t queue) const {
  const LockGuard lock(mutex_);
  return queues_.contains(queue);
}

void LocalQueues::report_users(std::uint64_t queue, std::size_t users) const noexcept {
  const LockGuard lock(mutex_);
  const auto at = queues_.find(queue);
  if (at != queues_.end() && at->second.users) at->second.users(users);
}

std::optional<QueueProgress> LocalQueues::progress(std::uint64_t queue) const {
  const LockGuard lock(mutex_);
  if (over_.contains(queue)) return QueueProgress{0, UINT64_MAX};
  const auto at = queues_.find(queue);
  if (at == queues_.end()) return {};
  return at->second.progress();
}

namespace {

constexpr int kLooks = 3;

bool is_of_host(const ExportedMemory& memory) noexcept {
  return device_type(memory.kind) == DeviceType::cpu;
}

/// Opens a descriptor of the owner's process. If the system refuses one, an owner of memory of the host is watched by
/// the mark on its table alone.
Fd open_pidfd_if_possible(const ProcessOrigin& origin, bool is_device_memory) {
  try {
    return open_pidfd(origin);
  } catch (const Error& e) {
    if (is_device_memory || e.code() != ErrorCode::unsupported) throw;
    return {};
  }
}

}  // namespace

bool RetainedSegments::Entry::is_frozen() const noexcept {
  return is_of_host(memory) ? owner->has_program_ended() : owner->has_process_ended();
}

RetainedSegments::Added RetainedSegments::add(const SegmentKey& key, const ProcessOrigin& origin, Fd table,
                                              ExportedMemory memory, std::uint64_t queue,
                                              std::optional<RetainRequest> request) {
  const LockGuard lock(mutex_);
  if (!queues_.contains(queue)) return Added::queue_is_closed;
  auto at = entries_.find(key);
  if (at == entries_.end() && !has_room_for(memory)) {
    report_refusal(origin);
    return Added::no_room;
  }
  if (at == entries_.end())  // adds the entry entirely or not at all, also on an error
    at = entries_.emplace(key, make_entry(key, origin, std::move(table), std::move(memory))).first;
  Use& use = at->second.queues[queue];
  use.end.reset();
  if (request) use.requests[request->putter] = request->number;
  return Added::yes;
}

void RetainedSegments::report_refusal(const ProcessOrigin& origin) {
  if (std::exchange(has_refused_, true)) return;
  log_warning(
      "memory of process {} that is in queues open here lies in many pieces on a device; {} descriptors of "
      "such are kept for the day that their owners die, and items in the other pieces that are not taken "
      "by then are lost",
      origin.pid, kMaxOfDevices);
}

RetainedSegments::Entry RetainedSegments::make_entry(const SegmentKey& key, const ProcessOrigin& origin,
                                                     Fd table, ExportedMemory memory) {
  const Entry* other = another_of(key.first);
  const bool is_device_memory = !is_of_host(memory);
  const bool is_watched = other && (other->owner->process || !is_device_memory);
  std::shared_ptr<Owner> owner =
      is_watched ? other->owner : watched(origin, std::move(table), is_device_memory);
  if (memory.kind == SegmentKind::memfd)  // the same as that of the segment, if it is open here
    for (Fd& fd : memory.fds) fd = one_descriptor_of(std::move(fd));
  Entry entry{std::move(owner), std::move(memory), {}};
  if (entry.memory.kind == SegmentKind::named_file) {
    Backend& host = backend(DeviceType::cpu);
    entry.user = host.open(0, host.duplicate(entry.memory, Access::read_write), Access::read_write);
  }
  return entry;
}

const RetainedSegments::Entry* RetainedSegments::another_of(const std::string& owner) const {
  const auto at = entries_.lower_bound({owner, 0});
  return at != entries_.end() && at->first.first == owner ? &at->second : nullptr;
}

std::shared_ptr<RetainedSegments::Owner> RetainedSegments::watched(const ProcessOrigin& origin, Fd table,
                                                                   bool is_device_memory) {
  const std::uint64_t inode = inode_of(table);
  ProcessWatch process(origin.pid, open_pidfd_if_possible(origin, is_device_memory));
  std::shared_ptr<Owner> owner(new Owner{std::move(process), one_descriptor_of(std::move(table)), inode});
  if (loop_ && owner->process)
    owner->process.start(*loop_, [this] {
      const LockGuard lock(mutex_);
      poll_soon();
    });
  return owner;
}

bool RetainedSegments::has_room_for(const ExportedMemory& memory) const noexcept {
  if (is_of_host(memory)) return true;
  std::size_t kept = memory.fds.size();
  for (const auto& [key, entry] : entries_)
    if (!is_of_host(entry.memory)) kept += entry.memory.fds.size();
  return kept <= kMaxOfDevices;
}

std::optional<HeldSegment> RetainedSegments::open(const SegmentKey& key, Access access) const {
  const LockGuard lock(mutex_);
  const auto at = entries_.find(key);
  if (at == entries_.end()) return {};
  const Entry& entry = at->second;
  return HeldSegment{entry.owner->table.duplicate(),
                     backend(device_type(entry.memory.kind)).duplicate(entry.memory, access),
                     entry.is_frozen()};
}

void RetainedSegments::release(const SegmentKey& key, const RetainRequest& last) noexcept {
  const LockGuard lock(mutex_);
  const auto at = entries_.find(key);
  if (at == entries_.end()) return;
  for (auto& [queue, use] : at->second.queues) {
    const auto request = use.requests.find(last.putter);
    if (request != use.requests.end() && request->second <= last.number) use.requests.erase(request);
  }
  poll_soon();
}

void RetainedSegments::release_all_by(Putter putter, std::uint64_t queue) noexcept {
  const LockGuard lock(mutex_);
  for (auto& [key, entry] : entries_)
    if (const auto use = entry.queues.find(queue); use != entry.queues.end())
      use->second.requests.erase(putter);
  poll_soon();
}

void RetainedSegments::release_all_by(Putter putter) noexcept {
  const LockGuard lock(mutex_);
  for (auto& [key, entry] : entries_)
    for (auto& [queue, use] : entry.queues) use.requests.erase(putter);
  poll_soon();
}

void RetainedSegments::release_all_of(const std::string& owner) {
  const LockGuard lock(mutex_);
  for (auto at = entries_.lower_bound({owner, 0}); at != entries_.end() && at->first.first == owner; ++at)
    for (auto& [queue, use] : at->second.queues) use.requests.erase(nullptr);
  poll_soon();
}

void RetainedSegments::forget(const SegmentKey& key) noexcept {
  const LockGuard lock(mutex_);
  entries_.erase(key);
}

void RetainedSegments::forget_queue(std::uint64_t queue) noexcept {
  const LockGuard lock(mutex_);
  for (auto at = entries_.begin(); at != entries_.end();) {
    at->second.queues.erase(queue);
    at = at->second.queues.empty() ? entries_.erase(at) : std::next(at);
  }
}

void RetainedSegments::poll_soon() noexcept {
  looks_ = kLooks;
  if (due_) due_();
}

bool RetainedSegments::is_requested(const Entry& entry) noexcept {
  return std::all_of(entry.queues.begin(), entry.queues.end(),
                     [](const auto& use) { return !use.second.requests.empty(); });
}

/// Drops queues of an entry that need the segment no longer. A dead owner's segment is needed while it is requested,
/// and then until the queue has passed the last item that was put before the requests ended. Returns true while a queue
/// has not passed that item.
bool RetainedSegments::drop_passed(Entry& entry) {
  return queues_.drop_passed(entry.queues, /*closed_is_passed=*/true,
                             [](Use& use) { return use.requests.empty() ? &use.end : nullptr; });
}

bool RetainedSegments::sweep() noexcept {
  const LockGuard lock(mutex_);
  const bool looks_again = looks_ > 0 && --looks_ > 0;
  bool waiting = false;
  for (auto at = entries_.begin(); at != entries_.end();) {
    Entry& entry = at->second;
    if (entry.is_frozen()) waiting = drop_passed(entry) || waiting;
    else waiting = waiting || (looks_again && !is_requested(entry));
    at = entry.queues.empty() ? entries_.erase(at) : std::next(at);
  }
  return waiting;
}

std::size_t RetainedSegments::size() const {
  const LockGuard lock(mutex_);
  return entries_.size();
}

void RetainedSegments::clear() noexcept { entries_.clear(); }

}  // namespace onecopy
