// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <chrono>
#include <thread>

#include "onecopy/core/error.h"
#include "os/process.h"
#include "share/owner/ledger.h"

namespace onecopy {

void SegmentPins::attach(PageRef page) { borrowers_.push_back(page); }

void SegmentPins::detach(PageRef page) noexcept { std::erase(borrowers_, page); }

void SegmentPins::note_own(std::uint32_t segment) {
  if (!own_) own_ = std::make_unique<std::atomic<std::uint32_t>[]>(kPinWords);
  note_pin<RealPlatform>(own_[segment % kPinWords]);
}

void SegmentPins::end_own(std::uint32_t segment) noexcept {
  if (own_) end_pin<RealPlatform>(own_[segment % kPinWords]);
}

/// An announced child whose page has not come may have pinned anything.
bool SegmentPins::is_pinned(std::uint32_t segment) const noexcept {
  if (own_ && own_[segment % kPinWords].load() != 0) return true;
  return std::any_of(borrowers_.begin(), borrowers_.end(), [&](const PageRef& page) {
    return pins_in(page->claims)[segment].load() != 0 ||
           page->claims.header().announced.load() != page->attached_children;
  });
}

bool SegmentPins::begin_hole(std::uint32_t segment) noexcept {
  return try_begin_hole<RealPlatform>(holes_[segment], [&] { return is_pinned(segment); });
}

void SegmentPins::end_hole(std::uint32_t segment) noexcept {
  onecopy::end_hole<RealPlatform>(holes_[segment]);
}

// The pins of an owner's segments, see the words of pins in claim.h.
void SharedBlocks::throw_no_pins() {
  throw Error(
      ErrorCode::unsupported,
      "the owner of this memory cannot be told that it is pinned here, and would give its pages back "
      "under it; open the tensor again in this process, or start the process with spawn");
}

/// A hole takes the system milliseconds. A hole of an owner that died in it no longer has an effect.
void wait_for_hole(const PinWords::Word& holes, const std::function<bool()>& is_owner_gone) {
  constexpr std::chrono::seconds kTimeout{10};
  const auto deadline = std::chrono::steady_clock::now() + kTimeout;
  while (is_hole_under_way<RealPlatform>(holes)) {
    if (is_owner_gone()) return;
    if (std::chrono::steady_clock::now() > deadline)
      throw Error(ErrorCode::timeout,
                  "the owner of this memory has been giving pages of it back for ten seconds; it may be "
                  "stopped (SIGSTOP, a debugger), try again once it runs");
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

/// A forked child's owner is its parent. A child without a page at the parent is counted with it, and unseen.
void Ledger::begin_pin(std::uint32_t segment) {
  if (inherited_ && !is_seen(inherited_)) throw_no_pins();
  if (inherited_) note_pin<RealPlatform>(pins_in(inherited_)[segment]);
  else {
    const LockGuard lock(mutex_);
    pins_.note_own(segment);
  }
  const PinWords holes(records_.as<PinWords::Word>(kHolesAt));
  try {
    wait_for_hole(holes[segment], [this] { return pid_ != current_pid() && is_gone(origin()); });
  } catch (...) {
    end_pin(segment);
    throw;
  }
}

void Ledger::end_pin(std::uint32_t segment) noexcept {
  if (inherited_) return onecopy::end_pin<RealPlatform>(pins_in(inherited_)[segment]);
  const LockGuard lock(mutex_);
  pins_.end_own(segment);
}

bool Ledger::uses(std::uint32_t segment, std::uint64_t offset, std::uint64_t bytes,
                  const std::set<std::uint32_t>& others) const noexcept {
  const LockGuard lock(mutex_);
  for (std::uint32_t block = 0; block < table_.used(); ++block) {
    const Record& r = table_.record(block);
    if (r.segment == segment && state_of(r.word.load()) != BlockState::free && r.offset < offset + bytes &&
        offset < r.offset + r.size && !others.contains(block))
      return true;
  }
  return false;
}

bool Ledger::begin_hole(std::uint32_t segment) noexcept {
  const LockGuard lock(mutex_);
  return pins_.begin_hole(segment);
}

void Ledger::end_hole(std::uint32_t segment) noexcept {
  const LockGuard lock(mutex_);
  pins_.end_hole(segment);
}

}  // namespace onecopy
