// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>

#include "core/point.h"

/// The borrower's side of the claim protocol, and the words that both sides share. docs/design/protocol.md argues every
/// interleaving; tests/explorer runs this very code through them. Two words decide everything:
///
///   the block's word, written only by the owner:   {generation:62, state:2}
///   the borrower's slot, written only by it:       how many claims this borrower holds
///
/// Claim:   slot += 1, then read the word.     Free: word = closing, then read the slots.
/// Whichever comes second sees the other: either the claimer sees `closing` and backs off, or the
/// owner sees the slot and waits. All operations on the two words are sequentially consistent.
namespace onecopy {

enum class BlockState : std::uint64_t { free = 0, live = 1, exported = 2, closing = 3 };

constexpr std::uint64_t kMaxGeneration = (std::uint64_t{1} << 62) - 1;

constexpr std::uint64_t make_word(std::uint64_t generation, BlockState state) noexcept {
  return generation << 2 | static_cast<std::uint64_t>(state);
}
constexpr BlockState state_of(std::uint64_t word) noexcept { return static_cast<BlockState>(word & 3); }
constexpr std::uint64_t generation_of(std::uint64_t word) noexcept { return word >> 2; }
/// Returns the generation that the block's holders have in their handles. A closing word already contains the next
/// generation.
constexpr std::uint64_t held_generation(std::uint64_t word) noexcept {
  return (generation_of(word) - (state_of(word) == BlockState::closing ? 1 : 0)) & kMaxGeneration;
}
/// Returns the word that a block of that generation has between its release by the owner and the end of the last claim.
constexpr std::uint64_t closing_word(std::uint64_t generation) noexcept {
  return make_word((generation + 1) & kMaxGeneration, BlockState::closing);
}
/// Returns whether a process may still hold the block under that generation.
constexpr bool is_held_as(std::uint64_t word, std::uint64_t generation) noexcept {
  return word == make_word(generation, BlockState::exported) || word == closing_word(generation);
}

/// The operations that the protocol needs from the machine. Tests substitute their own.
struct RealPlatform {
  template <class T>
  using Atomic = std::atomic<T>;
};

/// A block as its owner describes it to borrowers. Lives in the owner's block table. All fields but `word` are written
/// while the block is free or live, so a process that has claimed the block may read them.
template <class P>
struct BlockRecord {
  typename P::template Atomic<std::uint64_t> word;
  std::uint64_t offset;   ///< bytes from the start of the segment
  std::uint64_t size;     ///< bytes
  std::uint32_t segment;  ///< number of the segment, 0 = never used
  std::uint32_t reserved;
};

/// The "look again" marks of one borrower: a bit per block, under two levels of summary. A mark never means "free now".
/// Marks are set from the leaves upwards and taken from the top downwards, so no mark is lost: a process that finds a
/// bit already set knows that its taker has not passed yet. Sizes for 4 Mi blocks: one top word, 1,024 middle words,
/// 65,536 leaf words.
template <class P>
class Hints {
 public:
  using Word = typename P::template Atomic<std::uint64_t>;

  Hints(Word* top, Word* middle, Word* leaves) noexcept : top_(top), middle_(middle), leaves_(leaves) {}

  void mark(std::uint32_t block) noexcept {
    raise(leaves_[block >> 6], block & 63);
    raise(middle_[block >> 12], block >> 6 & 63);
    raise(*top_, block >> 16 & 63);
  }

  bool any() const noexcept { return top_->load() != 0; }

  /// Calls visit(block) for each mark and removes the mark.
  template <class Visit>
  void take(Visit&& visit) noexcept {
    each_bit(top_->exchange(0), [&](std::uint32_t i) {
      for (std::uint32_t m = i * 16; m < i * 16 + 16; ++m) take_middle(m, visit);
    });
  }

 private:
  template <class Visit>
  void take_middle(std::uint32_t m, Visit& visit) noexcept {
    if (middle_[m].load() == 0) return;
    each_bit(middle_[m].exchange(0), [&](std::uint32_t i) {
      const std::uint32_t leaf = m * 64 + i;
      each_bit(leaves_[leaf].exchange(0), [&](std::uint32_t bit) { visit(leaf * 64 + bit); });
    });
  }

  static void raise(Word& word, std::uint32_t bit) noexcept {
    const std::uint64_t mask = std::uint64_t{1} << bit;
    if ((word.load() & mask) == 0) word.fetch_or(mask);
  }

  template <class Visit>
  static void each_bit(std::uint64_t bits, Visit&& visit) noexcept {
    for (; bits != 0; bits &= bits - 1) visit(static_cast<std::uint32_t>(__builtin_ctzll(bits)));
  }

  Word* top_;
  Word* middle_;
  Word* leaves_;
};

/// The first cache lines of a claim page.
template <class P>
struct ClaimPageHeader {
  std::uint64_t magic;
  std::uint32_t version;
  std::uint32_t capacity;  ///< blocks
  /// A flag that makes all slots count as held. Raised while a forked child copies its claims.
  alignas(64) typename P::template Atomic<std::uint32_t> all;
  /// The number of claim pages that this borrower has prepared for children of its own.
  typename P::template Atomic<std::uint32_t> announced;
  /// A flag that tells the owner to look at all blocks in limbo again.
  alignas(64) typename P::template Atomic<std::uint32_t> rescan;
  typename P::template Atomic<std::uint64_t> top;
};

/// A borrower's claim page, as both sides see it. Thread safety: all members may be called
/// concurrently by any thread of owner and borrower.
template <class P>
class ClaimPage {
 public:
  using Slot = typename P::template Atomic<std::uint32_t>;

