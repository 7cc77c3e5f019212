// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <list>
#include <type_traits>
#include <vector>

#include "explorer/explorer.h"
#include "share/owner/block_table.h"

/// The protocol as the scenarios use it: the code of src/share with Mistake::none, and with anything
/// else that code with one mistake. So each order that the protocol insists on has a test that shows the
/// fault without it.
namespace onecopy::explorer {

enum class Mistake {
  none,
  copied,  ///< the wrong table without a mistake: shows that the others fail for their mistakes only
  // The words that the borrower writes.
  local_count,          ///< a process-local count, the slot written by its first and last only
  word_before_slot,     ///< claim reads the word, then raises the slot
  any_generation,       ///< claim looks at the state only
  silent_backing_off,   ///< a failed claim lowers the slot and says nothing
  release_looks_first,  ///< release reads the word, then lowers the slot
  ask_before_slot,      ///< claim of a closing block asks the owner, then raises the slot
  gone_means_yes,       ///< a claim on a dead owner's closing block does not read the word again
  generation_of_word,   ///< a shared-on handle carries the generation of a closing word
  // The words that the owner writes.
  scan_before_close,  ///< looks at the slots, then stores closing
  limbo_late,         ///< enters limbo after the look, not in one locked step with it
  mark_taken_late,    ///< looks at the slots, then takes the mark away
  no_rescan,          ///< a borrower's death without a look at limbo
  // The words that are used around fork.
  all_after_slot,          ///< owner reads the slot, then `all`
  announced_before_slot,   ///< owner reads `announced`, then the slot
  not_announced,           ///< parent sends the page without a word
  all_lowered_first,       ///< child lowers `all`, then sets its slots
  no_rescan_mark,          ///< child does not ask for a look when it has lowered `all`
  child_counted_early,     ///< owner counts the child as attached, attaches it later
  parent_forgotten_first,  ///< owner drops a dead parent before it reads its last messages
};

using Record = BlockRecord<Virtual>;
using Page = ClaimPage<Virtual>;

/// BlockTable once more, as short as it can be, with places for mistakes.
template <Mistake M>
class WrongTable {
 public:
  struct AttachedPage {
    Page claims;
    std::uint32_t attached_children = 0;
  };
  using PageRef = typename std::list<AttachedPage>::iterator;

  WrongTable(Record* records, std::uint32_t) : records_(records) {}

  std::uint32_t take() { return 0; }
  void give_back(std::uint32_t) {}
  void publish(std::uint32_t b) { set(b, generation_of(records_[b].word.load()), BlockState::live); }
  std::uint64_t export_block(std::uint32_t b) {
    const std::uint64_t word = records_[b].word.load();
    if (state_of(word) == BlockState::live) set(b, generation_of(word), BlockState::exported);
    return held_generation(word);
  }

  bool free_block(std::uint32_t b) {
    const std::uint64_t next = generation_of(records_[b].word.load()) + 1;
    if constexpr (M == Mistake::scan_before_close) {
      if (!is_claimed(b)) {
        set(b, next, BlockState::free);
        return true;
      }
    }
    limbo_.push_back(b);
    set(b, next, BlockState::closing);
    return try_leave_limbo(b);
  }
  /// The two halves of a free that is not one locked step.
  bool close_and_look(std::uint32_t b) {
    set(b, generation_of(records_[b].word.load()) + 1, BlockState::closing);
    return !is_claimed(b);
  }
  void settle(std::uint32_t b, bool free) {
    if (free) set(b, generation_of(records_[b].word.load()), BlockState::free);
    else limbo_.push_back(b);
  }

  template <class F>
  void drain(F&& reusable) {
    bool everything = false;
    for (AttachedPage& page : pages_) {
      everything = page.claims.header().rescan.exchange(0) != 0 || everything;
      if constexpr (M == Mistake::mark_taken_late)
        if (page.claims.hints().any()) rescan(reusable);
      page.claims.hints().take([&](std::uint32_t b) {
        if (M != Mistake::mark_taken_late && waits(b) && try_leave_limbo(b)) reusable(b);
      });
    }
    if (everything) rescan(reusable);
  }
  template <class F>
  void rescan(F&& reusable) {
    for (std::size_t i = limbo_.size(); i-- > 0;)
      if (const std::uint32_t b = limbo_[i]; try_leave_limbo(b)) reusable(b);
  }

