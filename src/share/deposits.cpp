// SPDX-License-Identifier: Apache-2.0
#include "share/deposits.h"

#include <fmt/format.h>

#include "onecopy/os/log.h"
#include "onecopy/os/process.h"

namespace onecopy {
namespace {

/// std::erase_if for predicates that change what they keep.
template <class Map, class Drop>
void drop_where(Map& map, Drop&& drop) {
  for (auto at = map.begin(); at != map.end();) at = drop(at->second) ? map.erase(at) : std::next(at);
}

bool is_gone(const Fd& pidfd) noexcept { return !pidfd || has_exited(pidfd); }

}  // namespace

bool Deposits::add(const DepositKey& key, const ProcessOrigin& origin, Fd table, ExportedMemory memory,
                   std::uint64_t channel) {
  std::lock_guard lock(mutex_);
  if (!channels_.contains(channel)) return true;
  auto at = entries_.find(key);
  if (at == entries_.end() && !has_room_for(memory)) {
    if (!std::exchange(refused_, true))
      log_warning(fmt::format(
          "memory of process {} that is in queues open here lies in many pieces on a device; {} "
          "descriptors of such are kept for the day that their owners die, and what is in the "
          "other pieces and not taken by then is lost",
          origin.pid, kMostOfDevices));
    return false;
  }
  if (at == entries_.end()) {  // whole or not at all: the next attempt must not find half of one
    Entry entry{origin, pidfd_of(key, origin), std::move(table), std::move(memory), {}};
    if (entry.memory.kind == SegmentKind::named_file)
      entry.user = backend(DeviceType::cpu)
                       .open(0, backend(DeviceType::cpu).duplicate(entry.memory, Access::read_write),
                             Access::read_write);
    at = entries_.emplace(key, std::move(entry)).first;
  }
  at->second.channels[channel].reset();
  return true;
}

bool Deposits::has_room_for(const ExportedMemory& memory) const noexcept {
  if (device_type(memory.kind) == DeviceType::cpu) return true;
  std::size_t kept = memory.fds.size();
  for (const auto& [key, entry] : entries_)
    if (device_type(entry.memory.kind) != DeviceType::cpu) kept += entry.memory.fds.size();
  return kept <= kMostOfDevices;
}

std::optional<HeldSegment> Deposits::open(const DepositKey& key, Access access) const {
  std::lock_guard lock(mutex_);
  const auto at = entries_.find(key);
  if (at == entries_.end()) return {};
  const Entry& entry = at->second;
  return HeldSegment{entry.table.duplicate(),
                     backend(device_type(entry.memory.kind)).duplicate(entry.memory, access),
                     is_gone(*entry.pidfd)};
}

void Deposits::add_elsewhere(const DepositKey& key, const ProcessId& keeper) {
  std::lock_guard lock(mutex_);
  elsewhere_[key].insert(keeper);
}

bool Deposits::retire(const DepositKey& key) noexcept {
  std::lock_guard lock(mutex_);
  entries_.erase(key);
  auto kept = elsewhere_.extract(key);
  if (!kept) return false;
  auto [at, is_new, rest] = retired_.insert(std::move(kept));
  if (!is_new) at->second.merge(rest.mapped());
  return true;
}

void Deposits::forget_elsewhere(const std::string& owner) noexcept {
  const std::lock_guard lock(mutex_);
  auto at = elsewhere_.lower_bound({owner, 0});
  while (at != elsewhere_.end() && at->first.first == owner) at = elsewhere_.erase(at);
}

std::map<DepositKey, std::set<ProcessId>> Deposits::take_retired() noexcept {
  std::lock_guard lock(mutex_);
  return std::exchange(retired_, {});
}

void Deposits::clear() noexcept {
  entries_.clear();
  elsewhere_.clear();
  retired_.clear();
}

void Deposits::add_channel(std::uint64_t channel, ChannelHooks hooks) {
  std::lock_guard lock(mutex_);
  channels_[channel] = std::move(hooks);
}

std::optional<std::pair<std::uint64_t, std::uint64_t>> Deposits::progress(std::uint64_t channel) const {
  std::lock_guard lock(mutex_);
  const auto at = channels_.find(channel);
  if (at == channels_.end()) return {};
  return at->second.progress();
}

void Deposits::report_users(std::uint64_t channel, std::uint8_t role, std::size_t users) const noexcept {
  std::lock_guard lock(mutex_);
  const auto at = channels_.find(channel);
  if (at != channels_.end() && at->second.users) at->second.users(role, users);
}

void Deposits::remove_channel(std::uint64_t channel) noexcept {
  std::lock_guard lock(mutex_);
  channels_.erase(channel);
  drop_where(entries_, [&](Entry& entry) {
    entry.channels.erase(channel);
    return entry.channels.empty();
  });
}

std::shared_ptr<const Fd> Deposits::pidfd_of(const DepositKey& key, const ProcessOrigin& origin) const {
  const auto other = entries_.lower_bound({key.first, 0});
  if (other != entries_.end() && other->first.first == key.first) return other->second.pidfd;
  return std::make_shared<const Fd>(open_pidfd(origin));
}

/// A dead owner's deposit stays until every queue it was made for has passed the last item put before we saw
/// the death. A live owner's stays: it will not be handed over again.
bool Deposits::is_awaited(Entry& entry) {
  for (auto at = entry.channels.begin(); at != entry.channels.end();) {
    auto& [channel, put_at_death] = *at;
    const auto progress = channels_[channel].progress();
    if (progress && !put_at_death) put_at_death = progress->first;
    const bool passed = !progress || progress->second >= *put_at_death;
    at = passed ? entry.channels.erase(at) : std::next(at);
  }
  return !entry.channels.empty();
}

bool Deposits::sweep() noexcept {
  std::lock_guard lock(mutex_);
  bool waiting = false;
  bool gone = false;
  const Fd* asked = nullptr;
  for (auto at = entries_.begin(); at != entries_.end();) {
    Entry& entry = at->second;
    if (const Fd* owner = entry.pidfd.get(); owner != asked) gone = is_gone(*(asked = owner));
    const bool awaited = gone && is_awaited(entry);
    waiting = waiting || awaited;
    at = gone && !awaited ? entries_.erase(at) : std::next(at);
  }
  return waiting;
}

std::size_t Deposits::size() const {
  std::lock_guard lock(mutex_);
  return entries_.size();
}

}  // namespace onecopy