  ClaimPage() noexcept : ClaimPage(nullptr, nullptr, nullptr, nullptr) {}
  ClaimPage(ClaimPageHeader<P>* header, Slot* slots, typename Hints<P>::Word* middle,
            typename Hints<P>::Word* leaves) noexcept
      : header_(header), slots_(slots), hints_(header ? &header->top : nullptr, middle, leaves) {}

  ClaimPageHeader<P>& header() const noexcept { return *header_; }
  Slot& slot(std::uint32_t block) const noexcept { return slots_[block]; }
  Hints<P>& hints() noexcept { return hints_; }
  explicit operator bool() const noexcept { return header_ != nullptr; }

 private:
  ClaimPageHeader<P>* header_;
  Slot* slots_;
  Hints<P> hints_;
};

/// Ends one claim. If it was the borrower's last claim on a closing block, asks the owner to look again.
template <class P>
void release_claim(ClaimPage<P>& page, const BlockRecord<P>& record, std::uint32_t block) noexcept {
  point("release.begin");
  const bool last = page.slot(block).fetch_sub(1) == 1;
  point("release.slot_lowered");
  if (last && state_of(record.word.load()) == BlockState::closing) {
    page.hints().mark(block);
    point("release.marked");
  }
}

/// Claims `block` if its generation is still the handle's. Returns false, with nothing held, for a stale block. Threads
/// of one borrower are safe because the slot itself is their count.
///
/// The owner may have freed a block that another borrower still holds and shares on. The block's memory is valid as
/// long as the block is in limbo, which only the owner knows: `ask` asks the owner (BlockTable::is_in_limbo under the
/// owner's lock). The slot is raised before the question, so a yes stays true: the owner looks at the slot before the
/// block leaves limbo. For an owner that is gone `ask` says yes, and the word, read again, has the answer: it leaves
/// `closing` before the memory can be reused. `ask` must not throw.
template <class P, class Ask>
[[nodiscard]] bool try_claim(ClaimPage<P>& page, const BlockRecord<P>& record, std::uint32_t block,
                             std::uint64_t generation, Ask&& ask) noexcept {
  point("claim.begin");
  page.slot(block).fetch_add(1);
  point("claim.slot_raised");
  const std::uint64_t word = record.word.load();
  if (word == make_word(generation, BlockState::exported) ||
      (word == closing_word(generation) && ask() && is_held_as(record.word.load(), generation))) {
    point("claim.done");
    return true;
  }
  release_claim(page, record, block);
  return false;
}

template <class P>
[[nodiscard]] bool try_claim(ClaimPage<P>& page, const BlockRecord<P>& record, std::uint32_t block,
                             std::uint64_t generation) noexcept {
  return try_claim(page, record, block, generation, [] { return false; });
}

/// Announces a child before a fork, and before the child's page is on its way: until the page has arrived, the owner
/// counts all blocks as held; if the page never arrives, until this process ends.
template <class P>
void announce_child(ClaimPage<P>& page) noexcept {
  page.header().announced.fetch_add(1);
  point("fork.announced");
}

/// Takes claims over in a forked child, whose page was made with `all` raised: count(block) claims of each block below
/// `end`.
template <class P, class Count>
void take_over_claims(ClaimPage<P>& page, std::uint32_t end, Count&& count) noexcept {
  for (std::uint32_t block = 0; block < end; ++block)
    if (const std::uint32_t claims = count(block); claims != 0) page.slot(block).store(claims);
  point("fork.slots_set");
  page.header().all.store(0);
  point("fork.all_lowered");
  page.header().rescan.store(1);
}

// Pinned pages, and pages that go back to the system: two counts for each segment decide.
//
//   pins    of a process that has segments mapped, written only by it: how many of its pieces are pinned
//   holes   of the owner, written only by it: how many pieces of it go back to the system right now
//
//   Pin:   pins += 1, then wait until holes is 0.     Hole: holes += 1, then read the pins.
//
// The later one sees the earlier one. Either the pinner waits until the pages are gone, and pins the pages that are
// there then. Or the owner sees the pin and leaves the pages. All operations on the words are sequentially
// consistent. tests/model/pin.pml shows the failures of other orders.

/// The number of words. Segments whose numbers are equal modulo kPinWords share a word, and are kept pinned together.
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

/// Returns whether a hole is under way that began before the pin was seen. The caller, which has called note_pin(),
/// must then ask again; later holes see the pin.
template <class P>
bool is_hole_under_way(const PinWord<P>& holes) noexcept {
  return holes.load() != 0;
}

/// Begins a hole. Returns true if no process has pinned a part of the segment, and none will before end_hole().
/// `is_pinned` looks at the words of all processes.
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