  bool is_in_limbo(std::uint32_t b, std::uint64_t generation) {
    return waits(b) && records_[b].word.load() == closing_word(generation);
  }
  bool try_revive(std::uint32_t, std::uint64_t) { return false; }
  PageRef attach(const Page& page) { return pages_.insert(pages_.end(), AttachedPage{page, 0}); }
  void attach_child(PageRef parent) { ++parent->attached_children; }
  void detach(PageRef page) { pages_.erase(page); }
  std::size_t limbo_size() const { return limbo_.size(); }

 private:
  void set(std::uint32_t b, std::uint64_t generation, BlockState state) {
    records_[b].word.store(make_word(generation, state));
  }
  bool waits(std::uint32_t b) const { return std::find(limbo_.begin(), limbo_.end(), b) != limbo_.end(); }
  bool is_claimed(std::uint32_t b) const {
    return std::any_of(pages_.begin(), pages_.end(), [&](const AttachedPage& p) { return holds(p, b); });
  }
  static bool holds(const AttachedPage& page, std::uint32_t b) {
    const auto& h = page.claims.header();
    const auto slot = [&] { return page.claims.slot(b).load() != 0; };
    const auto all = [&] { return h.all.load() != 0; };
    const auto awaited = [&] { return h.announced.load() != page.attached_children; };
    if constexpr (M == Mistake::all_after_slot) return slot() || all() || awaited();
    if constexpr (M == Mistake::announced_before_slot) return all() || awaited() || slot();
    return all() || slot() || awaited();
  }
  bool try_leave_limbo(std::uint32_t b) {
    if (is_claimed(b)) return false;
    std::erase(limbo_, b);
    set(b, generation_of(records_[b].word.load()), BlockState::free);
    return true;
  }

  Record* records_;
  std::vector<std::uint32_t> limbo_;
  std::list<AttachedPage> pages_;
};

template <Mistake M>
inline constexpr bool kUsesWrongTable =
    M == Mistake::copied || M == Mistake::scan_before_close || M == Mistake::limbo_late ||
    M == Mistake::mark_taken_late || M == Mistake::all_after_slot || M == Mistake::announced_before_slot;

template <Mistake M>
using Table = std::conditional_t<kUsesWrongTable<M>, WrongTable<M>, BlockTable<Virtual>>;

struct Handle {
  std::uint32_t block;
  std::uint64_t generation;
};

/// One borrowing process: its page, and the claims it makes.
template <Mistake M>
class Borrower {
 public:
  Process process;

  ClaimPageHeader<Virtual>& header() { return header_; }
  Page& page() { return page_; }

  template <class Ask>
  bool claim(const Record& record, Handle h, Ask&& ask) {
    const auto is_ours = [&](std::uint64_t word) {
      if constexpr (M == Mistake::any_generation) return state_of(word) == BlockState::exported;
      return word == make_word(h.generation, BlockState::exported);
    };
    if constexpr (M == Mistake::local_count) {
      if (local_count_.fetch_add(1) == 0) page_.slot(h.block).store(1);
    } else if constexpr (M == Mistake::word_before_slot) {
      if (!is_ours(record.word.load())) return false;
      page_.slot(h.block).fetch_add(1);
      return true;
    } else if constexpr (M == Mistake::ask_before_slot) {
      if (record.word.load() != closing_word(h.generation))
        return try_claim(page_, record, h.block, h.generation);
      if (!ask()) return false;
      page_.slot(h.block).fetch_add(1);
      return true;
    } else if constexpr (M == Mistake::gone_means_yes) {
      page_.slot(h.block).fetch_add(1);
      if (record.word.load() == closing_word(h.generation) && ask()) return true;
    } else if constexpr (M == Mistake::any_generation || M == Mistake::silent_backing_off) {
      page_.slot(h.block).fetch_add(1);
    } else {
      return try_claim(page_, record, h.block, h.generation, ask);
    }
    if (is_ours(record.word.load())) return true;
    if constexpr (M == Mistake::silent_backing_off) page_.slot(h.block).fetch_sub(1);
    else release(record, h.block);
    return false;
  }
  bool claim(const Record& record, Handle h) {
    return claim(record, h, [] { return false; });
  }

  void release(const Record& record, std::uint32_t block) {
    if constexpr (M == Mistake::local_count) {
      if (local_count_.fetch_sub(1) != 1) return;
      page_.slot(block).store(0);
      if (state_of(record.word.load()) == BlockState::closing) page_.hints().mark(block);
    } else if constexpr (M == Mistake::release_looks_first) {
      const bool closing = state_of(record.word.load()) == BlockState::closing;
      if (page_.slot(block).fetch_sub(1) == 1 && closing) page_.hints().mark(block);
    } else {
      release_claim(page_, record, block);
    }
  }

