// SPDX-License-Identifier: Apache-2.0
#include "share/owner/holds.h"

#include <algorithm>
#include <span>

#include "os/random.h"

namespace onecopy {

std::uint64_t Holds::add(BlockRef block, Clock::time_point now, Until until) {
  const LockGuard lock(mutex_);
  std::uint64_t nonce = 0;
  while (nonce == 0 || holds_.contains(nonce)) nonce = take_nonce();
  holds_[nonce] = {.block = std::move(block), .since = now, .lasts = until == Until::opened};
  return nonce;
}

std::uint64_t Holds::take_nonce() {
  if (nonces_left_ == 0) {
    random_bytes(std::as_writable_bytes(std::span(nonces_)));
    nonces_left_ = nonces_.size();
  }
  return nonces_[--nonces_left_];
}

void Holds::end(std::uint64_t nonce) noexcept {
  BlockRef ended;  // declared before the lock, so released after it
  const LockGuard lock(mutex_);
  const auto at = holds_.find(nonce);
  if (at == holds_.end()) return;
  ended = std::move(at->second.block);
  holds_.erase(at);
}

void Holds::make_permanent(std::uint64_t nonce) noexcept {
  const LockGuard lock(mutex_);
  if (const auto at = holds_.find(nonce); at != holds_.end()) at->second.lasts = true;
}

template <typename IsOver>
void Holds::end_those(IsOver is_over) noexcept {
  std::map<std::uint64_t, Hold> ended;  // as above
  const LockGuard lock(mutex_);
  for (auto at = holds_.begin(); at != holds_.end();) {
    const auto hold = at++;
    if (is_over(hold->second)) ended.insert(holds_.extract(hold));
  }
}

std::optional<Holds::Clock::duration> Holds::expire(Clock::time_point now) noexcept {
  std::optional<Clock::duration> next;
  end_those([&](const Hold& hold) {
    if (hold.lasts) return false;
    const Clock::duration left = hold.since + kLifetime - now;
    if (left > Clock::duration::zero()) next = std::min(next.value_or(left), left);
    return left <= Clock::duration::zero();
  });
  return next;
}

void Holds::end_older(Clock::time_point than) noexcept {
  end_those([than](const Hold& hold) { return hold.since <= than; });
}

bool Holds::contain(const BlockRef& block) const noexcept {
  const LockGuard lock(mutex_);
  return std::any_of(holds_.begin(), holds_.end(), [&](const auto& entry) {
    const BlockRef& held = entry.second.block;
    return held.group() == block.group() && held.number() == block.number();
  });
}

std::vector<Holds::Clock::time_point> Holds::list() const {
  const LockGuard lock(mutex_);
  std::vector<Clock::time_point> since;
  for (const auto& [nonce, hold] : holds_) since.push_back(hold.since);
  return since;
}

void Holds::clear() noexcept {
  std::map<std::uint64_t, Hold> ended;
  const LockGuard lock(mutex_);
  ended.swap(holds_);
  nonces_left_ = 0;  // so that a forked child gets nonces of its own
}

/// Removes the entry before the object is destroyed, because the object's destructor may call back.
struct PinnedObjects::Pin {
  Pin(PinnedObjects& in, Name of, std::shared_ptr<const void> what) noexcept
      : registry(in), name(of), object(std::move(what)) {}
  Pin& operator=(Pin&&) = delete;
  ~Pin() {
    const LockGuard lock(registry.mutex_);
    registry.pins_.erase(name);
  }

  PinnedObjects& registry;
  const Name name;
  const std::shared_ptr<const void> object;
};

std::shared_ptr<const void> PinnedObjects::add(Name name, std::shared_ptr<const void> object) {
  auto pin = std::make_shared<const Pin>(*this, name, std::move(object));
  const LockGuard lock(mutex_);
  pins_[name] = pin;
  return pin;
}

std::shared_ptr<const void> PinnedObjects::find(Name name) const {
  std::shared_ptr<const Pin> pin;  // outlives the lock, which its destructor takes
  const LockGuard lock(mutex_);
  const auto at = pins_.find(name);
  if (at == pins_.end()) return {};
  pin = at->second.lock();
  return pin ? pin->object : nullptr;
}

}  // namespace onecopy
