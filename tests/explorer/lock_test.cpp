// SPDX-License-Identifier: Apache-2.0
// The lock between processes: its own code, and the kernel's part when a thread dies.
#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "explorer/expect.h"
#include "os/lock_word.h"

namespace onecopy::explorer {
namespace {

using std::chrono::nanoseconds;

/// A thread as the kernel knows it. Its id may be another thread's once it is gone.
struct Task {
  explicit Task(std::uint32_t given) noexcept : number(given) {}
  std::uint32_t id() const noexcept { return number; }
  void begin(const void*) noexcept { announced.store(1); }
  void end(const void*) noexcept { announced.store(0); }

  std::uint32_t number;
  Process process;
  Atomic<int> announced;
  int slices = 2;  ///< of its sleeps so many may end by themselves
  bool is_dead = false;
};

class FutexWord;
struct Kernel;
Kernel* current_kernel = nullptr;

/// The kernel of one execution.
struct Kernel {
  Kernel() noexcept { current_kernel = this; }

  FutexWord* word = nullptr;
  Atomic<int> exists[4];    ///< by thread id
  bool slices_end = false;  ///< do sleeps end by themselves?
  const Task* inside =
      nullptr;  ///< has the lock: from the step that takes it to the step that gives it back
};

/// A 64-bit word, and the threads asleep on its lower half. Each operation is one step, as it is in the kernel.
class FutexWord {
 public:
  FutexWord() noexcept { current_kernel->word = this; }
  std::uint64_t load() const noexcept { return step(Kind::read, id_), value_; }
  std::uint64_t exchange(std::uint64_t value) noexcept {
    step(Kind::write, id_);
    current_kernel->inside = nullptr;
    return std::exchange(value_, value);
  }
  bool compare_exchange_strong(std::uint64_t& seen, std::uint64_t value) noexcept {
    step(Kind::write, id_);
    if (value_ == seen) return value_ = value, true;
    return seen = value_, false;
  }

  /// False: not woken.
  bool wait(Task& me, std::uint32_t seen) {
    step(Kind::write, id_);
    if (static_cast<std::uint32_t>(value_) != seen) return true;
    sleepers_.push_back(&me);
    const std::function<bool()> over = [&] {
      return !is_asleep(me) || (current_kernel->slices_end && me.slices > 0);
    };
    step(Kind::write, id_, &over);
    if (std::erase(sleepers_, &me) == 0) return true;
    --me.slices;
    return false;
  }
  void wake_one() {
    step(Kind::write, id_);
    wake_first();
  }

  /// A thread that is killed before it sleeps.
  void mark_waiters() {
    step(Kind::write, id_);
    value_ |= 0x80000000;
  }

  /// Linux's treatment of an announced word (handle_futex_death).
  void bury(const Task& dead, bool is_announced) {
    step(Kind::write, id_);
    std::erase(sleepers_, &dead);
    const std::uint64_t holder = value_ & 0x3fffffff;
    if (!is_announced || (holder != 0 && holder != dead.number)) return;
    const bool has_waiters = (value_ & 0x80000000) != 0;
    if (holder != 0) value_ = (value_ & ~0x7fffffffULL) | 0x40000000;
    if (holder == 0 || has_waiters) wake_first();
  }

 private:
  bool is_asleep(const Task& task) const {
    return std::find(sleepers_.begin(), sleepers_.end(), &task) != sleepers_.end();
  }
  void wake_first() {
    if (!sleepers_.empty()) sleepers_.erase(sleepers_.begin());
  }

