// SPDX-License-Identifier: Apache-2.0
// A process dies by SIGKILL at each named point of sharing; the others go on as if it had been polite.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <random>
#include <vector>

#include "conformance/scratch_directory.h"
#include "device/janitor.h"
#include "onecopy/core/error.h"
#include "onecopy/share/bundle.h"
#include "onecopy/share/share.h"
#include "onecopy/share/stats.h"
#include "share/format/process_name.h"
#include "share/runtime/runtime.h"
#include "support/child.h"
#include "support/cuda_streams.h"
#include "support/die_at.h"
#include "support/footprint.h"
#include "support/limits.h"
#include "support/note.h"
#include "support/numbers.h"

namespace onecopy {
namespace {

using testing::Child;
using testing::die_at;
using testing::eventually;
using testing::expect_soon;
using testing::Footprint;
using testing::JoinedChild;
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
  EXPECT_TRUE(eventually([] {
    const Stats now = stats();
    return now.borrowers == 0 && now.limbo == 0 && now.live_blocks == 0;
  }));
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
  JoinedChild owner([&] {
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
}

INSTANTIATE_TEST_SUITE_P(Points, BorrowerDies,
                         ::testing::Values("claim.begin", "claim.slot_raised", "claim.done", "open.claimed",
                                           "open.mapped", "release.begin", "release.slot_lowered",
                                           "release.marked"),
                         point_name);

/// Uses its own tensor while a process dies, and checks that its resources afterwards equal its resources after an
/// orderly end of the owner. `lent` gets the tensor's handle, and step 9 when its owner is dead.
class Survivor {
 public:
  Survivor(Note& lent, std::int64_t seed) : lent_(lent), seed_(seed) {}
  /// It waits for the handle.
  void start() {
    polite_->reach(3);
    EXPECT_EQ(polite_owner_.join(), 0);
  }
  int join() { return child_.join(); }

 private:
  void lend() {
    const Tensor tensor = pattern(1);
    polite_->write(share(tensor).to_text());
    polite_->reach(2);
  }
  void live() {
    // Files of killed processes are looked for now, and not by the watch thread after the first open.
    stats();
    EXPECT_TRUE(
        is_pattern(open(Handle::from_text(polite_->read())), 1));  // by a context, whose files stay open
    polite_->step = 2;
    const Footprint before = Footprint::settled();
    polite_->step = 3;
    EXPECT_TRUE(eventually([&] { return lent_.step >= 1; }));
    hold();
    expect_soon(before);
  }
  void hold() {
    Tensor tensor;
    try {
      if (lent_.text[0] != 0) tensor = open(Handle::from_text(lent_.text));
    } catch (const Error& e) {
      EXPECT_TRUE(e.code() == ErrorCode::owner_died || e.code() == ErrorCode::peer_died) << e.what();
    }
    lent_.reach(9);
    if (tensor) {
      EXPECT_TRUE(is_pattern(tensor, seed_));
    }
  }

  Note& lent_;
  const std::int64_t seed_;
  Shared<Note> polite_;
  Child polite_owner_{[this] { lend(); }};
  Child child_{[this] { live(); }};
};

class OwnerDies : public ::testing::TestWithParam<const char*> {};

TEST_P(OwnerDies, WhatBorrowersHoldStaysAsItIs) {
  Shared<Note> kept;
  Shared<Note> passed;
  Survivor survivor(*kept, 21);
  survivor.start();
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
    int lent = 1;
    kept->step.compare_exchange_strong(lent, 2);  // it may be 9 by now
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
  EXPECT_EQ(survivor.join(), 0);
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
  JoinedChild borrower([&] {
    const Tensor tensor = open(Handle::from_text(note->read()));
    Child child([&] { EXPECT_TRUE(is_pattern(tensor, 41)); });
    EXPECT_EQ(child.join(), 0);
    EXPECT_TRUE(is_pattern(tensor, 41));
  });
  EXPECT_EQ(victim.join(), -SIGKILL);
}

/// Handles of many owners, replaced all the time: a storm's processes find each other by them.
struct Board {
  static constexpr int kPlacesEach = 8;
  static constexpr int kPlaces = 3 * kPlacesEach;
  struct Place {
    std::atomic<std::uint32_t> version;  ///< odd while it is written
    std::atomic<std::int64_t> seed;
    std::atomic<std::uint64_t> bytes[32];
  };
  Place places[kPlaces];
  std::atomic<std::uint64_t> opened, wrong, unexpected;
  std::atomic<std::uint64_t> witnessed;  ///< opened by the one that is never killed
  std::atomic<bool> over;
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

void storm_owner(Board& board, int which, std::uint64_t life, useconds_t pause = 0) {
  std::vector<Tensor> kept(Board::kPlaces);
  for (std::int64_t n = 1; !board.over; ++n) {
    const int at = which * Board::kPlacesEach + static_cast<int>(n % Board::kPlacesEach);
    const auto seed = static_cast<std::int64_t>(life << 32) + n;
    Tensor tensor = pattern(seed);
    const Handle handle = share(tensor);
    post(board.places[at], handle.to_bytes(), seed);
    kept[static_cast<std::size_t>(at)] = std::move(tensor);
    if (pause != 0) usleep(pause);
  }
}

using Held = std::vector<std::pair<Tensor, std::int64_t>>;

void storm_borrow(Board& board, std::mt19937& random, Held& held, std::atomic<std::uint64_t>& opened) {
  Board::Place& place = board.places[random() % Board::kPlaces];
  const std::uint32_t version = place.version;
  const std::int64_t seed = place.seed;
  std::uint64_t words[32];
  for (int i = 0; i < 32; ++i) words[i] = place.bytes[i];
  if (version == 0 || version % 2 == 1 || place.version != version) return;
  try {
    const ByteSpan bytes = std::as_bytes(std::span(words)).first(128 + 16);
    Tensor tensor = open(Handle::from_bytes(bytes));
    ++opened;
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

/// Of the card, as another process sees it: the storm's own memory would stand in the way.
std::size_t free_on_card() {
  if (!is_on_a_real_card()) return 0;
  Shared<std::atomic<std::size_t>> free;
  testing::in_child([&] {
    const testing::CudaCalls cu(0);
    std::size_t bytes = 0, total = 0;
    EXPECT_EQ(cu.cuMemGetInfo(&bytes, &total), testing::CUDA_SUCCESS);
    *free = bytes;
  });
  return *free;
}

/// An owner and a borrower that are never killed. Afterwards they must have the resources of before, when each had
/// already been through the polite end of another process.
class Witnesses {
 public:
  explicit Witnesses(Board& board) : board_(board) {}

  /// Both are in the storm when this returns.
  void start() { first_->reach(4); }
  /// The others have been killed.
  void finish() {
    EXPECT_TRUE(eventually([&] { return board_.witnessed > 0; }));
    board_.over = true;
    EXPECT_EQ(owner_.join(), 0);
    end_->step = 2;
    EXPECT_EQ(borrower_.join(), 0);
  }

 private:
  static constexpr useconds_t kPause = 200;  // they need not be quick, and the others need the processor

  void own() {
    Tensor tensor = pattern(1);
    first_->write(share(tensor).to_text());
    first_->reach(3);  // one borrower has been and gone, the other stays
    tensor.release();
    const Footprint before = Footprint::settled_owner(1);
    const std::uint64_t bytes = stats().bytes_shared;
    first_->step = 4;
    storm_owner(board_, 2, 0, kPause);
    end_->reach(1);
    expect_soon(before);
    EXPECT_TRUE(eventually([&] { return stats().borrowers == 1 && stats().bytes_shared == bytes; }));
  }
  void borrow() {
    stats();  // as above
    polite_->reach(1);
    EXPECT_TRUE(
        is_pattern(open(Handle::from_text(polite_->read())), 1));  // by a context, whose files stay open
    polite_->step = 2;
    const Footprint before = Footprint::settled();
    first_->reach(2);
    open(Handle::from_text(first_->text)).release();
    first_->step = 3;
    std::mt19937 random(0);
    for (Held held; !board_.over; usleep(kPause)) storm_borrow(board_, random, held, board_.witnessed);
    EXPECT_TRUE(eventually([] { return stats().owners <= 1; })) << "the dead are let go of";
    end_->step = 1;
    end_->reach(2);
    expect_soon(before);
  }

  Board& board_;
  Shared<Note> polite_;
  Shared<Note> first_;
  Shared<Note> end_;
  Child owner_{[this] { own(); }};
  Child borrower_{[this] { borrow(); }};
  Child polite_owner_{[this] {
    const Tensor tensor = pattern(1);
    polite_->write(share(tensor).to_text());
    polite_->reach(2);
  }};
  Child polite_borrower_{[this] {
    open(Handle::from_text(first_->read())).release();
    first_->step = 2;
  }};
};

/// Processes that share with each other and are killed at any time.
void storm(int kills, unsigned longest_life) {
  constexpr int kOwners = 2, kBorrowers = 3, kRound = 100;
  Shared<Board> board;
  Witnesses witnesses(*board);
  witnesses.start();
  std::vector<std::unique_ptr<Child>> children(kOwners + kBorrowers);
  std::uint64_t life = 0;
  const auto start = [&](std::size_t which) {
    ++life;
    children[which] = std::make_unique<Child>([&board, which, l = life] {
      if (which < kOwners) return storm_owner(*board, static_cast<int>(which), l);
      std::mt19937 random(static_cast<unsigned>(l));
      for (Held held;;) storm_borrow(*board, random, held, board->opened);
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
    if (kill % kRound == kRound - 1) {
      EXPECT_TRUE(eventually([&] { return board->opened > opened + kRound / 2; })) << "after kill " << kill;
      opened = board->opened;
    }
  }
  children.clear();
  witnesses.finish();
  EXPECT_EQ(board->wrong, 0u);
  EXPECT_EQ(board->unexpected, 0u);
}

TEST(KillStorm, ThousandsOfRandomKillsLeaveNoWrongDataAndNothingBehind) {
  const bool on_host = testing::device() == kCpu;
  const int kills = on_host ? (testing::kSanitized ? 400 : 2000) : 200;
  // Long enough to come to work now and then: a real card's driver takes a second to start, a simulated one less.
  const unsigned longest_life = on_host ? 2000 : is_on_a_real_card() ? 1'000'000 : 10'000;
  const std::size_t free_before = free_on_card();
  const ScratchDirectory files;
  storm(kills, longest_life);
  EXPECT_EQ(files.files(), 0u) << "the default has no names";
  EXPECT_TRUE(eventually([&] { return free_on_card() >= free_before; })) << "memory of the card is lost";
}

/// Each start does it, once the files of killed processes are some seconds old.
void clean_up_later(const std::string& sockets) {
  for (const auto& file : std::filesystem::directory_iterator(sockets)) {
    const timespec long_ago[2] = {{1000, 0}, {1000, 0}};
    ::utimensat(AT_FDCWD, file.path().c_str(), long_ago, 0);
  }
  remove_abandoned_sockets();
  remove_abandoned_files();
}

TEST(StormOfNames, LeavesNoFileAndNoSocketBehind) {
  const ScratchDirectory sockets;
  const ScratchDirectory files;
  std::filesystem::permissions(sockets.path(), std::filesystem::perms::owner_all);
  ::setenv("ONECOPY_RUNTIME_DIR", sockets.path().c_str(), 1);
  set_strategy(Strategy::file_system);
  storm(200, 10'000);
  set_strategy(Strategy::file_descriptor);
  EXPECT_TRUE(eventually([&] {
    clean_up_later(sockets.path());
    return sockets.files() == 0 && files.files() == 0;
  }));
  ::unsetenv("ONECOPY_RUNTIME_DIR");
}

}  // namespace
}  // namespace onecopy
