// SPDX-License-Identifier: Apache-2.0
#include <vector>

#include "explorer/expect.h"
#include "share/owner/claim.h"

namespace onecopy::explorer {
namespace {

using Word = Hints<Virtual>::Word;

/// Marks from the top down: a taker between two levels sees a bit whose leaf is not there yet.
struct MarksTopDown {
  Word* top;
  Word* middle;
  Word* leaves;
  void mark(std::uint32_t block) {
    top->fetch_or(1ull << (block >> 16 & 63));
    middle[block >> 12].fetch_or(1ull << (block >> 6 & 63));
    leaves[block >> 6].fetch_or(1ull << (block & 63));
  }
  template <class F>
  void take(F&& visit) {
    Hints<Virtual>(top, middle, leaves).take(visit);
  }
};

/// Takes from the bottom up (what all the tests of it need: the leaves of the first middle word).
struct TakesBottomUp {
  Word* top;
  Word* middle;
  Word* leaves;
  void mark(std::uint32_t block) { Hints<Virtual>(top, middle, leaves).mark(block); }
  template <class F>
  void take(F&& visit) {
    if (top->load() == 0) return;
    for (std::uint32_t leaf = 0; leaf < 2; ++leaf)
      for (std::uint64_t bits = leaves[leaf].exchange(0); bits != 0; bits &= bits - 1)
        visit(leaf * 64 + static_cast<std::uint32_t>(__builtin_ctzll(bits)));
    middle[0].exchange(0);
    top->exchange(0);
  }
};

/// The scenario of two releases, of blocks A and B, which each lower a slot and leave a mark, and a drainer. Each block
/// must be looked at once more after its slot has come down.
template <class H, std::uint32_t A, std::uint32_t B>
struct Marks : Scenario {
  Process borrower, owner;
  Word top;
  std::vector<Word> middle = std::vector<Word>((B >> 16) * 16 + 16);
  std::vector<Word> leaves = std::vector<Word>((B >> 6) + 2);
  H hints{&top, middle.data(), leaves.data()};
  Atomic<int> slot_a, slot_b;
  bool done_a = false, done_b = false;

  Marks() {
    slot_a.store(A == B ? 2 : 1);
    slot_b.store(1);
    thread("marker a", borrower, [this] { release(A); });
    thread("marker b", borrower, [this] { release(B); });
    thread("drainer", owner, [this] { look(), look(); });
  }
  void release(std::uint32_t block) {
    (block == A ? slot_a : slot_b).fetch_sub(1);
    hints.mark(block);
  }
  void look() {
    hints.take([this](std::uint32_t block) {
      require(block == A || block == B, "a mark that nobody left");
      (block == A ? done_a : done_b) |= (block == A ? slot_a : slot_b).load() == 0;
    });
  }
  void finish() override {
    look();
    require(done_a && (A == B || done_b), "a lost mark");
  }
};

template <std::uint32_t A, std::uint32_t B>
using Real = Marks<Hints<Virtual>, A, B>;

TEST(HintsExplored, TwoMarksOfOneBlock) { expect_always_holds<Real<3, 3>>(); }
TEST(HintsExplored, TwoMarksInOneLeaf) { expect_always_holds<Real<3, 5>>(); }
TEST(HintsExplored, TwoLeavesUnderOneMiddleWord) { expect_always_holds<Real<3, 64>>(); }
TEST(HintsExplored, TwoMiddleWordsUnderOneTopBit) { expect_always_holds<Real<3, 4096>>(); }
TEST(HintsExplored, TwoTopBits) { expect_always_holds<Real<3, 65536>>(); }

TEST(HintsMustFail, MarkedTopDown) { expect_broken<Marks<MarksTopDown, 3, 5>>("a lost mark"); }
TEST(HintsMustFail, TakenBottomUp) { expect_broken<Marks<TakesBottomUp, 3, 64>>("a lost mark"); }

}  // namespace
}  // namespace onecopy::explorer