  /// Share a claimed block on: the handle for it.
  Handle name(const Record& record, std::uint32_t block) {
    const std::uint64_t word = record.word.load();
    return {block, M == Mistake::generation_of_word ? generation_of(word) : held_generation(word)};
  }

  void take_over(std::uint32_t block) {
    if constexpr (M == Mistake::all_lowered_first || M == Mistake::no_rescan_mark) {
      if (M == Mistake::all_lowered_first) header_.all.store(0);
      page_.slot(block).store(1);
      if (M == Mistake::no_rescan_mark) header_.all.store(0);
      if (M == Mistake::all_lowered_first) header_.rescan.store(1);
    } else {
      take_over_claims(page_, block + 1, [&](std::uint32_t b) { return b == block ? 1u : 0u; });
    }
  }

 private:
  ClaimPageHeader<Virtual> header_{};
  Page::Slot slots_[2];
  Hints<Virtual>::Word middle_[16];
  Hints<Virtual>::Word leaves_[1];
  Page page_{&header_, slots_, middle_, leaves_};
  Atomic<std::uint32_t> local_count_;
};

/// The owning process: its table under its lock, and the memory of its blocks. A reader of a block must find the
/// generation that it claimed.
template <Mistake M>
class Owner {
 public:
  using PageRef = typename Table<M>::PageRef;
  static constexpr std::uint64_t kScribble = 0xdead;

  Process process;
  bool lend_again = false;  ///< reusable blocks are used at once for a new exported block
  int reused = 0;

  /// A new block with its generation written all over it.
  Handle lend(bool exported = true) {
    const std::uint32_t b = table_.take();
    const std::uint64_t generation = generation_of(records_[b].word.load());
    records_[b].offset = generation;
    memory_[b].store(generation);
    table_.publish(b);
    return {b, exported ? table_.export_block(b) : generation};
  }
  const Record& record(std::uint32_t block) const { return records_[block]; }
  PageRef attach(Borrower<M>& b) { return table_.attach(b.page()); }
  PageRef attach_locked(Borrower<M>& b) {
    mutex_.lock();
    const PageRef page = attach(b);
    mutex_.unlock();
    return page;
  }
  void attach_child(PageRef parent) {
    mutex_.lock();
    table_.attach_child(parent);
    table_.rescan(reuse_);
    mutex_.unlock();
  }
  void detach(PageRef page) {
    mutex_.lock();
    table_.detach(page);
    if (M != Mistake::no_rescan) table_.rescan(reuse_);
    mutex_.unlock();
  }

  void free(std::uint32_t block) {
    if constexpr (M == Mistake::limbo_late) {
      const bool unclaimed = table_.close_and_look(block);
      mutex_.lock();
      table_.settle(block, unclaimed);
      if (unclaimed) reuse_(block);
    } else {
      mutex_.lock();
      if (table_.free_block(block)) reuse_(block);
    }
    mutex_.unlock();
  }
  void drain() {
    mutex_.lock();
    table_.drain(reuse_);
    mutex_.unlock();
  }
  bool still_in_limbo(Handle h) {
    mutex_.lock();
    const bool yes = table_.is_in_limbo(h.block, h.generation);
    mutex_.unlock();
    return yes;
  }
  bool revive(Handle h) {
    mutex_.lock();
    const bool yes = table_.try_revive(h.block, h.generation);
    mutex_.unlock();
    return yes;
  }

  /// A holder's use of the claim.
  void read(Handle h, const char* who) {
    require(memory_[h.block].load() == h.generation, who);
    require(records_[h.block].offset == h.generation, "a record changed under a claim");
  }
  /// Once all is quiet, marks alone must have brought everything home.
  void expect_all_home(int times) {
    drain();
    require(table_.limbo_size() == 0, "stuck in limbo");
    require(reused == times, "reused too often, or never");
  }

 private:
  Lock mutex_;
  Record records_[1]{};
  Atomic<std::uint64_t> memory_[1];
  Table<M> table_{records_, 1};
  std::function<void(std::uint32_t)> reuse_ = [this](std::uint32_t block) {
    memory_[block].store(kScribble);
    ++reused;
    table_.give_back(block);
    if (lend_again) {
      lend_again = false;
      lend();
    }
  };
};

}  // namespace onecopy::explorer