  ObjectId id_ = new_object();
  std::uint64_t value_ = 0;
  std::vector<const Task*> sleepers_;
};

struct Machine {
  using Word = FutexWord;
  using Thread = Task;
  static bool wait(Task& me, Word& word, std::uint32_t seen, nanoseconds) { return word.wait(me, seen); }
  static void wake_one(Word& word) { word.wake_one(); }
  static bool exists(std::uint32_t id) { return current_kernel->exists[id].load() != 0; }
};

enum class Mistake {
  none,
  copied,             ///< the wrong lock without a mistake: the others fail for their mistakes only
  announced_late,     ///< taken, then announced
  ended_early,        ///< no longer announced, then freed
  waiters_forgotten,  ///< taken after a sleep as if no other thread were asleep
  no_generation,      ///< a dead holder's lock is taken over by its id alone
};

/// LockWord once more, as short as it can be, with places for mistakes.
template <Mistake M>
class WrongWord {
 public:
  bool try_lock(Task& me) {
    std::uint64_t seen = word_.load();
    if (!is_free(seen)) return false;
    if (M != Mistake::announced_late) me.begin(this);
    const bool locked = try_take(seen, me.id());
    if (M == Mistake::announced_late) me.begin(this);
    if (!locked) me.end(this);
    return locked;
  }
  template <class Slice>
  bool lock(Task& me, Slice&&) {
    if (M != Mistake::announced_late) me.begin(this);
    std::uint64_t holder = me.id();
    std::uint64_t seen = word_.load();
    while (!try_take(seen, holder)) {
      if ((seen & kWaiters) == 0 && !word_.compare_exchange_strong(seen, seen | kWaiters)) continue;
      seen |= kWaiters;
      if (M != Mistake::waiters_forgotten) holder = me.id() | kWaiters;
      const bool was_woken = Machine::wait(me, word_, static_cast<std::uint32_t>(seen), {});
      if (!was_woken && !Machine::exists(static_cast<std::uint32_t>(seen & kHolder)) &&
          word_.compare_exchange_strong(seen, next(seen) | holder))
        break;
      seen = word_.load();
    }
    if (M == Mistake::announced_late) me.begin(this);
    return true;
  }
  void unlock(Task& me) {
    if (M == Mistake::ended_early) me.end(this);
    const std::uint64_t before = word_.exchange(word_.load() & ~0xffffffffULL);
    if ((before & kWaiters) != 0) word_.wake_one();
    me.end(this);
  }

 private:
  static constexpr std::uint64_t kHolder = 0x3fffffff;
  static constexpr std::uint64_t kWaiters = 0x80000000;

  static bool is_free(std::uint64_t seen) { return (seen & kHolder) == 0; }
  bool try_take(std::uint64_t& seen, std::uint64_t holder) {
    while (is_free(seen))
      if (word_.compare_exchange_strong(seen, next(seen) | (seen & kWaiters) | holder)) return true;
    return false;
  }
  static std::uint64_t next(std::uint64_t seen) {
    return M == Mistake::no_generation ? 0 : (seen & ~0xffffffffULL) + (1ULL << 32);
  }

  FutexWord word_;
};

template <Mistake M>
using LockUnderTest = std::conditional_t<M == Mistake::none, LockWord<Machine>, WrongWord<M>>;

/// Tasks that take the lock, and their conditions then.
template <Mistake M>
struct Contest : Scenario {
  Kernel kernel;
  LockUnderTest<M> lock;
  Task a{1}, b{2}, c{3};
  bool has_slices = false;  ///< after a death

