// SPDX-License-Identifier: Apache-2.0
// A process dies by SIGKILL at each named point of sharing; the others go on as if it had been polite.
#include <gtest/gtest.h>
#include <unistd.h>

#include <random>
#include <vector>

#include "onecopy/core/error.h"
#include "onecopy/share/bundle.h"
#include "onecopy/share/share.h"
#include "onecopy/share/stats.h"
#include "share/process.h"
#include "support/child.h"
#include "support/cuda_streams.h"
#include "support/die_at.h"
#include "support/limits.h"
#include "support/note.h"
#include "support/numbers.h"

namespace onecopy {
namespace {

using testing::Child;
using testing::die_at;
using testing::eventually;
using testing::Note;
using testing::Shared;

constexpr std::int64_t kCount = 4096;

using Content = std::vector<std::int64_t>;

Tensor pattern(std::int64_t seed) {
  Tensor tensor = empty(Layout(DType::i64, {kCount}), testing::device());
  const Content content(kCount, seed);
  copy_bytes_and_wait({tensor.data(), tensor.device(), content.data(), kCpu, tensor.nbytes()});
  return tensor;
}

bool is_pattern(const Tensor& tensor, std::int64_t seed) {
  Content content(kCount);
  copy_bytes_and_wait({content.data(), kCpu, tensor.data(), tensor.device(), tensor.nbytes()});
  return content == Content(kCount, seed);
}

/// Nothing is left of any borrower, and the memory is ours again.
void expect_all_back() {
  EXPECT_TRUE(eventually([] { return stats().borrowers == 0 && stats().limbo == 0; }));
  EXPECT_EQ(stats().live_blocks, 0u);
}

std::string point_name(const ::testing::TestParamInfo<const char*>& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '.', '_');
  return name;
}

class BorrowerDies : public ::testing::TestWithParam<const char*> {};

TEST_P(BorrowerDies, TheOwnerAndOtherBorrowersGoOn) {
  Shared<Note> note;
  Shared<Note> story;  // of the owner: this process forks, so it uses no device
  Child victim([&] {
    const std::string text = note->read();
    die_at(GetParam());
    Tensor tensor = open(Handle::from_text(text));
    note->step = 2;
    note->reach(3);  // the owner has let go
    Tensor copy_of_it = tensor;
    copy_of_it.release();
    tensor.release();
  });
  Child owner([&] {
    {
      const Tensor tensor = pattern(11);
      note->write(share(tensor).to_text());
      story->reach(1);
    }
    note->step = 3;
    story->reach(2);
    for (int i = 0; i < 10; ++i) EXPECT_TRUE(is_pattern(pattern(i), i));
    expect_all_back();
  });
  EXPECT_TRUE(eventually([&] { return note->step == 2 || victim.has_ended(); }));
  Child other([&] { EXPECT_TRUE(is_pattern(open(Handle::from_text(note->read())), 11)); });
  EXPECT_EQ(other.join(), 0);
  story->step = 1;
  EXPECT_EQ(victim.join(), -SIGKILL) << "the point was not reached";
  story->step = 2;
  EXPECT_EQ(owner.join(), 0);
}

INSTANTIATE_TEST_SUITE_P(Points, BorrowerDies,
                         ::testing::Values("claim.begin", "claim.slot_raised", "claim.done", "open.claimed",
                                           "open.mapped", "release.begin", "release.slot_lowered",
                                           "release.marked"),
                         point_name);

class OwnerDies : public ::testing::TestWithParam<const char*> {};

TEST_P(OwnerDies, WhatBorrowersHoldStaysAsItIs) {
  Shared<Note> kept;
  Shared<Note> passed;
  Child victim([&] {
    die_at(GetParam());
    const Tensor mine = pattern(21);
    kept->write(share(mine).to_text());
    Tensor short_lived = pattern(22);
    passed->write(share(short_lived).to_text());
    kept->reach(2);
    short_lived.release();  // the borrower holds it: limbo
    passed->step = 2;
    Tensor revived = open(Handle::from_text(passed->read(3)));
    revived.release();
    passed->step = 4;
    EXPECT_TRUE(eventually([] { return stats().limbo == 0; }));
    passed->step = 5;
    EXPECT_TRUE(eventually([] { return stats().borrowers == 0; }));
  });
  Child borrower([&] {
    const auto victim_ended = [&] { return kept->step == 9; };
    const auto wait_for = [&](Note& note, int step) {
      EXPECT_TRUE(eventually([&] { return note.step >= step || victim_ended(); }));
      return !victim_ended();
    };
    Tensor a, b;
    try {
      if (wait_for(*kept, 1)) a = open(Handle::from_text(kept->text));
      if (wait_for(*passed, 1)) b = open(Handle::from_text(passed->text));
    } catch (const Error& e) {
      EXPECT_TRUE(e.code() == ErrorCode::owner_died || e.code() == ErrorCode::peer_died) << e.what();
    }
    if (kept->step < 2) kept->step = 2;
    if (wait_for(*passed, 2) && b) passed->write(share(b).to_text(), 3);
    wait_for(*passed, 4);
    if (a) {
      EXPECT_TRUE(is_pattern(a, 21));
    }
    if (b) {
      EXPECT_TRUE(is_pattern(b, 22));
    }
    b.release();
    a.release();
    wait_for(*passed, 5);
  });
  EXPECT_EQ(victim.join(), -SIGKILL) << "the point was not reached";
  kept->step = 9;
  EXPECT_EQ(borrower.join(), 0);
}

INSTANTIATE_TEST_SUITE_P(Points, OwnerDies,
                         ::testing::Values("export.stored", "attach.done", "free.in_limbo", "free.closing",
                                           "revive.stored", "drain.taken", "free.nobody", "free.reusable",
                                           "detach.done"),
                         point_name);

class ForkingBorrowerDies : public ::testing::TestWithParam<const char*> {};

TEST_P(ForkingBorrowerDies, TheOwnerGetsEverythingBack) {
  Shared<Note> note;
  Child victim([&] {
    Tensor tensor = open(Handle::from_text(note->read()));
    die_at(GetParam());
    Child grandchild([&] { EXPECT_TRUE(is_pattern(tensor, 31)); });
    const int end = grandchild.join();
    if (end == -SIGKILL) std::raise(SIGKILL);  // the point lay in the grandchild
  });
  Tensor tensor = pattern(31);
  note->write(share(tensor).to_text());
  EXPECT_EQ(victim.join(), -SIGKILL) << "the point was not reached";
  EXPECT_TRUE(is_pattern(tensor, 31));
  tensor.release();
  expect_all_back();
}

INSTANTIATE_TEST_SUITE_P(Points, ForkingBorrowerDies,
                         ::testing::Values("fork.announced", "fork.page_sent", "fork.slots_set",
                                           "fork.all_lowered"),
                         point_name);

TEST(OwnerDies, WhileItAdoptsAForkedChild) {
  Shared<Note> note;
  Child victim([&] {
    const Tensor tensor = pattern(41);
    die_at("adopt.attached");
    note->write(share(tensor).to_text());
    pause();
  });
  Child borrower([&] {
    const Tensor tensor = open(Handle::from_text(note->read()));
    Child child([&] { EXPECT_TRUE(is_pattern(tensor, 41)); });
    EXPECT_EQ(child.join(), 0);
    EXPECT_TRUE(is_pattern(tensor, 41));
  });
  EXPECT_EQ(victim.join(), -SIGKILL);
  EXPECT_EQ(borrower.join(), 0);
}

/// Handles of many owners, replaced all the time: what a storm's processes find each other by.
struct Board {
  static constexpr int kPlaces = 16;
  struct Place {
    std::atomic<std::uint32_t> version;  ///< odd while it is written
    std::atomic<std::int64_t> seed;
    std::atomic<std::uint64_t> bytes[32];
  };
  Place places[kPlaces];
  std::atomic<std::uint64_t> opened, wrong, unexpected;
};

void post(Board::Place& place, const Bytes& handle, std::int64_t seed) {
  std::uint32_t version = place.version.load();
  if (version % 2 == 1) version += 1;  // its writer was killed
  place.version = version + 1;
  place.seed = seed;
  std::uint64_t words[32] = {};
  std::memcpy(words, handle.data(), handle.size());
  for (int i = 0; i < 32; ++i) place.bytes[i] = words[i];
  place.version = version + 2;
}

void storm_owner(Board& board, int first, std::uint64_t life) {
  std::vector<Tensor> kept(Board::kPlaces);
  for (std::int64_t n = 1;; ++n) {
    const int at = first + static_cast<int>(n % (Board::kPlaces / 2));
    const auto seed = static_cast<std::int64_t>(life << 32) + n;
    Tensor tensor = pattern(seed);
    const Handle handle = share(tensor);
    post(board.places[at], handle.to_bytes(), seed);
    kept[static_cast<std::size_t>(at)] = std::move(tensor);
  }
}

void storm_borrow(Board& board, std::mt19937& random, std::vector<std::pair<Tensor, std::int64_t>>& held) {
  Board::Place& place = board.places[random() % Board::kPlaces];
  const std::uint32_t version = place.version;
  const std::int64_t seed = place.seed;
  std::uint64_t words[32];
  for (int i = 0; i < 32; ++i) words[i] = place.bytes[i];
  if (version == 0 || version % 2 == 1 || place.version != version) return;
  try {
    const ByteSpan bytes = std::as_bytes(std::span(words)).first(128 + 16);
    Tensor tensor = open(Handle::from_bytes(bytes));
    ++board.opened;
    if (held.size() < 8) held.emplace_back();
    auto& slot = held[random() % held.size()];
    if (slot.first && !is_pattern(slot.first, slot.second)) ++board.wrong;
    if (!is_pattern(tensor, seed)) ++board.wrong;
    slot = {std::move(tensor), seed};
  } catch (const Error& e) {
    if (e.code() != ErrorCode::stale_handle && e.code() != ErrorCode::owner_died) {
      ++board.unexpected;
      std::fprintf(stderr, "storm: %s: %s\n", name(e.code()), e.what());
    }
  }
}

bool is_on_a_real_card() { return testing::device().type == DeviceType::cuda && !testing::is_simulated(); }

/// Of the card, as another process sees it: the storm's own would stand in the way of what is to be seen.
std::size_t free_on_card() {
  if (!is_on_a_real_card()) return 0;
  Shared<std::atomic<std::size_t>> free;
  testing::in_child([&] {
    const testing::CudaCalls cu;
    cu.use(0);
    std::size_t bytes = 0, total = 0;
    EXPECT_EQ(cu.cuMemGetInfo(&bytes, &total), testing::CUDA_SUCCESS);
    *free = bytes;
  });
  return *free;
}

TEST(KillStorm, ThousandsOfRandomKillsLeaveNoWrongDataAndNoHang) {
  constexpr int kOwners = 2, kBorrowers = 3;
  const bool on_host = testing::device() == kCpu;
  const int kills = on_host ? (testing::kSanitized ? 400 : 2000) : 200;
  // Long enough to come to work now and then: a real card's driver takes a second to start, a simulated one less.
  const unsigned longest_life = on_host ? 2000 : is_on_a_real_card() ? 1'000'000 : 10'000;
  const std::size_t free_before = free_on_card();
  Shared<Board> board;
  std::vector<std::unique_ptr<Child>> children(kOwners + kBorrowers);
  std::uint64_t life = 0;
  const auto start = [&](std::size_t which) {
    ++life;
    children[which] = std::make_unique<Child>([&board, which, l = life] {
      if (which < kOwners) return storm_owner(*board, static_cast<int>(which) * Board::kPlaces / 2, l);
      std::mt19937 random(static_cast<unsigned>(l));
      std::vector<std::pair<Tensor, std::int64_t>> held;
      for (;;) storm_borrow(*board, random, held);
    });
  };
  for (std::size_t i = 0; i < children.size(); ++i) start(i);
  std::mt19937 random(1);
  std::uint64_t opened = 0;
  for (int kill = 0; kill < kills; ++kill) {
    usleep(static_cast<useconds_t>(random() % longest_life));
    const std::size_t which = random() % children.size();
    children[which]->kill();
    start(which);
    if (kill % 200 == 199) {
      EXPECT_TRUE(eventually([&] { return board->opened > opened; })) << "after kill " << kill;
      opened = board->opened;
    }
  }
  children.clear();
  EXPECT_EQ(board->wrong, 0u);
  EXPECT_EQ(board->unexpected, 0u);
  EXPECT_GT(board->opened, static_cast<std::uint64_t>(kills) / 2);
  EXPECT_TRUE(eventually([&] { return free_on_card() >= free_before; })) << "memory of the card is lost";
}

}  // namespace
}  // namespace onecopy
