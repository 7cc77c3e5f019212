// SPDX-License-Identifier: Apache-2.0
#include "share/owner/segment_pins.h"

#include <algorithm>

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

}  // namespace onecopy
