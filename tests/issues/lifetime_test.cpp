// SPDX-License-Identifier: Apache-2.0
// "Producer process has been terminated before all shared CUDA tensors released" (Vox-Fusion#6,
// Leopard-EM#72), counters that never return to 0 (pytorch#149187, #145703, vllm#51258), a failed
// import that leaks a reference (pytorch PR#193994), "tried to deallocate over 1000 memory blocks"
// (pytorch#118859), and "Attempted to send CUDA tensor received from another process" (pytorch#134755).
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <random>

#include "onecopy/share/bundle.h"
#include "onecopy/share/share.h"
#include "onecopy/share/stats.h"
#include "support/child.h"
#include "support/footprint.h"
#include "support/note.h"
#include "support/refusal.h"

namespace onecopy {
namespace {

using namespace testing;

Tensor numbered(std::int64_t value) {
  Tensor tensor = empty(Layout(DType::i64, {64}));
  for (int i = 0; i < 64; ++i) tensor.as<std::int64_t>()[i] = value;
  return tensor;
}

TEST(OwnerExitsFirst, IsLegalAndBorrowersKeepAndPassOnWhatTheyHave) {
  Shared<Note> note;
  Shared<Note> on;
  Child owner([&] {
    const Tensor tensor = numbered(5);
    note->write(share(tensor).to_text());
    note->reach(2);
  });
  JoinedChild borrower([&] {
    const Tensor tensor = open(Handle::from_text(note->read()));
    note->step = 2;
    note->reach(3);
    EXPECT_EQ(tensor.as<std::int64_t>()[63], 5);
    on->write(share(tensor).to_text());
    on->reach(2);
  });
  EXPECT_EQ(owner.join(), 0);
  note->step = 3;
  EXPECT_EQ(open(Handle::from_text(on->read())).as<std::int64_t>()[63], 5);
  on->step = 2;
}

/// Openers that release, fail, die, fork and pass on; after each of these the owner's books close at 0.
TEST(Counters, ReturnToZeroWhateverTheBorrowersDid) {
  Shared<Note> note;
  Child owner([&] {
    std::vector<NamedTensor> tensors;
    for (int i = 0; i < 200; ++i) tensors.emplace_back(std::to_string(i), numbered(i));
    Handle handle = share_bundle(tensors);
    note->write(handle.to_text());
    note->reach(2);
    tensors.clear();
    handle = Handle();
    EXPECT_TRUE(eventually([] {
      const Stats now = stats();
      return now.borrowers == 0 && now.limbo == 0 && now.live_blocks == 0 && now.live_bytes == 0 &&
             now.in_transit == 0;
    }));
  });
  const std::string text = note->read();
  for (int life = 0; life < 12; ++life) {
    Child borrower([&] {
      const Bundle bundle = Bundle::open(Handle::from_text(text));
      std::vector<Tensor> held;
      std::mt19937 random(static_cast<unsigned>(life));
      for (int i = 0; i < 300; ++i) {
        held.push_back(bundle.tensor(random() % bundle.size()));
        held.push_back(held[random() % held.size()]);
        if (held.size() > 100) held.erase(held.begin(), held.begin() + 50);
      }
      HandleFields wrong = share(held.back()).fields();
      wrong.storage_size = wrong.segment_size;
      const std::uint64_t leases = stats().leases;
      for (int i = 0; i < 10; ++i) EXPECT_THROW(open(Handle::from_bytes(encode(wrong))), Error);
      EXPECT_EQ(stats().leases, leases) << "a failed open must not leave a claim";
      if (life % 3 == 1) ::kill(::getpid(), SIGKILL);
      if (life % 3 == 2) {
        JoinedChild forked(
            [&] { EXPECT_EQ(held[0].as<std::int64_t>()[0], held[0].as<std::int64_t>()[63]); });
        held.clear();
      }
    });
    EXPECT_EQ(borrower.join(), life % 3 == 1 ? -SIGKILL : 0);
  }
  note->step = 2;
  EXPECT_EQ(owner.join(), 0);
}

/// Ten thousand blocks that were freed and are still borrowed: the owner can still allocate, and each block becomes
/// free without a call to collect().
TEST(Limbo, OfTenThousandBlocksEmptiesByItself) {
  constexpr int kBlocks = 10'000;
  Shared<Note> note;
  JoinedChild owner([&] {
    std::vector<NamedTensor> tensors;
    for (int i = 0; i < kBlocks; ++i) tensors.emplace_back(std::to_string(i), numbered(i));
    Handle handle = share_bundle(tensors);
    note->write(handle.to_text());
    note->reach(2);
    tensors.clear();
    handle = Handle();
    EXPECT_GE(stats().limbo, static_cast<std::uint64_t>(kBlocks));
    for (int i = 0; i < kBlocks; ++i) EXPECT_EQ(numbered(i).as<std::int64_t>()[63], i);
    EXPECT_GE(stats().limbo, static_cast<std::uint64_t>(kBlocks));
    note->step = 3;
    EXPECT_TRUE(eventually([] { return stats().limbo == 0 && stats().live_blocks == 0; }));
    note->step = 4;
  });
  JoinedChild borrower([&] {
    std::vector<Tensor> held;
    {
      const Bundle bundle = Bundle::open(Handle::from_text(note->read()));
      for (std::size_t i = 0; i < bundle.size(); ++i) held.push_back(bundle.tensor(i));
    }
    note->step = 2;
    note->reach(3);
    for (int i = 0; i < kBlocks; ++i)
      EXPECT_EQ(held[static_cast<std::size_t>(i)].as<std::int64_t>()[63], i);
    std::shuffle(held.begin(), held.end(), std::mt19937(1));
    held.clear();
    note->reach(4);
  });
}

/// A borrower that outlives many owners, as a trainer does its data loaders.
TEST(ManyOwners, OneAfterTheOtherLeaveNothingInTheirBorrower) {
  Footprint after_first;
  for (int life = 0; life < 30; ++life) {
    Shared<Note> note;
    Child owner([&] {
      const Tensor tensor = numbered(life);
      note->write(share(tensor).to_text());
      pause();
    });
    {
      const Tensor tensor = open(Handle::from_text(note->read()));
      EXPECT_EQ(tensor.as<std::int64_t>()[63], life);
      owner.kill();
    }
    EXPECT_TRUE(eventually([] { return stats().owners == 0; }));
    if (life == 0) after_first = Footprint::unchanging();
  }
  expect_soon(after_first);
}

}  // namespace
}  // namespace onecopy
