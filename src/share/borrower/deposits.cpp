// SPDX-License-Identifier: Apache-2.0
#include "share/borrower/deposits.h"

#include <fmt/format.h>

#include <algorithm>

#include "os/log.h"
#include "os/page_users.h"
#include "share/owner/claim_memory.h"

namespace onecopy {
namespace {

/// std::erase_if for predicates that change the elements they keep.
template <class Map, class Drop>
void drop_where(Map& map, Drop&& drop) {
  for (auto at = map.begin(); at != map.end();) at = drop(at->second) ? map.erase(at) : std::next(at);
}

bool is_of_host(const ExportedMemory& memory) noexcept {
  return device_type(memory.kind) == DeviceType::cpu;
}

}  // namespace

bool Deposits::add(const DepositKey& key, const ProcessOrigin& origin, Fd table, ExportedMemory memory,
                   std::uint64_t channel, std::optional<DepositClaim> claim) {
  const LockGuard lock(mutex_);
  if (!channels_.contains(channel)) return false;
  auto at = entries_.find(key);
  if (at == entries_.end() && !has_room_for(memory)) {
    if (!std::exchange(refused_, true))
      log_warning(fmt::format(
          "memory of process {} that is in queues open here lies in many pieces on a device; {} "
          "descriptors of such are kept for the day that their owners die, and items in the other "
          "pieces that are not taken by then are lost",
          origin.pid, kMostOfDevices));
    return false;
  }
  if (at == entries_.end()) {  // whole or not at all: the next attempt must not find half of one
    std::shared_ptr<Owner> owner = owner_of(key, origin, table);
    Entry entry{std::move(owner), table_of(key, std::move(table)), std::move(memory), {}};
    if (entry.memory.kind == SegmentKind::named_file)
      entry.user = backend(DeviceType::cpu)
                       .open(0, backend(DeviceType::cpu).duplicate(entry.memory, Access::read_write),
                             Access::read_write);
    at = entries_.emplace(key, std::move(entry)).first;
  }
  Use& use = at->second.channels[channel];
  use.put_at_end.reset();
  if (claim) use.claims[claim->depositor] = claim->number;
  return true;
}

void Deposits::let_go(const DepositKey& key, const DepositClaim& claims) noexcept {
  const LockGuard lock(mutex_);
  const auto at = entries_.find(key);
  if (at == entries_.end()) return;
  for (auto& [channel, use] : at->second.channels) {
    const auto claim = use.claims.find(claims.depositor);
    if (claim != use.claims.end() && claim->second <= claims.number) use.claims.erase(claim);
  }
  look_soon();
}

void Deposits::leave(Depositor depositor, std::uint64_t channel) noexcept {
  const LockGuard lock(mutex_);
  for (auto& [key, entry] : entries_)
    if (const auto use = entry.channels.find(channel); use != entry.channels.end())
      use->second.claims.erase(depositor);
  look_soon();
}

void Deposits::leave(Depositor depositor) noexcept {
  const LockGuard lock(mutex_);
  for (auto& [key, entry] : entries_)
    for (auto& [channel, use] : entry.channels) use.claims.erase(depositor);
  look_soon();
}

/// At all live owners, too.
void Deposits::look_soon() noexcept {
  next_look_ = {};
  if (on_due) on_due();
}

bool Deposits::has_room_for(const ExportedMemory& memory) const noexcept {
  if (device_type(memory.kind) == DeviceType::cpu) return true;
  std::size_t kept = memory.fds.size();
  for (const auto& [key, entry] : entries_)
    if (device_type(entry.memory.kind) != DeviceType::cpu) kept += entry.memory.fds.size();
  return kept <= kMostOfDevices;
}

std::optional<HeldSegment> Deposits::open(const DepositKey& key, Access access) const {
  const LockGuard lock(mutex_);
  const auto at = entries_.find(key);
  if (at == entries_.end()) return {};
  const Entry& entry = at->second;
  return HeldSegment{entry.table->duplicate(),
                     backend(device_type(entry.memory.kind)).duplicate(entry.memory, access),
                     entry.owner->is_gone() || (is_of_host(entry.memory) && entry.owner->look())};
}

std::uint64_t Deposits::add_elsewhere(const DepositKey& key, const ProcessId& keeper) {
  const LockGuard lock(mutex_);
  return elsewhere_[key][keeper] = ++last_number_;
}

void Deposits::retire(const DepositKey& key) {
  if (note_retired(key) && on_news) on_news();
}

bool Deposits::note_retired(const DepositKey& key) {
  const LockGuard lock(mutex_);
  entries_.erase(key);
  const auto kept = elsewhere_.find(key);
  if (kept == elsewhere_.end()) return false;
  for (const auto& [keeper, number] : kept->second) retired_[key].insert(keeper);
  elsewhere_.erase(kept);
  return true;
}

void Deposits::let_go_of(const std::string& owner) noexcept {
  bool is_news = false;
  {
    const LockGuard lock(mutex_);
    for (auto at = entries_.lower_bound({owner, 0}); at != entries_.end() && at->first.first == owner; ++at)
      for (auto& [channel, use] : at->second.channels) use.claims.erase(nullptr);
    look_soon();
    auto at = elsewhere_.lower_bound({owner, 0});
    for (; at != elsewhere_.end() && at->first.first == owner; at = elsewhere_.erase(at))
      for (const auto& [keeper, number] : at->second) let_go_.push_back({at->first, keeper, number});
    is_news = !let_go_.empty();
  }
  if (is_news && on_news) on_news();
}

std::vector<LetGo> Deposits::take_let_go() noexcept {
  const LockGuard lock(mutex_);
  return std::exchange(let_go_, {});
}

void Deposits::let_go_later(LetGo again) {
  const LockGuard lock(mutex_);
  let_go_.push_back(std::move(again));
}

std::map<DepositKey, std::set<ProcessId>> Deposits::take_retired() noexcept {
  const LockGuard lock(mutex_);
  return std::exchange(retired_, {});
}

void Deposits::clear() noexcept {
  entries_.clear();
  elsewhere_.clear();
  retired_.clear();
  let_go_.clear();
}

void Deposits::add_channel(std::uint64_t channel, ChannelHooks hooks) {
  const LockGuard lock(mutex_);
  channels_[channel] = std::move(hooks);
}

std::optional<std::pair<std::uint64_t, std::uint64_t>> Deposits::progress(std::uint64_t channel) const {
  const LockGuard lock(mutex_);
  const auto at = channels_.find(channel);
  if (at == channels_.end()) return {};
  return at->second.progress();
}

void Deposits::report_users(std::uint64_t channel, std::uint8_t role, std::size_t users) const noexcept {
  const LockGuard lock(mutex_);
  const auto at = channels_.find(channel);
  if (at != channels_.end() && at->second.users) at->second.users(role, users);
}

void Deposits::remove_channel(std::uint64_t channel) noexcept {
  const LockGuard lock(mutex_);
  channels_.erase(channel);
  drop_where(entries_, [&](Entry& entry) {
    entry.channels.erase(channel);
    return entry.channels.empty();
  });
}

std::shared_ptr<Deposits::Owner> Deposits::owner_of(const DepositKey& key, const ProcessOrigin& origin,
                                                    const Fd& table) {
  const auto other = entries_.lower_bound({key.first, 0});
  if (other != entries_.end() && other->first.first == key.first) return other->second.owner;
  const std::shared_ptr<Owner> owner(new Owner{open_pidfd(origin), origin.pid, inode_of(table), nullptr});
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
bool Deposits::Owner::look() noexcept {
  try {
    has_left = has_left || !may_own_table(pid, table_inode);
  } catch (const std::exception&) {  // no memory to read with
  }
  return has_left;
}

bool Deposits::is_claimed(const Entry& entry) noexcept {
  return std::all_of(entry.channels.begin(), entry.channels.end(),
                     [](const auto& use) { return !use.second.claims.empty(); });
}

std::shared_ptr<const Fd> Deposits::table_of(const DepositKey& key, Fd sent) const {
  const auto other = entries_.lower_bound({key.first, 0});
  if (other != entries_.end() && other->first.first == key.first) return other->second.table;
  return std::make_shared<const Fd>(std::move(sent));
}

/// A dead owner's deposit stays while it is claimed. Then it stays until every queue it was made for has passed the
/// last item put before the claims ended. A live owner's stays: it will not be handed over again. Returns true while
/// a queue has not come so far.
bool Deposits::drop_passed(Entry& entry) {
  bool waiting = false;
  for (auto at = entry.channels.begin(); at != entry.channels.end();) {
    auto& [channel, use] = *at;
    bool passed = false;
    if (use.claims.empty()) {
      const auto progress = channels_[channel].progress();
      if (progress && !use.put_at_end) use.put_at_end = progress->first;
      passed = !progress || progress->second >= *use.put_at_end;
      waiting = waiting || !passed;
    }
    at = passed ? entry.channels.erase(at) : std::next(at);
  }
  return waiting;
}

/// A live owner is looked at when a claim has ended, and then from time to time, whenever sweep() runs.
bool Deposits::sweep() noexcept {
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
    if (!gone && may_look && looked_at != &owner && is_of_host(entry.memory) && !is_claimed(entry)) {
      looked_at = &owner;
      owner.look();
      next_look_ = now + kPause;
    }
    if (gone || (owner.has_left && is_of_host(entry.memory))) waiting = drop_passed(entry) || waiting;
    at = entry.channels.empty() ? entries_.erase(at) : std::next(at);
  }
  return waiting;
}

std::size_t Deposits::size() const {
  const LockGuard lock(mutex_);
  return entries_.size();
}

}  // namespace onecopy
