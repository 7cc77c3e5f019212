// SPDX-License-Identifier: Apache-2.0
// How the ledger deals with other processes: pins of its segments, claim pages of borrowers, forked children.

#include <algorithm>
#include <chrono>
#include <iterator>
#include <thread>

#include "onecopy/core/error.h"
#include "os/process.h"
#include "share/owner/ledger.h"

namespace onecopy {

void SegmentPins::note_own(std::uint32_t segment) {
  if (!own_) own_ = std::make_unique<std::atomic<std::uint32_t>[]>(kPinWords);
  note_pin<RealPlatform>(own_[segment % kPinWords]);
}

void SegmentPins::end_own(std::uint32_t segment) noexcept {
  if (own_) end_pin<RealPlatform>(own_[segment % kPinWords]);
}

/// Returns whether a process may have pinned a part of the segment. A child whose page has not arrived may have pinned
/// any segment.
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

// Throws unsupported: the owner of this memory cannot be told of pins.
void SharedBlocks::throw_no_pins() {
  throw Error(ErrorCode::unsupported,
              "the owner of this memory cannot be told that it is pinned here, and would give its pages "
              "back under it; open the tensor again in this process, or start the process with spawn");
}

/// Waits until no hole is under way; a hole takes the system milliseconds. Ignores a hole whose owner has died.
void wait_for_hole(const std::function<bool()>& is_under_way, const std::function<bool()>& is_owner_gone) {
  constexpr std::chrono::seconds kTimeout{10};
  const auto deadline = std::chrono::steady_clock::now() + kTimeout;
  while (is_under_way()) {
    if (is_owner_gone()) return;
    if (std::chrono::steady_clock::now() > deadline)
      throw Error(ErrorCode::timeout,
                  "the owner of this memory has been giving pages of it back for ten seconds; it may be "
                  "stopped (SIGSTOP, a debugger), try again once it runs");
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
}

/// Begins a pin. In a forked child the owner is the parent, which does not see the pins of a child that has no page.
void Ledger::begin_pin(std::uint32_t segment) {
  if (inherited_ && !is_seen(inherited_)) throw_no_pins();
  if (inherited_) note_pin<RealPlatform>(pins_in(inherited_)[segment]);
  else {
    const LockGuard lock(mutex_);
    pins_.note_own(segment);
  }
  const PinWords holes(records_.as<PinWords::Word>(kHolesAt));
  try {
    wait_for_hole([&] { return is_hole_under_way<RealPlatform>(holes[segment]); },
                  [this] { return pid_ != current_pid() && is_gone(origin()); });
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

// Borrowers.

Ledger::PageRef Ledger::Borrowers::attach(const Claims& page) {
  const LockGuard lock(ledger_.mutex_);
  return attach_locked(page);
}

Ledger::PageRef Ledger::Borrowers::attach_locked(const Claims& page) {
  const PageRef attached = ledger_.table_.attach(page);
  try {
    ledger_.pins_.attach(attached);
  } catch (...) {
    ledger_.table_.detach(attached);
    throw;
  }
  return attached;
}

void Ledger::Borrowers::attach_child(PageRef parent) noexcept {
  ledger_.reclaim([&](auto reusable) {
    ledger_.table_.attach_child(parent);
    ledger_.table_.rescan(reusable);
  });
}

void Ledger::Borrowers::detach(PageRef page) noexcept {
  ledger_.reclaim([&](auto reusable) {
    ledger_.mutex_.assert_held();
    ledger_.pins_.detach(page);
    ledger_.table_.detach(page);
    ledger_.table_.rescan(reusable);
  });
}

bool Ledger::Borrowers::awaits_child(PageRef page) const noexcept {
  const LockGuard lock(ledger_.mutex_);
  return page->claims.header().announced.load() != page->attached_children;
}

std::size_t Ledger::Borrowers::leave_in_transit(PageRef page, const TransitCounts& transits) noexcept {
  std::size_t kept = 0;
  ledger_.reclaim([&](auto reusable) {
    ledger_.mutex_.assert_held();
    for (std::uint32_t block = 0; block < ledger_.table_.used(); ++block) {
      const std::uint32_t items = transits.items(block);
      page->claims.slot(block).store(items);
      kept += items != 0;
    }
    ledger_.pins_.detach(page);
    page->claims.header().all.store(0);
    page->attached_children = page->claims.header().announced.load();
    ledger_.table_.rescan(reusable);
  });
  return kept;
}

std::uint64_t Ledger::Borrowers::claims_of(PageRef page) const noexcept {
  const LockGuard lock(ledger_.mutex_);
  std::uint64_t claims = 0;
  for (std::uint32_t block = 0; block < ledger_.table_.used(); ++block)
    claims += page->claims.slot(block).load(std::memory_order_relaxed) != 0;
  return claims;
}

// The fork handlers call the following functions.

void Ledger::Inheritance::hold_everything() {
  if (ledger_.everything_) return;
  ledger_.everything_ = private_claims();
  claims_in(ledger_.everything_).header().all.store(1);
  ledger_.table_.attach(claims_in(ledger_.everything_));
}

void Ledger::Inheritance::export_all() noexcept {
  for (std::uint32_t block = 0; block < ledger_.table_.used(); ++block)
    if (ledger_.local_[block].refs.load() != 0) ledger_.table_.export_block(block);
}

void Ledger::Inheritance::become_borrower(Claims page, TransitCounts transits) noexcept {
  ledger_.inherited_ = page;
  ledger_.transits_ = transits;
  take_over_claims(page, ledger_.table_.used(), [&](std::uint32_t block) {
    return std::uint32_t{ledger_.local_[block].refs.load() != 0};
  });
}

void Ledger::Inheritance::leave_limbo_to_parent() noexcept {
  while (!take_kept_of_freed().empty()) {
  }
}

/// Removes and returns the references kept by a freed block; empty if there is no further block. The child does not
/// hold the block, and so would never release the references.
std::vector<BlockRef> Ledger::Inheritance::take_kept_of_freed() noexcept {
  const LockGuard lock(ledger_.mutex_);
  for (auto at = ledger_.kept_.begin(); at != ledger_.kept_.end();) {
    const auto next = std::next(at);
    if (ledger_.local_[at->first].refs.load() == 0) {
      auto node = ledger_.kept_.extract(at);
      if (!node.mapped().empty()) return std::move(node.mapped());
    }
    at = next;
  }
  return {};
}

}  // namespace onecopy
