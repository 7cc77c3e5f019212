// SPDX-License-Identifier: Apache-2.0
#include "share/borrower/retained_segments.h"

#include <algorithm>
#include <utility>

#include "os/log.h"
#include "os/page_users.h"
#include "share/owner/claim_memory.h"

namespace onecopy {
namespace {

bool is_of_host(const ExportedMemory& memory) noexcept {
  return device_type(memory.kind) == DeviceType::cpu;
}

}  // namespace

bool RetainedSegments::add(const SegmentKey& key, const ProcessOrigin& origin, Fd table,
                           ExportedMemory memory, std::uint64_t queue,
                           std::optional<RetainRequest> request) {
  const LockGuard lock(mutex_);
  if (!queues_.contains(queue)) return false;
  auto at = entries_.find(key);
  if (at == entries_.end() && !has_room_for(memory)) {
    report_refusal(origin);
    return false;
  }
  if (at == entries_.end())  // whole or not at all: the next attempt must not find half of one
    at = entries_.emplace(key, make_entry(key, origin, std::move(table), std::move(memory))).first;
  Use& use = at->second.queues[queue];
  use.end.reset();
  if (request) use.requests[request->putter] = request->number;
  return true;
}

void RetainedSegments::report_refusal(const ProcessOrigin& origin) {
  if (std::exchange(has_refused_, true)) return;
  log_warning(
      "memory of process {} that is in queues open here lies in many pieces on a device; {} "
      "descriptors of such are "
      "kept for the day that their owners die, and items in the other pieces that are not "
      "taken by then are lost",
      origin.pid, kMostOfDevices);
}

RetainedSegments::Entry RetainedSegments::make_entry(const SegmentKey& key, const ProcessOrigin& origin,
                                                     Fd table, ExportedMemory memory) {
  const Entry* other = another_of(key.first);
  std::shared_ptr<Owner> owner = other ? other->owner : watched(origin, table);
  auto shared_table = other ? other->table : std::make_shared<const Fd>(std::move(table));
  Entry entry{std::move(owner), std::move(shared_table), std::move(memory), {}};
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

std::shared_ptr<RetainedSegments::Owner> RetainedSegments::watched(const ProcessOrigin& origin,
                                                                   const Fd& table) {
  std::shared_ptr<Owner> owner(new Owner{open_pidfd(origin), origin.pid, inode_of(table), nullptr});
  if (!loop_ || !owner->pidfd) return owner;
  loop_->add(owner->pidfd.get(), [this, watched = std::weak_ptr(owner)] {
    const LockGuard lock(mutex_);
    const auto ended = watched.lock();
    if (!ended || !ended->is_gone()) return;
    loop_->remove(ended->pidfd.get());
    look_soon();
  });
  owner->loop = loop_;
  return owner;
}

/// An owner that cannot be looked at counts as alive.
bool RetainedSegments::Owner::look() noexcept {
  try {
    has_left = has_left || !may_own_table(pid, table_inode);
  } catch (const std::exception&) {  // no memory to read with
  }
  return has_left;
}

bool RetainedSegments::has_room_for(const ExportedMemory& memory) const noexcept {
  if (is_of_host(memory)) return true;
  std::size_t kept = memory.fds.size();
  for (const auto& [key, entry] : entries_)
    if (!is_of_host(entry.memory)) kept += entry.memory.fds.size();
  return kept <= kMostOfDevices;
}

std::optional<HeldSegment> RetainedSegments::open(const SegmentKey& key, Access access) const {
  const LockGuard lock(mutex_);
  const auto at = entries_.find(key);
  if (at == entries_.end()) return {};
  const Entry& entry = at->second;
  return HeldSegment{entry.table->duplicate(),
                     backend(device_type(entry.memory.kind)).duplicate(entry.memory, access),
                     entry.owner->is_gone() || (is_of_host(entry.memory) && entry.owner->look())};
}

void RetainedSegments::release(const SegmentKey& key, const RetainRequest& last) noexcept {
  const LockGuard lock(mutex_);
  const auto at = entries_.find(key);
  if (at == entries_.end()) return;
  for (auto& [queue, use] : at->second.queues) {
    const auto request = use.requests.find(last.putter);
    if (request != use.requests.end() && request->second <= last.number) use.requests.erase(request);
  }
  look_soon();
}

void RetainedSegments::release_all_by(Putter putter, std::uint64_t queue) noexcept {
  const LockGuard lock(mutex_);
  for (auto& [key, entry] : entries_)
    if (const auto use = entry.queues.find(queue); use != entry.queues.end())
      use->second.requests.erase(putter);
  look_soon();
}

void RetainedSegments::release_all_by(Putter putter) noexcept {
  const LockGuard lock(mutex_);
  for (auto& [key, entry] : entries_)
    for (auto& [queue, use] : entry.queues) use.requests.erase(putter);
  look_soon();
}

void RetainedSegments::release_all_of(const std::string& owner) noexcept {
  const LockGuard lock(mutex_);
  for (auto at = entries_.lower_bound({owner, 0}); at != entries_.end() && at->first.first == owner; ++at)
    for (auto& [queue, use] : at->second.queues) use.requests.erase(nullptr);
  look_soon();
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

/// At all live owners, too.
void RetainedSegments::look_soon() noexcept {
  next_look_ = {};
  if (due_) due_();
}

bool RetainedSegments::is_requested(const Entry& entry) noexcept {
  return std::all_of(entry.queues.begin(), entry.queues.end(),
                     [](const auto& use) { return !use.second.requests.empty(); });
}

/// A dead owner's segment stays while it is requested. Then it stays until every queue it was retained for has passed
/// the last item put before the requests ended. A live owner's stays: it will not be handed over again. Returns true
/// while a queue has not come so far.
bool RetainedSegments::drop_passed(Entry& entry) {
  return queues_.drop_passed(entry.queues, /*closed_is_passed=*/true,
                             [](Use& use) { return use.requests.empty() ? &use.end : nullptr; });
}

/// A live owner is looked at when a request has ended, and then from time to time, whenever sweep() runs.
bool RetainedSegments::sweep() noexcept {
  constexpr std::chrono::seconds kPause{1};
  const LockGuard lock(mutex_);
  const auto now = std::chrono::steady_clock::now();
  const bool may_look = now >= next_look_;
  bool waiting = false;
  bool gone = false;
  const Owner* asked = nullptr;
  const Owner* looked_at = nullptr;
  for (auto at = entries_.begin(); at != entries_.end();) {
    Entry& entry = at->second;
    Owner& owner = *entry.owner;
    if (&owner != asked) gone = (asked = &owner)->is_gone();
    if (!gone && may_look && looked_at != &owner && is_of_host(entry.memory) && !is_requested(entry)) {
      looked_at = &owner;
      owner.look();
      next_look_ = now + kPause;
    }
    if (gone || (owner.has_left && is_of_host(entry.memory))) waiting = drop_passed(entry) || waiting;
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
