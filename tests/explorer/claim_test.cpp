// SPDX-License-Identifier: Apache-2.0
#include "explorer/expect.h"
#include "explorer/protocol.h"

namespace onecopy::explorer {
namespace {

constexpr const char* kWrongData = "read memory that was reused";

/// Claims, reads, gives back; or finds the handle stale.
template <Mistake M>
bool use(Owner<M>& owner, Borrower<M>& borrower, Handle h) {
  if (!borrower.claim(owner.record(h.block), h)) return false;
  owner.read(h, kWrongData);
  borrower.release(owner.record(h.block), h.block);
  return true;
}

/// The world of most scenarios: an owner that lends one block and one attached borrower.
template <Mistake M>
struct World : Scenario {
  Owner<M> owner;
  Borrower<M> borrower;
  typename Owner<M>::PageRef page = owner.attach(borrower);
  Handle h = owner.lend();

  void finish() override { owner.expect_all_home(1); }
};

template <Mistake M>
struct TwoThreads : World<M> {
  TwoThreads() {
    thread("user 1", this->borrower.process, [this] { use(this->owner, this->borrower, this->h); });
    thread("user 2", this->borrower.process, [this] { use(this->owner, this->borrower, this->h); });
    thread("freer", this->owner.process, [this] { this->owner.free(this->h.block); });
    thread("drainer", this->owner.process, [this] { this->owner.drain(); });
  }
};

template <Mistake M>
struct OneThread : World<M> {
  OneThread() {
    thread("user", this->borrower.process, [this] { use(this->owner, this->borrower, this->h); });
    thread("freer", this->owner.process, [this] { this->owner.free(this->h.block); });
  }
};

template <Mistake M>
struct ThreeThreads : World<M> {
  ThreeThreads() {
    for (const char* name : {"user 1", "user 2", "user 3"})
      thread(name, this->borrower.process, [this] { use(this->owner, this->borrower, this->h); });
    thread("freer", this->owner.process, [this] { this->owner.free(this->h.block); });
  }
};

/// One thread claims again while another is still at it and the owner drains in between.
template <Mistake M>
struct ClaimedAgain : World<M> {
  ClaimedAgain() {
    thread("user 1", this->borrower.process, [this] { use(this->owner, this->borrower, this->h); });
    thread("user 2", this->borrower.process, [this] {
      use(this->owner, this->borrower, this->h);
      use(this->owner, this->borrower, this->h);
    });
    thread("owner", this->owner.process, [this] {
      this->owner.free(this->h.block);
      this->owner.drain();
    });
  }
};

template <Mistake M>
struct TwoBorrowers : World<M> {
  Borrower<M> other;
  TwoBorrowers() {
    this->owner.attach(other);
    thread("user 1", this->borrower.process, [this] { use(this->owner, this->borrower, this->h); });
    thread("user 2", other.process, [this] { use(this->owner, other, this->h); });
    thread("user 3", other.process, [this] { use(this->owner, other, this->h); });
    thread("freer", this->owner.process, [this] { this->owner.free(this->h.block); });
    thread("drainer", this->owner.process, [this] { this->owner.drain(); });
  }
};

/// The block is lent again, in its next generation, and freed again.
template <Mistake M>
struct Reuse : World<M> {
  Handle next{this->h.block, this->h.generation + 1};
  Reuse() {
    this->owner.lend_again = true;
    thread("old handle", this->borrower.process, [this] { use(this->owner, this->borrower, this->h); });
    thread("new handle", this->borrower.process, [this] { use(this->owner, this->borrower, next); });
    thread("owner", this->owner.process, [this] {
      this->owner.free(this->h.block);
      this->owner.drain();
      if (this->owner.reused == 1) this->owner.free(next.block);
    });
  }
  void finish() override {
    this->owner.drain();
    if (this->owner.reused == 1 && !this->owner.lend_again && !freed_twice()) this->owner.free(next.block);
    this->owner.expect_all_home(2);
  }
  bool freed_twice() const {
    return state_of(this->owner.record(next.block).word.load()) == BlockState::closing;
  }
};

/// A borrower is killed anywhere in its life; its process being gone, the owner detaches it.
template <Mistake M>
struct Killed : World<M> {
  Killed() {
    for (const char* name : {"user 1", "user 2"})
      thread(name, this->borrower.process, [this] { use(this->owner, this->borrower, this->h); });
    thread("killer", this->owner.process, [this] { this->borrower.process.kill(); });
    thread("freer", this->owner.process, [this] {
      this->owner.free(this->h.block);
      this->owner.drain();
    });
    thread("watch", this->owner.process, [this] {
      this->borrower.process.wait_until_gone();
      this->owner.detach(this->page);
    });
  }
};

/// The scenario while another borrower lives on, and its last release meets the detaching.
template <Mistake M>
struct KilledBesideAnother : World<M> {
  Borrower<M> other;
  KilledBesideAnother() {
    this->owner.attach(other);
    thread("victim", this->borrower.process, [this] { use(this->owner, this->borrower, this->h); });
    thread("killer", this->owner.process, [this] { this->borrower.process.kill(); });
    thread("survivor", other.process, [this] { use(this->owner, other, this->h); });
    thread("freer", this->owner.process, [this] { this->owner.free(this->h.block); });
    thread("watch", this->owner.process, [this] {
      this->borrower.process.wait_until_gone();
      this->owner.detach(this->page);
    });
  }
};

/// A block that was never exported is freed without a look at other processes. Another process tries an old or invented
/// handle on the block, also when the block is exported in its next life.
template <Mistake M>
struct NeverExported : Scenario {
  Owner<M> owner;
  Borrower<M> borrower;
  typename Owner<M>::PageRef page = owner.attach(borrower);
  Handle h = owner.lend(false);
  Handle next{h.block, h.generation + 1};
  NeverExported() {
    owner.lend_again = true;
    thread("passer-by", borrower.process,
           [this] { require(!use(owner, borrower, h), "claimed what was never exported"); });
    thread("user", borrower.process, [this] { use(owner, borrower, next); });
    thread("owner", owner.process, [this] {
      owner.free(h.block);
      require(owner.reused == 1, "a block that was never exported had to wait");
      owner.free(next.block);
    });
  }
  void finish() override { owner.expect_all_home(2); }
};

/// A borrower shares on a block that its owner has freed, and holds it until the next one has it.
template <Mistake M>
struct SharedOn : World<M> {
  Borrower<M> second;
  Mailbox to_second{this->borrower.process}, to_first{second.process};
  Handle passed{};
  SharedOn() {
    this->owner.lend_again = true;
    this->owner.attach(second);
    require(this->borrower.claim(this->owner.record(this->h.block), this->h), "set-up");
    thread("owner", this->owner.process, [this] {
      this->owner.free(this->h.block);
      this->owner.drain();
    });
    thread("first", this->borrower.process, [this] {
      passed = this->borrower.name(this->owner.record(this->h.block), this->h.block);
      to_second.send();
      to_first.receive();
      this->borrower.release(this->owner.record(this->h.block), this->h.block);
    });
    thread("second", second.process, [this] {
      to_second.receive();
      const Record& record = this->owner.record(passed.block);
      require(second.claim(record, passed, [this] { return this->owner.still_in_limbo(passed); }),
              "stale although its sender holds it");
      to_first.send();
      this->owner.read({passed.block, this->h.generation}, kWrongData);
      second.release(record, passed.block);
    });
  }
};

/// The scenario with a sender that lets go at once: the handle may be stale, but never another's.
template <Mistake M>
struct SharedOnAndDropped : World<M> {
  Borrower<M> second;
  Mailbox to_second{this->borrower.process};
  Handle passed{};
  SharedOnAndDropped() {
    this->owner.lend_again = true;
    this->owner.attach(second);
    require(this->borrower.claim(this->owner.record(this->h.block), this->h), "set-up");
    thread("owner", this->owner.process, [this] {
      this->owner.free(this->h.block);
      this->owner.drain();
    });
    thread("first", this->borrower.process, [this] {
      passed = this->borrower.name(this->owner.record(this->h.block), this->h.block);
      to_second.send();
      this->borrower.release(this->owner.record(this->h.block), this->h.block);
    });
    thread("second", second.process, [this] {
      to_second.receive();
      const Record& record = this->owner.record(passed.block);
      if (!second.claim(record, passed, [this] { return this->owner.still_in_limbo(passed); })) return;
      this->owner.read({passed.block, this->h.generation}, kWrongData);
      second.release(record, passed.block);
    });
  }
};

/// The owner is killed anywhere in its free and the lending after it; the receiver of a handle that was shared on
/// waits for its end. Frozen memory is then either still the handle's or refused.
template <Mistake M>
struct SharedOnAfterTheOwnersDeath : World<M> {
  Borrower<M> second;
  Mailbox to_second{this->borrower.process};
  SharedOnAfterTheOwnersDeath() {
    this->owner.lend_again = true;
    this->owner.attach(second);
    require(this->borrower.claim(this->owner.record(this->h.block), this->h), "set-up");
    thread("owner", this->owner.process, [this] {
      this->owner.free(this->h.block);
      this->owner.drain();
    });
    thread("killer", second.process, [this] { this->owner.process.kill(); });
    thread("first", this->borrower.process, [this] {
      to_second.send();
      this->borrower.release(this->owner.record(this->h.block), this->h.block);
    });
    thread("second", second.process, [this] {
      to_second.receive();
      const Record& record = this->owner.record(this->h.block);
      const auto ask = [this] { return this->owner.process.wait_until_gone(), true; };
      if (!second.claim(record, this->h, ask)) return;
      this->owner.read(this->h, kWrongData);
      second.release(record, this->h.block);
    });
  }
  void finish() override {}
};

/// A handle comes back to the owner after the owner has freed the block.
template <Mistake M>
struct Revived : World<M> {
  Borrower<M> late;
  Revived() {
    this->owner.attach(late);
    require(this->borrower.claim(this->owner.record(this->h.block), this->h), "set-up");
    thread("owner", this->owner.process, [this] {
      this->owner.free(this->h.block);
      if (!this->owner.revive(this->h)) return;
      this->owner.read(this->h, kWrongData);
      this->owner.free(this->h.block);
    });
    thread("holder", this->borrower.process, [this] {
      this->owner.read(this->h, kWrongData);
      this->borrower.release(this->owner.record(this->h.block), this->h.block);
    });
    thread("late user", late.process, [this] { use(this->owner, late, this->h); });
    thread("drainer", this->owner.process, [this] { this->owner.drain(); });
  }
};

TEST(ClaimExplored, TwoThreadsOfOneBorrower) { expect_always_holds<TwoThreads<Mistake::none>>(); }
TEST(ClaimExplored, OneThreadWithNothingLeftOut) { expect_always_holds<OneThread<Mistake::none>>(false); }
TEST(ClaimExplored, ClaimedAgainWhileClosing) { expect_always_holds<ClaimedAgain<Mistake::none>>(); }
TEST(ClaimExplored, ThreeThreadsOfOneBorrower) { expect_always_holds<ThreeThreads<Mistake::none>>(); }
TEST(ClaimExplored, TwoBorrowers) { expect_always_holds<TwoBorrowers<Mistake::none>>(); }
TEST(ClaimExplored, ReuseForAnotherGeneration) { expect_always_holds<Reuse<Mistake::none>>(); }
TEST(ClaimExplored, BorrowerKilledAnywhere) { expect_always_holds<Killed<Mistake::none>>(); }
TEST(ClaimExplored, BorrowerKilledBesideAnother) {
  expect_always_holds<KilledBesideAnother<Mistake::none>>();
}
TEST(ClaimExplored, NeverExportedIsFreedAtOnce) { expect_always_holds<NeverExported<Mistake::none>>(); }
TEST(ClaimExplored, SharedOnAfterTheOwnersFree) { expect_always_holds<SharedOn<Mistake::none>>(); }
TEST(ClaimExplored, SharedOnAndDroppedIsNeverSomebodyElses) {
  expect_always_holds<SharedOnAndDropped<Mistake::none>>();
}
TEST(ClaimExplored, SharedOnAfterTheOwnersDeath) {
  expect_always_holds<SharedOnAfterTheOwnersDeath<Mistake::none>>();
}
TEST(ClaimExplored, OwnerTakesAFreedBlockBack) { expect_always_holds<Revived<Mistake::none>>(); }

TEST(ClaimMustFail, TheCopyWithoutAMistakeDoesNot) {
  expect_always_holds<TwoThreads<Mistake::copied>>();
  expect_always_holds<Killed<Mistake::copied>>();
}
TEST(ClaimMustFail, LocalCountInFrontOfTheSlot) {
  expect_broken<TwoThreads<Mistake::local_count>>(kWrongData);
}
TEST(ClaimMustFail, WordReadBeforeTheSlotIsRaised) {
  expect_broken<TwoThreads<Mistake::word_before_slot>>(kWrongData);
}
TEST(ClaimMustFail, GenerationNotCompared) { expect_broken<Reuse<Mistake::any_generation>>(kWrongData); }
TEST(ClaimMustFail, FailedClaimWithoutAMark) {
  expect_broken<TwoThreads<Mistake::silent_backing_off>>("stuck in limbo");
}
TEST(ClaimMustFail, ReleaseReadsTheWordBeforeLoweringTheSlot) {
  expect_broken<TwoThreads<Mistake::release_looks_first>>("stuck in limbo");
}
TEST(ClaimMustFail, OwnerAskedBeforeTheSlotIsRaised) {
  expect_broken<SharedOnAndDropped<Mistake::ask_before_slot>>(kWrongData);
}
TEST(ClaimMustFail, SharedOnWithTheGenerationOfAClosingWord) {
  expect_broken<SharedOnAndDropped<Mistake::generation_of_word>>(kWrongData);
}
TEST(ClaimMustFail, DeadOwnersWordNotReadAgain) {
  expect_broken<SharedOnAfterTheOwnersDeath<Mistake::gone_means_yes>>(kWrongData);
}
TEST(ClaimMustFail, SlotsReadBeforeTheClosingStore) {
  expect_broken<TwoThreads<Mistake::scan_before_close>>(kWrongData);
}
TEST(ClaimMustFail, LimboEnteredAfterTheLook) {
  expect_broken<TwoThreads<Mistake::limbo_late>>("stuck in limbo");
}
TEST(ClaimMustFail, MarkTakenAwayAfterTheLook) {
  expect_broken<TwoThreads<Mistake::mark_taken_late>>("stuck in limbo");
}
TEST(ClaimMustFail, DeathWithoutALookAtLimbo) {
  expect_broken<Killed<Mistake::no_rescan>>("stuck in limbo");
}

}  // namespace
}  // namespace onecopy::explorer
