// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <list>
#include <vector>

#include "share/owner/claim.h"

namespace onecopy {

/// The owner's side of the claim protocol: decides which of its blocks may be reused.
///
/// A block is free -> live -> (exported -> closing ->) free; each round has its own generation. A block that was never
/// exported becomes free at once. An exported block stays in limbo, in the state `closing`, until no claim page holds
/// it.
///
/// Thread safety: external; the ledger holds its mutex around every call except export_block(), which the holder of a
/// reference may call at any time. Borrowers always act concurrently. Invariant: a block is in limbo_ before its word
/// says closing, so a mark that is taken later finds the block.
template <class P>
class BlockTable {
 public:
  using Record = BlockRecord<P>;

  /// A borrower's page, and the counts of its forked children.
  struct Page {
    ClaimPage<P> claims;
    std::uint32_t attached_children = 0;
  };
  using PageRef = typename std::list<Page>::iterator;

  BlockTable(Record* records, std::uint32_t capacity) : records_(records), capacity_(capacity) {}

  Record& record(std::uint32_t block) const noexcept { return records_[block]; }
  /// Returns one past the highest block number ever used.
  std::uint32_t used() const noexcept { return used_; }
  std::size_t limbo_size() const noexcept { return limbo_.size(); }
  std::size_t live() const noexcept { return used_ - free_.size() - limbo_.size(); }

  /// Returns the number of a free record, or the capacity if there is none. The caller fills in the record and
  /// publishes it.
  std::uint32_t take() {
    if (free_.empty()) {
      if (used_ == capacity_) return capacity_;
      limbo_at_.push_back(kNotInLimbo);
      reserve(free_);
      reserve(limbo_);
      return used_++;
    }
    const std::uint32_t block = free_.back();
    free_.pop_back();
    return block;
  }

  void publish(std::uint32_t block) noexcept {
    Record& r = record(block);
    r.word.store(make_word(generation_of(r.word.load()), BlockState::live));
  }

  /// Lets handles name the block, and returns the generation that the handles must contain.
  std::uint64_t export_block(std::uint32_t block) noexcept {
    Record& r = record(block);
    const std::uint64_t word = r.word.load();
    if (state_of(word) == BlockState::live) {
      r.word.store(make_word(generation_of(word), BlockState::exported));
      point("export.stored");
    }
    return held_generation(word);
  }

  /// Frees a block whose last reference in the owner is gone. Returns true if no other process holds the block: the
  /// caller may reuse its memory and must call give_back(). Returns false if the block is in limbo: drain() or rescan()
  /// will name it.
  [[nodiscard]] bool free_block(std::uint32_t block) {
    Record& r = record(block);
    const std::uint64_t word = r.word.load();
    const std::uint64_t next = (generation_of(word) + 1) & kMaxGeneration;
    if (state_of(word) == BlockState::live) {
      r.word.store(make_word(next, BlockState::free));
      return true;
    }
    enter_limbo(block);
    point("free.in_limbo");
    r.word.store(make_word(next, BlockState::closing));
    point("free.closing");
    return try_leave_limbo(block);
  }

  /// Makes the record available to take() again. REQUIRES: free_block, drain or rescan named it.
  void give_back(std::uint32_t block) noexcept { free_.push_back(block); }

  /// Looks at the blocks that borrowers have marked, and calls reusable(block) for each that no process holds.
  template <class Reusable>
  void drain(Reusable&& reusable) {
    if (limbo_.empty()) return;
    bool everything = false;
    for (Page& page : pages_) {
      if (page.claims.header().rescan.load() != 0 && page.claims.header().rescan.exchange(0) != 0)
        everything = true;
      if (!page.claims.hints().any()) continue;
      page.claims.hints().take([&](std::uint32_t block) {
        point("drain.taken");
        if (block < used_ && in_limbo(block) && try_leave_limbo(block)) reusable(block);
      });
    }
    if (everything) rescan(reusable);
  }

