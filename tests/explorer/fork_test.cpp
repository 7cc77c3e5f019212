// SPDX-License-Identifier: Apache-2.0
#include "explorer/expect.h"
#include "explorer/protocol.h"

namespace onecopy::explorer {
namespace {

constexpr const char* kWrongData = "read memory that was reused";

/// A borrower forks: announces, sends the child's page, forks; the child takes over the claims that
/// were copied with it while the parent gives its own back, and the owner frees the block. The
/// owner's broker comes to the page whenever it likes.
template <Mistake M>
struct Fork : Scenario {
  Owner<M> owner;
  Borrower<M> parent;
  Borrower<M> child;
  typename Owner<M>::PageRef page = owner.attach(parent);
  Handle h = owner.lend();
  Mailbox to_owner{parent.process};
  Mailbox forked{parent.process};

  Fork() {
    child.header().all.store(1);
    require(parent.claim(record(), h), "set-up");
  }
  void finish() override { owner.expect_all_home(1); }

  const Record& record() const { return owner.record(h.block); }
  void fork_parent() {
    if (M != Mistake::not_announced) announce_child(parent.page());
    to_owner.send();
    forked.send();
  }
  void use_in_child() {
    child.take_over(h.block);
    owner.read(h, kWrongData);
    child.release(record(), h.block);
  }
  typename Owner<M>::PageRef adopt() {
    if (M == Mistake::child_counted_early) owner.attach_child(page);
    const auto at = owner.attach_locked(child);
    if (M != Mistake::child_counted_early && M != Mistake::not_announced) owner.attach_child(page);
    return at;
  }

