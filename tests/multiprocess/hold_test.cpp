// SPDX-License-Identifier: Apache-2.0
// Handles written down by one process and opened by another, with only the hold in between.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include "onecopy/channel/queue.h"
#include "onecopy/share/bundle.h"
#include "onecopy/share/share.h"
#include "onecopy/share/stats.h"
#include "support/child.h"
#include "support/die_at.h"
#include "support/metronome.h"
#include "support/note.h"
#include "support/numbers.h"
#include "support/processes_test.h"
#include "support/refusal.h"
#include "support/watchdog.h"

namespace onecopy {
namespace {

using testing::Child;
using testing::eventually;
using testing::expect_refusal;
using testing::JoinedChild;
using testing::last_of;
using testing::Note;
using testing::numbers;
using testing::ProcessesTest;
using testing::Shared;
using testing::Watchdog;

std::uint64_t holds() {
  std::uint64_t count = 0;
  for (const TransitInfo& info : this_owner().in_transit) count += info.where == "handle";
  return count;
}

std::string held_numbers(std::int64_t seed) { return hold(share(numbers(1000, seed))).to_text(); }

class HoldBetweenProcesses : public ProcessesTest {};

TEST_F(HoldBetweenProcesses, BytesSurviveTheirMakersLettingGoOfEverything) {
  Child maker([&] {
    note->write(held_numbers(7));
    for (int i = 0; i < 100; ++i) numbers(1000, 0);  // would reuse the memory
    note->step = 2;
    note->reach(3);
    EXPECT_TRUE(eventually([] { return holds() == 0; })) << "the first open ends it";
    EXPECT_TRUE(eventually([] { return stats().limbo == 1; })) << "and the opener holds the block";
    note->step = 4;
    EXPECT_TRUE(eventually([] { return stats().limbo == 0; }));
  });
  note->reach(2);
  Tensor tensor = open(Handle::from_text(note->read()));
  EXPECT_EQ(last_of(tensor), 7 + 999);
  note->step = 3;
  note->reach(4);
  EXPECT_EQ(last_of(tensor), 7 + 999);
  tensor.release();
  EXPECT_EQ(maker.join(), 0);
}

TEST_F(HoldBetweenProcesses, BytesThatNobodyOpensAreLookedAfterEverMoreSeldom) {
  JoinedChild maker([] {
    held_numbers(7);
    EXPECT_TRUE(testing::comes_to_look_seldom());
    EXPECT_EQ(holds(), 1u);
  });
}

TEST_F(HoldBetweenProcesses, BytesThatAThirdProcessSendsOnEndTheHoldWhereTheyAreOpened) {
  Shared<Note> first;
  Shared<Note> second;
  first->write(held_numbers(3));
  Child forwarder([&] { second->write(first->read()); });  // as bytes: it never opens them
  EXPECT_EQ(forwarder.join(), 0);
  EXPECT_EQ(holds(), 1u);
  Child opener([&] { EXPECT_EQ(last_of(open(Handle::from_text(second->read()))), 3 + 999); });
  EXPECT_EQ(opener.join(), 0);
  EXPECT_TRUE(eventually([] { return holds() == 0; }));
}

TEST_F(HoldBetweenProcesses, ABorrowersHoldEndsWithItAndNotWithTheOwner) {
  Shared<Note> from_owner;
  Shared<Note> from_middle;
  Child owner([&] {
    Tensor tensor = numbers(1000, 5);
    from_owner->write(share(tensor).to_text());
    from_owner->reach(2);
    tensor.release();
    from_owner->reach(3);
    EXPECT_TRUE(eventually([] { return stats().limbo == 0; }));
  });
  Child middle([&] {
    Tensor tensor = open(Handle::from_text(from_owner->read()));
    from_middle->write(hold(share(tensor)).to_text());
    tensor.release();
    EXPECT_EQ(holds(), 1u);
    from_owner->step = 2;
    from_middle->reach(2);
    EXPECT_TRUE(eventually([] { return holds() == 0 && stats().leases == 0; }))
        << "told by a process that has no connection to us";
  });
  from_owner->reach(2);
  Tensor tensor = open(Handle::from_text(from_middle->read()));
  from_middle->step = 2;
  EXPECT_EQ(middle.join(), 0);
  EXPECT_EQ(last_of(tensor), 5 + 999);
  tensor.release();
  from_owner->step = 3;
  EXPECT_EQ(owner.join(), 0);
}

TEST_F(HoldBetweenProcesses, TheOwnerOpensWhatABorrowerHeldAndEndsIt) {
  Shared<Note> out;
  Shared<Note> back;
  const Tensor tensor = numbers(1000, 6);
  JoinedChild borrower([&] {
    back->write(hold(share(open(Handle::from_text(out->read())))).to_text());
    EXPECT_TRUE(eventually([] { return holds() == 0; }));
  });
  out->write(share(tensor).to_text());
  EXPECT_EQ(open(Handle::from_text(back->read())).data(), tensor.data());
}

TEST_F(HoldBetweenProcesses, ABorrowersHoldOutlivesTheOwner) {
  Shared<Note> from_owner;
  Shared<Note> from_middle;
  Child owner([&] {
    const Handle handle = share(numbers(1000, 9));
    from_owner->write(handle.to_text());
    pause();
  });
  JoinedChild middle([&] {
    from_middle->write(hold(share(open(Handle::from_text(from_owner->read())))).to_text());
    EXPECT_TRUE(eventually([] { return holds() == 0; }));
    from_middle->reach(2);
  });
  from_middle->reach(1);
  owner.kill();
  EXPECT_EQ(last_of(open(Handle::from_text(from_middle->read()))), 9 + 999);
  from_middle->step = 2;
}

TEST_F(HoldBetweenProcesses, AForkedChildEndsItsParentsHoldAndMakesItsOwn) {
  const Handle handle = share(numbers(1000, 4));
  const std::string text = hold(handle).to_text();
  JoinedChild child([&] {
    EXPECT_EQ(holds(), 0u) << "what the parent holds is the parent's";
    EXPECT_EQ(last_of(open(Handle::from_text(text))), 4 + 999);
    const std::string mine = hold(handle).to_text();
    EXPECT_EQ(holds(), 1u);
    note->write(mine);
    note->reach(2);
    EXPECT_TRUE(eventually([] { return holds() == 0; }));
  });
  EXPECT_TRUE(eventually([] { return holds() == 0; }));
  EXPECT_EQ(last_of(open(Handle::from_text(note->read()))), 4 + 999);
  note->step = 2;
}

TEST_F(HoldBetweenProcesses, EndHoldAlsoWorksForWhoeverGotTheBytes) {
  const std::string text = held_numbers(1);
  Child other([&] { end_hold(Handle::from_text(text)); });
  EXPECT_EQ(other.join(), 0);
  EXPECT_TRUE(eventually([] { return holds() == 0 && stats().live_blocks == 0; }));
  expect_refusal(ErrorCode::stale_handle, {}, [&] { open(Handle::from_text(text)); });
}

TEST_F(HoldBetweenProcesses, OfAQueueKeepsItForTheOneThatConnects) {
  Child maker([&] {
    {
      Queue queue = Queue::create();
      queue.put(numbers(1000, 2));
      note->write(hold(queue.handle()).to_text());
      note->reach(2);
    }
    EXPECT_TRUE(eventually([] { return holds() == 0; }));
  });
  Queue queue = Queue::connect(Handle::from_text(note->read()));
  note->step = 2;
  EXPECT_EQ(last_of(queue.get_tensor()), 2 + 999);
  EXPECT_EQ(maker.join(), 0);
}

TEST_F(HoldBetweenProcesses, AnOpenerThatDiesBeforeItHasClaimedLeavesTheHold) {
  const std::string text = held_numbers(11);
  Child victim([&] {
    testing::die_at("claim.begin");
    open(Handle::from_text(text));
  });
  EXPECT_EQ(victim.join(), -SIGKILL) << "the point was not reached";
  EXPECT_EQ(holds(), 1u);
  Child next([&] { EXPECT_EQ(last_of(open(Handle::from_text(text))), 11 + 999); });
  EXPECT_EQ(next.join(), 0);
  EXPECT_TRUE(eventually([] { return holds() == 0; }));
}

TEST_F(HoldBetweenProcesses, IsSeenByOthersWithItsAge) {
  Child maker([&] {
    note->write(held_numbers(1));
    note->reach(2);
  });
  note->reach(1);
  const auto seen = [&] {
    for (const OwnerInfo& owner : list_owners())
      if (owner.pid == maker.pid())
        for (const TransitInfo& info : owner.in_transit)
          if (info.where == "handle" && info.blocks == 1 && info.age_seconds > 0) return true;
    return false;
  };
  EXPECT_TRUE(eventually(seen));
  note->step = 2;
  EXPECT_EQ(maker.join(), 0);
}

// The process uses both mappings: for reading and for writing.

TEST(ShareBetweenProcesses, ATensorForReadingIsSharedOnFromItsOwnMapping) {
  Watchdog watchdog;
  Shared<Note> note;
  Child owner([&] {
    const Tensor tensor = numbers(1000, 20);
    note->write(share(tensor).to_text());
    note->reach(2);
  });
  const Handle handle = Handle::from_text(note->read());
  const Tensor reading = open(handle, Access::read_only);
  const Tensor writing = open(handle);
  ASSERT_NE(reading.data(), writing.data());
  EXPECT_EQ(share(reading).fields().tensor_offset, 0u);
  EXPECT_EQ(share(writing).fields().tensor_offset, 0u);
  EXPECT_EQ(storage(reading).data(), reading.as<std::byte>());
  EXPECT_EQ(storage(writing).data(), writing.as<std::byte>());
  EXPECT_EQ(storage(reading).size(), 8000u);
  note->step = 2;
  EXPECT_EQ(owner.join(), 0);
}

TEST(ShareBetweenProcesses, AnAdoptedFileIsOpenedInPlaceAndOutlivesItsAdopter) {
  Watchdog watchdog;
  Shared<Note> note;
  const Fd file(::memfd_create("made elsewhere", MFD_CLOEXEC));
  ASSERT_EQ(::ftruncate(file.get(), 1000), 0);
  Child owner([&] {
    const Tensor tensor = adopt_file(file.get(), 1000);
    note->write(share(tensor).to_text());
    pause();
  });
  const Handle handle = Handle::from_text(note->read());
  const Tensor tensor = open(handle);
  EXPECT_EQ(storage(tensor).size(), 1000u);
  tensor.as<char>()[999] = 'y';
  char last = 0;
  ASSERT_EQ(::pread(file.get(), &last, 1, 999), 1);
  EXPECT_EQ(last, 'y');
  owner.kill();
  EXPECT_EQ(open(handle, Access::read_only).as<char>()[999], 'y');
}

}  // namespace
}  // namespace onecopy
