// SPDX-License-Identifier: Apache-2.0
// A claimer of a dead owner's block against the thread that closes the owner's leases and gives their memory back:
// Leases::try_claim(), release(), try_close() and try_forget(). A visitor's plain stores become visible by
// membarrier(2), as they are here.
#include "explorer/expect.h"

namespace onecopy::explorer {
namespace {

enum class Wrong {
  nothing,
  claimed_without_a_visit,
  released_without_a_visit,
  looked_before_the_visit,
  visitors_before_the_close,
  not_looked_again
};

template <Wrong W>
struct Close : Scenario {
  Process borrower;
  Atomic<int> place;  ///< is the claimer there?
  Atomic<int> closed;
  Atomic<int> slot;
  Atomic<int> memory;  ///< 1: there
  bool holds = false;

  Close() {
    memory.store(1);
    thread("claimer", borrower, [this] { claim(), release(), claim(); });
    thread("closer", borrower, [this] { close(), close(); });
  }

  void touch() { require(memory.load() == 1, "memory that was given back"); }

  void claim() {
    if (W == Wrong::looked_before_the_visit && closed.load() != 0) return;
    if (W != Wrong::claimed_without_a_visit) place.store(1);
    if (W == Wrong::looked_before_the_visit || closed.load() == 0) claim_there();
    place.store(0);
  }
  void claim_there() {
    touch(), slot.fetch_add(1);
    touch();  // the word
    if (closed.load() == 0) holds = true;
    else lower();
  }
  void release() {
    if (!holds) return;
    if (W != Wrong::released_without_a_visit) place.store(1);
    lower();
    place.store(0);
  }
  void lower() {
    holds = false;
    touch(), slot.fetch_sub(1);
    touch();  // the word
  }

  bool try_close() {
    if (slot.load() != 0) return false;
    closed.store(1);
    if (W == Wrong::not_looked_again || slot.load() == 0) return true;
    closed.store(0);
    return false;
  }
  void close() {
    const bool alone = W == Wrong::visitors_before_the_close && place.load() == 0;
    if (closed.load() == 0 && !try_close()) return;
    if (!alone && place.load() != 0) return;
    memory.store(0);
  }
  void finish() override { require(!holds || memory.load() == 1, "memory that is held"); }
};

TEST(VisitExplored, ClaimersThatComeTooLateTouchNothingThatWasGivenBack) {
  expect_always_holds<Close<Wrong::nothing>>();
}
TEST(VisitMustFail, ClaimedWithoutAVisit) {
  expect_broken<Close<Wrong::claimed_without_a_visit>>("memory that was given back");
}
TEST(VisitMustFail, ReleasedWithoutAVisit) {
  expect_broken<Close<Wrong::released_without_a_visit>>("memory that was given back");
}
TEST(VisitMustFail, LookedBeforeTheVisit) {
  expect_broken<Close<Wrong::looked_before_the_visit>>("memory that was given back");
}
TEST(VisitMustFail, VisitorsBeforeTheClose) {
  expect_broken<Close<Wrong::visitors_before_the_close>>("memory that was given back");
}
TEST(VisitMustFail, SlotsNotLookedAtAgain) {
  expect_broken<Close<Wrong::not_looked_again>>("memory that is held");
}

enum class Frozen {
  right,
  looked_before_the_guard,
  readers_before_the_freeze,
  slots_looked_at,
  closed_too_early
};

/// A claimer against the thread that freezes the leases of a dead owner and then closes them: Leases::try_freeze(). A
/// claim raises slot and count; once the leases are frozen, the count alone, for the page with the slots is gone.
template <Frozen W>
struct Freeze : Scenario {
  Process borrower;
  Atomic<int> place;  ///< is the claimer there?
  Atomic<int> frozen;
  Atomic<int> closed;
  Atomic<int> slot;
  Atomic<int> count;
  Atomic<int> page;    ///< 1: there
  Atomic<int> memory;  ///< 1: there
  bool holds = false;

  Freeze() {
    page.store(1);
    memory.store(1);
    thread("claimer", borrower, [this] { claim(), release(), claim(); });
    thread("closer", borrower, [this] { sweep(), sweep(); });
  }

  void touch_slot(int by) {
    require(page.load() == 1, "a page that was given back");
    slot.fetch_add(by);
  }
  void claim() {
    const bool early = W == Frozen::looked_before_the_guard && frozen.load() != 0;
    place.store(1);
    if (closed.load() == 0) claim_there(W == Frozen::looked_before_the_guard ? early : frozen.load() != 0);
    place.store(0);
  }
  void claim_there(bool is_frozen) {
    if (!is_frozen) touch_slot(1);
    else count.fetch_add(1);
    if (closed.load() == 0) {
      if (!is_frozen) count.fetch_add(1);
      holds = true;
    } else if (!is_frozen) touch_slot(-1);
    else count.fetch_sub(1);
  }
  void release() {
    if (!holds) return;
    place.store(1);
    holds = false;
    count.fetch_sub(1);
    if (frozen.load() == 0) touch_slot(-1);
    place.store(0);
  }

  bool try_freeze() {
    const bool alone = W == Frozen::readers_before_the_freeze && place.load() == 0;
    frozen.store(1);
    if (page.load() == 0) return true;
    if (!alone && place.load() != 0) return false;
    page.store(0);
    return true;
  }
  bool any() { return (W == Frozen::slots_looked_at ? slot.load() : count.load()) != 0; }
  void sweep() {
    if (!try_freeze() && W != Frozen::closed_too_early) return;
    if (any()) return;
    closed.store(1);
    if (any()) closed.store(0);
    else if (place.load() == 0) memory.store(0);
  }
  void finish() override { require(!holds || memory.load() == 1, "memory that is held"); }
};

TEST(FreezeExplored, ClaimersNeitherTouchThePageThatWasGivenBackNorLoseTheirLeases) {
  expect_always_holds<Freeze<Frozen::right>>();
}
TEST(FreezeMustFail, LookedBeforeTheGuard) {
  expect_broken<Freeze<Frozen::looked_before_the_guard>>("memory that is held");
}
TEST(FreezeMustFail, ReadersBeforeTheFreeze) {
  expect_broken<Freeze<Frozen::readers_before_the_freeze>>("memory that is held");
}
TEST(FreezeMustFail, SlotsLookedAtOfFrozenLeases) {
  expect_broken<Freeze<Frozen::slots_looked_at>>("memory that is held");
}
TEST(FreezeMustFail, ClosedBeforeTheLastClaimerLeft) {
  expect_broken<Freeze<Frozen::closed_too_early>>("memory that is held");
}

}  // namespace
}  // namespace onecopy::explorer