  /// Looks at all blocks in limbo, and calls reusable(block) for each that no process holds.
  template <class Reusable>
  void rescan(Reusable&& reusable) {
    for (std::size_t i = limbo_.size(); i-- > 0;) {
      const std::uint32_t block = limbo_[i];
      if (try_leave_limbo(block)) reusable(block);
    }
  }

  /// Returns whether the block is freed and not yet reusable. Answers a claimer that has already raised its slot, see
  /// try_claim().
  bool is_in_limbo(std::uint32_t block, std::uint64_t generation) const noexcept {
    return block < used_ && in_limbo(block) && record(block).word.load() == closing_word(generation);
  }

  /// Takes a block that the owner freed and that borrowers kept out of limbo, so that the owner can use the block
  /// again. Returns false if the block has left limbo already.
  [[nodiscard]] bool try_revive(std::uint32_t block, std::uint64_t generation) noexcept {
    if (!is_in_limbo(block, generation)) return false;
    leave_limbo(block);
    record(block).word.store(make_word(generation, BlockState::exported));
    point("revive.stored");
    return true;
  }

  PageRef attach(const ClaimPage<P>& claims) { return pages_.insert(pages_.end(), Page{claims, 0}); }

  /// Notes that the page of an announced child has arrived.
  void attach_child(PageRef parent) noexcept { ++parent->attached_children; }

  /// Removes the page of a borrower that is gone, and so all its claims. The caller must call rescan() afterwards.
  void detach(PageRef page) noexcept { pages_.erase(page); }

  /// Returns whether a borrower holds the block.
  bool is_claimed(std::uint32_t block) const noexcept {
    return std::any_of(pages_.begin(), pages_.end(), [&](const Page& page) { return holds(page, block); });
  }

 private:
  static constexpr std::uint32_t kNotInLimbo = ~std::uint32_t{0};

  /// Returns whether the page may hold the block. A child whose page has not arrived, or that has not copied its claims
  /// yet, may hold any block. The order of the reads is part of the protocol: a child raises its slots before it lowers
  /// `all`, and a parent raises `announced` before it lowers a slot that the child copied.
  static bool holds(const Page& page, std::uint32_t block) noexcept {
    const ClaimPageHeader<P>& h = page.claims.header();
    return h.all.load() != 0 || page.claims.slot(block).load() != 0 ||
           h.announced.load() != page.attached_children;
  }

  /// Makes room for every block, so that freeing one never allocates.
  void reserve(std::vector<std::uint32_t>& list) const {
    if (list.capacity() <= used_) list.reserve(std::max<std::size_t>(64, used_ * std::size_t{2}));
  }

  bool in_limbo(std::uint32_t block) const noexcept { return limbo_at_[block] != kNotInLimbo; }

  void enter_limbo(std::uint32_t block) {
    limbo_at_[block] = static_cast<std::uint32_t>(limbo_.size());
    limbo_.push_back(block);
  }

  void leave_limbo(std::uint32_t block) noexcept {
    const std::uint32_t at = limbo_at_[block];
    limbo_[at] = limbo_.back();
    limbo_at_[limbo_[at]] = at;
    limbo_.pop_back();
    limbo_at_[block] = kNotInLimbo;
  }

  bool try_leave_limbo(std::uint32_t block) noexcept {
    if (is_claimed(block)) return false;
    point("free.nobody");
    leave_limbo(block);
    Record& r = record(block);
    r.word.store(make_word(generation_of(r.word.load()), BlockState::free));
    point("free.reusable");
    return true;
  }

  Record* records_;
  std::uint32_t capacity_;
  std::uint32_t used_ = 0;
  std::vector<std::uint32_t> free_;
  std::vector<std::uint32_t> limbo_;
  std::vector<std::uint32_t> limbo_at_;  ///< the index of each block in limbo_
  std::list<Page> pages_;
};

}  // namespace onecopy