  void run_child() {
    thread("child", child.process, [this] {
      if (forked.receive()) use_in_child();
    });
  }
  void run_freer() {
    thread("freer", owner.process, [this] { owner.free(h.block); });
  }
};

template <Mistake M>
struct ParentLetsGo : Fork<M> {
  ParentLetsGo() {
    thread("parent", this->parent.process, [this] {
      this->fork_parent();
      this->parent.release(this->record(), this->h.block);
    });
    this->run_child();
    thread("broker", this->owner.process, [this] {
      if (this->to_owner.receive()) this->adopt();
    });
    this->run_freer();
  }
};

/// The scenario with an owner that drains at the same time.
template <Mistake M>
struct OwnerDrains : ParentLetsGo<M> {
  OwnerDrains() {
    thread("drainer", this->owner.process, [this] { this->owner.drain(); });
  }
};

/// The child inherits nothing, which the owner cannot know: blocks that the owner frees during the fork must be
/// reusable at the end.
template <Mistake M>
struct ChildHoldsNothing : Fork<M> {
  ChildHoldsNothing() {
    this->parent.release(this->record(), this->h.block);
    thread("parent", this->parent.process, [this] { this->fork_parent(); });
    thread("child", this->child.process, [this] {
      if (this->forked.receive()) this->child.take_over(this->h.block + 1);
    });
    thread("broker", this->owner.process, [this] {
      if (this->to_owner.receive()) this->adopt();
    });
    this->run_freer();
  }
};

template <Mistake M>
struct ChildKilled : Fork<M> {
  ChildKilled() {
    thread("parent", this->parent.process, [this] {
      this->fork_parent();
      this->parent.release(this->record(), this->h.block);
    });
    this->run_child();
    thread("killer", this->owner.process, [this] { this->child.process.kill(); });
    thread("broker", this->owner.process, [this] {
      if (!this->to_owner.receive()) return;
      const auto at = this->adopt();
      this->child.process.wait_until_gone();
      this->owner.detach(at);
    });
    this->run_freer();
  }
};

/// The parent is killed anywhere, before or after it has a child. Its messages are read first.
template <Mistake M>
struct ParentKilled : Fork<M> {
  ParentKilled() {
    thread("parent", this->parent.process, [this] {
      this->fork_parent();
      this->parent.release(this->record(), this->h.block);
    });
    this->run_child();
    thread("killer", this->owner.process, [this] { this->parent.process.kill(); });
    thread("broker", this->owner.process, [this] { serve(); });
    this->run_freer();
  }
  void serve() {
    if (M == Mistake::parent_forgotten_first) {
      this->parent.process.wait_until_gone();
      this->owner.detach(this->page);
      if (this->to_owner.receive()) see_out(this->owner.attach_locked(this->child));
      return;
    }
    const bool adopted = this->to_owner.receive();
    typename Owner<M>::PageRef at{};
    if (adopted) at = this->adopt();
    this->parent.process.wait_until_gone();
    this->owner.detach(this->page);
    if (adopted) see_out(at);
  }
  void see_out(typename Owner<M>::PageRef at) {
    this->child.process.wait_until_gone();
    this->owner.detach(at);
  }
};

/// The child forks in its turn, perhaps before the owner knows of it; all three hold the block.
template <Mistake M>
struct Grandchild : Fork<M> {
  Borrower<M> grandchild;
  Mailbox from_child{this->child.process};
  Mailbox forked_again{this->child.process};
  Grandchild() {
    grandchild.header().all.store(1);
    thread("parent", this->parent.process, [this] {
      this->fork_parent();
      this->parent.release(this->record(), this->h.block);
    });
    thread("child", this->child.process, [this] {
      if (!this->forked.receive()) return;
      this->child.take_over(this->h.block);
      announce_child(this->child.page());
      from_child.send();
      forked_again.send();
      this->child.release(this->record(), this->h.block);
    });
    thread("grandchild", grandchild.process, [this] {
      if (!forked_again.receive()) return;
      grandchild.take_over(this->h.block);
      this->owner.read(this->h, kWrongData);
      grandchild.release(this->record(), this->h.block);
    });
    thread("broker", this->owner.process, [this] {
      if (!this->to_owner.receive()) return;
      const auto at = this->adopt();
      if (!from_child.receive()) return;
      this->owner.attach_locked(grandchild);
      this->owner.attach_child(at);
    });
    this->run_freer();
  }
};

TEST(ForkExplored, ParentLetsGoWhileTheChildTakesOver) {
  expect_always_holds<ParentLetsGo<Mistake::none>>();
}
TEST(ForkExplored, OwnerDrainsMeanwhile) { expect_always_holds<OwnerDrains<Mistake::none>>(); }
TEST(ForkExplored, ChildHoldsNothing) { expect_always_holds<ChildHoldsNothing<Mistake::none>>(); }
TEST(ForkExplored, ChildKilledAnywhere) { expect_always_holds<ChildKilled<Mistake::none>>(); }
TEST(ForkExplored, ParentKilledAnywhere) { expect_always_holds<ParentKilled<Mistake::none>>(); }
TEST(ForkExplored, GrandchildBeforeTheChildIsKnown) { expect_always_holds<Grandchild<Mistake::none>>(); }

TEST(ForkMustFail, TheCopyWithoutAMistakeDoesNot) { expect_always_holds<ParentLetsGo<Mistake::copied>>(); }
TEST(ForkMustFail, AllReadAfterTheSlot) {
  expect_broken<ParentLetsGo<Mistake::all_after_slot>>(kWrongData);
}
TEST(ForkMustFail, AnnouncedReadBeforeTheSlot) {
  expect_broken<ParentLetsGo<Mistake::announced_before_slot>>(kWrongData);
}
TEST(ForkMustFail, NotAnnounced) { expect_broken<ParentLetsGo<Mistake::not_announced>>(kWrongData); }
TEST(ForkMustFail, AllLoweredBeforeTheSlotsAreSet) {
  expect_broken<ParentLetsGo<Mistake::all_lowered_first>>(kWrongData);
}
TEST(ForkMustFail, NoLookAskedForWhenAllIsLowered) {
  expect_broken<ChildHoldsNothing<Mistake::no_rescan_mark>>("stuck in limbo");
}
TEST(ForkMustFail, ChildCountedBeforeItsPageIsAttached) {
  expect_broken<ParentLetsGo<Mistake::child_counted_early>>(kWrongData);
}
TEST(ForkMustFail, DeadParentForgottenBeforeItsMessagesAreRead) {
  expect_broken<ParentKilled<Mistake::parent_forgotten_first>>(kWrongData);
}

}  // namespace
}  // namespace onecopy::explorer