  Contest() {
    for (auto& exists : kernel.exists) exists.store(1);
  }
  void take(Task& me) {
    if (!lock.try_lock(me)) lock.lock(me, [] { return nanoseconds(1); });
    enter(me);
  }
  void enter(Task& me) {
    require(!kernel.inside || kernel.inside->is_dead, "two holders at once");
    kernel.inside = &me;
  }
  void give(Task& me) { lock.unlock(me); }
  void use(Task& me) {
    take(me);
    give(me);
  }
  void use_if_free(Task& me) {
    if (!lock.try_lock(me)) return;
    enter(me);
    give(me);
  }
  void wait_and_use(Task& me) {
    lock.lock(me, [] { return nanoseconds(1); });
    enter(me);
    give(me);
  }
  void kill(Task& task) {
    task.process.kill();
    task.is_dead = true;
    kernel.word->bury(task, task.announced.load() != 0);
    kernel.exists[task.id()].store(0);
    kernel.slices_end = has_slices;
  }
  void finish() override { use(a.is_dead ? c : a); }
};

template <Mistake M>
struct OneOfThemTwice : Contest<M> {
  OneOfThemTwice() {
    thread("a", this->a.process, [this] { this->use(this->a), this->use(this->a); });
    thread("b", this->b.process, [this] { this->use(this->b); });
  }
};

/// A is inside when the others come.
template <Mistake M>
struct TwoWaiters : Contest<M> {
  TwoWaiters() {
    this->take(this->a);
    thread("a", this->a.process, [this] { this->give(this->a); });
    thread("b", this->b.process, [this] { this->use(this->b); });
    thread("c", this->c.process, [this] { this->use(this->c); });
  }
};

template <Mistake M>
struct OneIsKilled : Contest<M> {
  Process killer;
  OneIsKilled() {
    thread("a", this->a.process, [this] { this->use(this->a); });
    thread("b", this->b.process, [this] { this->use(this->b); });
    thread("kernel", killer, [this] { this->kill(this->a); });
  }
};

template <Mistake M>
struct TheHolderIsKilled : Contest<M> {
  Process killer;
  TheHolderIsKilled() {
    this->take(this->a);
    thread("b", this->b.process, [this] { this->wait_and_use(this->b); });
    thread("c", this->c.process, [this] { this->wait_and_use(this->c); });
    thread("kernel", killer, [this] { this->kill(this->a); });
  }
};

/// After a has given the lock back and before it wakes b, c takes the lock: the kernel wakes no thread then, and the
/// end of b's slice must do.
template <Mistake M>
struct KilledBeforeTheWake : Contest<M> {
  Process killer;
  KilledBeforeTheWake() {
    this->has_slices = true;
    this->take(this->a);
    thread("a", this->a.process, [this] { this->give(this->a); });
    thread("b", this->b.process, [this] { this->wait_and_use(this->b); });
    thread("c", this->c.process, [this] { this->use_if_free(this->c); });
    thread("kernel", killer, [this] { this->kill(this->a); });
  }
};

/// A died as the holder, and the kernel knew nothing of the lock. The others find out by themselves.
template <Mistake M>
struct TwoHeirs : Contest<M> {
  TwoHeirs() {
    this->take(this->a);
    this->a.announced.store(0);
    this->a.is_dead = true;
    this->kernel.exists[1].store(0);
    this->kernel.slices_end = true;
    this->b.slices = this->c.slices = 1;
    thread("b", this->b.process, [this] { this->wait_and_use(this->b); });
    thread("c", this->c.process, [this] { this->then(); });
  }
  virtual void then() { this->wait_and_use(this->c); }
  void finish() override { this->use(this->b); }
};

/// After the one heir a new thread has the dead one's id, the lock, and a waiter: the word reads as it did when the
/// other heir looked at it, but for the generation.
template <Mistake M>
struct AnHeirAndANamesake : TwoHeirs<M> {
  Task new_a{1};
  void then() override {
    this->wait_and_use(this->c);
    this->kernel.exists[1].store(1);
    if (!this->lock.try_lock(new_a)) return;
    this->enter(new_a);
    this->kernel.word->mark_waiters();
    this->give(new_a);
  }
};

TEST(LockExplored, TwoTakeTurns) { expect_always_holds<OneOfThemTwice<Mistake::none>>(); }
TEST(LockExplored, EveryWaiterIsWoken) { expect_always_holds<TwoWaiters<Mistake::none>>(); }
TEST(LockExplored, ADeathAtAnyStepLeavesALockForTheOther) {
  expect_always_holds<OneIsKilled<Mistake::none>>();
}
TEST(LockExplored, TwoWaitersOutliveTheHolder) { expect_always_holds<TheHolderIsKilled<Mistake::none>>(); }
TEST(LockExplored, AWaiterThatNobodyWakesGoesOnAfterItsSlice) {
  expect_always_holds<KilledBeforeTheWake<Mistake::none>>();
}
TEST(LockExplored, OneOfTwoTakesOverFromAHolderThatTheKernelDidNotKnow) {
  expect_always_holds<TwoHeirs<Mistake::none>>();
}
TEST(LockExplored, ALaterThreadOfTheSameIdLosesNothingToAnHeir) {
  expect_always_holds<AnHeirAndANamesake<Mistake::none>>();
}

TEST(LockMustFail, NotForTheCopyWithoutAMistake) {
  expect_always_holds<TwoWaiters<Mistake::copied>>();
  expect_always_holds<OneIsKilled<Mistake::copied>>();
  expect_always_holds<AnHeirAndANamesake<Mistake::copied>>();
}
TEST(LockMustFail, AnnouncedAfterItIsTaken) {
  expect_broken<OneIsKilled<Mistake::announced_late>>("waits for ever");
}
TEST(LockMustFail, NoLongerAnnouncedBeforeItIsFree) {
  expect_broken<OneIsKilled<Mistake::ended_early>>("waits for ever");
}
TEST(LockMustFail, TakenAfterASleepAsIfNobodyElseSlept) {
  expect_broken<TwoWaiters<Mistake::waiters_forgotten>>("waits for ever");
}
TEST(LockMustFail, TakenOverByTheIdAlone) {
  expect_broken<AnHeirAndANamesake<Mistake::no_generation>>("two holders at once");
}

}  // namespace
}  // namespace onecopy::explorer
