// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "core/point.h"
#include "share/owner/claim.h"

/// Pinned pages, and pages that go back to the system: two counts for each segment decide.
///
///   pins    of a process that has segments mapped, written only by it: how many of its pieces are pinned
///   holes   of the owner, written only by it: how many pieces of it go back to the system right now
///
///   Pin:   pins += 1, then wait until holes is 0.     Hole: holes += 1, then read the pins.
///
/// The later one sees the earlier one. Either the pinner waits until the pages are gone, and pins the pages that are
/// there then. Or the owner sees the pin and leaves the pages. All operations on the words are sequentially
/// consistent. tests/model/pin.pml shows the failures of other orders.
namespace onecopy {

/// Segments share a word when their numbers are equal modulo this: then they are kept together.
inline constexpr std::uint32_t kPinWords = 65536;

template <class P>
using PinWord = typename P::template Atomic<std::uint32_t>;

template <class P>
void note_pin(PinWord<P>& pins) noexcept {
  pins.fetch_add(1);
  point("pin.noted");
}

template <class P>
void end_pin(PinWord<P>& pins) noexcept {
  pins.fetch_sub(1);
}

/// After note_pin(): is a hole under way that began before the pin was seen? Then ask again: the next hole sees the
/// pin.
template <class P>
bool is_hole_under_way(const PinWord<P>& holes) noexcept {
  return holes.load() != 0;
}

/// True if no process has pinned any of it, and none will until end_hole(). `is_pinned` looks at the words of all.
template <class P, class IsPinned>
[[nodiscard]] bool try_begin_hole(PinWord<P>& holes, IsPinned&& is_pinned) noexcept {
  holes.fetch_add(1);
  point("hole.begun");
  if (!is_pinned()) return true;
  holes.fetch_sub(1);
  return false;
}

template <class P>
void end_hole(PinWord<P>& holes) noexcept {
  holes.fetch_sub(1);
}

}  // namespace onecopy
