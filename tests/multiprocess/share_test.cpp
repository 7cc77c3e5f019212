// SPDX-License-Identifier: Apache-2.0
#include "onecopy/share/share.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "onecopy/channel/queue.h"
#include "onecopy/core/error.h"
#include "onecopy/share/bundle.h"
#include "onecopy/share/stats.h"
#include "os/memfd.h"
#include "share/format/process_name.h"
#include "share/owner/claim_memory.h"
#include "share/owner/shared_blocks.h"
#include "share/runtime/runtime.h"
#include "support/child.h"
#include "support/footprint.h"
#include "support/note.h"
#include "support/numbers.h"
#include "support/refusal.h"
#include "support/watchdog.h"

namespace onecopy {
namespace {

using testing::Child;
using testing::element;
using testing::eventually;
using testing::expect_refusal;
using testing::Footprint;
using testing::JoinedChild;
using testing::Note;
using testing::numbers;
using testing::set_element;
using testing::Shared;

ErrorCode code_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& e) {
    return e.code();
  }
  return ErrorCode{255};
}

TEST(BorrowerList, CanBeReadWhileBorrowersComeAndGo) {
  const testing::Watchdog watchdog;
  Shared<Note> note;
  // Forked by a process that is made before the lister: a child forked in the middle of another
  // thread's allocation may never allocate again, as AddressSanitizer's allocator knows nothing of forks.
  Child parent([&] {
    const Handle handle = Handle::from_text(note->read());
    for (int i = 0; i < 50; ++i) {
      JoinedChild borrower([&] { open(handle); });
    }
  });
  const Handle handle = share(numbers(100));
  std::atomic<bool> done = false;
  std::uint64_t most = 0;
  std::jthread lister([&] {
    while (!done)
      for (const BorrowerInfo& borrower : this_owner().borrowers) most = std::max(most, borrower.claims);
  });
  note->write(handle.to_text());
  EXPECT_EQ(parent.join(), 0);
  done = true;
  lister.join();
  EXPECT_LE(most, 1u);
}

TEST(ShareBetweenProcesses, ABorrowerReadsAndWritesTheOwnersMemory) {
  Shared<Note> note;
  JoinedChild owner([&] {
    const Tensor tensor = numbers(1000);
    const Handle handle = share(tensor);
    note->write(handle.to_text());
    EXPECT_TRUE(eventually([&] { return note->step == 2; }));
    EXPECT_EQ(element(tensor, 7), 70);
  });
  JoinedChild borrower([&] {
    const Tensor tensor = open(Handle::from_text(note->read()));
    EXPECT_EQ(element(tensor, 999), 999);
    set_element<std::int64_t>(tensor, 7, 70);
    note->step = 2;
  });
}

TEST(ShareBetweenProcesses, WhatABorrowerHoldsIsNotReusedUntilItLetsGo) {
  Shared<Note> note;
  Child owner([&] {
    Tensor tensor = numbers(1000);
    note->write(share(tensor).to_text());
    EXPECT_TRUE(eventually([&] { return note->step == 2; }));
    tensor.release();
    EXPECT_EQ(stats().limbo, 1u);
    for (int i = 0; i < 100; ++i) numbers(1000);
    note->step = 3;
    EXPECT_TRUE(eventually([] { return stats().limbo == 0; }));
  });
  JoinedChild borrower([&] {
    Tensor tensor = open(Handle::from_text(note->read()));
    note->step = 2;
    EXPECT_TRUE(eventually([&] { return note->step == 3; }));
    EXPECT_EQ(element(tensor, 999), 999);
    tensor.release();
    EXPECT_EQ(stats().leases, 0u);
    EXPECT_TRUE(eventually([&] { return stats().owners == 0; }));
  });
  EXPECT_EQ(owner.join(), 0);
}

TEST(ShareBetweenProcesses, ClaimsOfAKilledBorrowerFall) {
  Shared<Note> note;
  Child borrower([&] {
    const Tensor tensor = open(Handle::from_text(note->read()));
    note->step = 2;
    pause();
  });
  Tensor tensor = numbers(1000);
  note->write(share(tensor).to_text());
  EXPECT_TRUE(eventually([&] { return note->step == 2; }));
  const std::uint64_t before = stats().limbo;
  tensor.release();
  EXPECT_EQ(stats().limbo, before + 1);
  borrower.kill();
  EXPECT_TRUE(eventually([&] { return stats().limbo == 0 && stats().borrowers == 0; }));
}

TEST(ShareBetweenProcesses, MemoryOutlivesItsOwner) {
  Shared<Note> note;
  Child owner([&] {
    const Handle handle = share(numbers(1000));
    note->write(handle.to_text());
    pause();
  });
  const Handle handle = Handle::from_text(note->read());
  const Tensor tensor = open(handle);
  owner.kill();
  EXPECT_EQ(element(tensor, 999), 999);
  EXPECT_EQ(open(handle).data(), tensor.data());
}

constexpr std::size_t kSegments = 40;

/// Each tensor is in its own segment. Element 0 of number i is i.
std::vector<NamedTensor> in_many_segments() {
  std::vector<NamedTensor> tensors;
  for (std::size_t i = 0; i < kSegments; ++i) {
    const Fd file = create_memfd("a-segment", 4096);
    tensors.emplace_back(std::to_string(i), adopt_file(file.get(), 4096));
    *tensors.back().second.as<std::uint8_t>() = static_cast<std::uint8_t>(i);
  }
  return tensors;
}

void expect_whole(const std::vector<Tensor>& tensors) {
  ASSERT_EQ(tensors.size(), kSegments);
  for (std::size_t i = 0; i < kSegments; ++i) EXPECT_EQ(*tensors[i].as<std::uint8_t>(), i);
}

TEST(ShareBetweenProcesses, ABundleInManySegmentsIsOpenedWhole) {
  Shared<Note> note;
  Child owner([&] {
    const Handle handle = share_bundle(in_many_segments());
    note->write(handle.to_text());
    pause();
  });
  const Bundle bundle = Bundle::open(Handle::from_text(note->read()));
  expect_refusal(ErrorCode::invalid_argument, {"40 rows, not 41"}, [&] { bundle.tensors(kSegments + 1); });
  expect_whole(bundle.tensors(kSegments));
  expect_whole(bundle.tensors(kSegments));  // and when all is mapped already
  const Tensor alone = bundle.tensor(7);
  owner.kill();
  EXPECT_TRUE(eventually([&] { return bundle.tensors(kSegments)[7].data() == alone.data(); }));
  expect_whole(bundle.tensors(kSegments));
}

TEST(ShareBetweenProcesses, ABundleOfADeadOwnerIsRefusedInWords) {
  Shared<Note> note;
  Child owner([&] {
    const Handle handle = share_bundle(in_many_segments());
    note->write(handle.to_text());
    pause();
  });
  const Bundle bundle = Bundle::open(Handle::from_text(note->read()));  // the table, and nothing else
  owner.kill();
  expect_refusal(ErrorCode::owner_died, {"has exited"}, [&] { bundle.tensors(kSegments); });
}

TEST(ShareBetweenProcesses, ABorrowedTensorCanBeSharedOnAfterItsOwnersDeath) {
  Shared<Note> note;
  Shared<Note> on;
  Child owner([&] {
    const Handle handle = share(numbers(1000));
    note->write(handle.to_text());
    pause();
  });
  JoinedChild middle([&] {
    const Tensor tensor = open(Handle::from_text(note->read()));
    note->step = 2;
    EXPECT_TRUE(eventually([&] { return note->step == 3; }));
    const Handle handle = share(tensor);
    on->write(handle.to_text());
    EXPECT_TRUE(eventually([&] { return note->step == 4; }));
  });
  EXPECT_TRUE(eventually([&] { return note->step == 2; }));
  owner.kill();
  note->step = 3;
  JoinedChild last([&] {
    const Tensor tensor = open(Handle::from_text(on->read()));
    EXPECT_EQ(element(tensor, 999), 999);
    note->step = 4;
  });
}

TEST(ShareBetweenProcesses, WhatTheOwnerLetGoOfCanBePassedOnAndBack) {
  Shared<Note> note;
  Shared<Note> on;
  Tensor tensor = numbers(1000);
  Child middle([&] {
    const Tensor mine = open(Handle::from_text(note->read()));
    note->step = 2;
    EXPECT_TRUE(eventually([&] { return note->step == 3; }));
    on->write(share(mine).to_text());
    EXPECT_TRUE(eventually([&] { return note->step == 4; }));
  });
  Child last([&] {
    const Tensor mine = open(Handle::from_text(on->read()));
    EXPECT_EQ(element(mine, 999), 999);
    on->step = 2;
    EXPECT_TRUE(eventually([&] { return on->step == 3; }));
  });
  const void* data = tensor.data();
  note->write(share(tensor).to_text());
  EXPECT_TRUE(eventually([&] { return note->step == 2; }));
  tensor.release();
  EXPECT_EQ(stats().limbo, 1u);
  note->step = 3;
  EXPECT_TRUE(eventually([&] { return on->step == 2; }));
  tensor = open(Handle::from_text(on->read()));
  EXPECT_EQ(tensor.data(), data);
  EXPECT_EQ(stats().limbo, 0u);
  note->step = 4;
  on->step = 3;
  EXPECT_EQ(middle.join(), 0);
  EXPECT_EQ(last.join(), 0);
}

TEST(ShareBetweenProcesses, WhatADeadBorrowerHadInAQueueIsKeptForTheReceiver) {
  JoinedChild owner([] {  // a process of its own: holds stay for minutes
    Shared<Note> note;
    Tensor tensor = numbers(1000);
    const std::string text = share(tensor).to_text();
    Child middle([&] {
      const Tensor mine = open(Handle::from_text(note->read()));
      as_shared(*mine.block().group()).begin_transit(mine.block().number(), 1);
      note->step = 2;
      pause();
    });
    note->write(text);
    note->reach(2);
    tensor.release();
    middle.kill();
    EXPECT_TRUE(eventually([] { return stats().borrowers == 0; }));
    EXPECT_EQ(stats().limbo, 1u);
    EXPECT_EQ(stats().in_transit, 1u);
    JoinedChild receiver([&] { EXPECT_EQ(element(open(Handle::from_text(text)), 999), 999); });
  });
}

TEST(ShareBetweenProcesses, ADeadOwnersHandleIsAClearError) {
  Shared<Note> note;
  Child owner([&] { note->write(share(numbers(10)).to_text()); });
  EXPECT_EQ(owner.join(), 0);
  EXPECT_EQ(code_of([&] { open(Handle::from_text(note->read())); }), ErrorCode::owner_died);
}

TEST(ShareBetweenProcesses, DeadOwnersLeaveNothingBehindInTheirBorrowers) {
  const auto open_from_a_new_owner = [] {
    Shared<Note> note;
    Child owner([&] {
      const Handle handle = share(numbers(1000));
      note->write(handle.to_text());
      pause();
    });
    const Tensor tensor = open(Handle::from_text(note->read()));
    owner.kill();
    EXPECT_EQ(element(tensor, 999), 999);
  };
  const auto all_closed = [] { return stats().owners == 0; };
  open_from_a_new_owner();
  EXPECT_TRUE(eventually(all_closed));
  const Footprint before = Footprint::settled();
  const std::uint64_t addresses = testing::address_space();
  // A fork takes five locks an owner, and ThreadSanitizer knows of 64.
  for (int batch = 0; batch < 4; ++batch) {
    for (int i = 0; i < 5; ++i) open_from_a_new_owner();
    EXPECT_TRUE(eventually(all_closed));
  }
  expect_soon(before);
  EXPECT_TRUE(eventually([&] { return testing::address_space() < addresses + kTableBytes; }));
}

/// This process's peer for the owner of a handle.
std::weak_ptr<Peer> peer_of(const Handle& handle) {
  return Runtime::current().peers().find_open(handle.fields().owner);
}

bool is_there_and(const std::weak_ptr<Peer>& peer, bool (Peer::*holds)() const noexcept) {
  const std::shared_ptr<Peer> known = peer.lock();
  return known && (known.get()->*holds)();
}

TEST(ShareBetweenProcesses, DeadOwnersAreForgottenByTheirBorrowers) {
  Shared<Note> note;
  Child owner([&] {
    const Handle handle = share(numbers(1000));
    note->write(handle.to_text());
    pause();
  });
  const Handle handle = Handle::from_text(note->read());
  Tensor tensor = open(handle);
  const std::weak_ptr<Peer> peer = peer_of(handle);
  owner.kill();
  EXPECT_TRUE(eventually([&] { return is_there_and(peer, &Peer::is_gone); }));
  EXPECT_EQ(element(tensor, 999), 999);
  tensor.release();
  EXPECT_TRUE(eventually([&] { return peer.expired(); }));
}

TEST(ShareBetweenProcesses, DeadOwnersAreRememberedByQueuesThatHadItemsOfTheirs) {
  Shared<Note> note;
  Queue queue = Queue::create();
  Child owner([&, to = queue.handle()] {
    const Tensor tensor = numbers(1000);
    const Handle handle = share(tensor);
    note->write(handle.to_text());
    Queue::connect(to).put(tensor);
    pause();
  });
  const Handle handle = Handle::from_text(note->read());
  Tensor tensor = queue.get_tensor();
  const std::weak_ptr<Peer> peer = peer_of(handle);
  owner.kill();
  tensor.release();
  EXPECT_TRUE(eventually([&] { return is_there_and(peer, &Peer::is_closed); }));
  EXPECT_TRUE(Runtime::current().peers().list().empty());  // has the sweep's lock
  EXPECT_FALSE(peer.expired()) << "rows in the queue may name it";
}

TEST(ShareBetweenProcesses, ReadOnlyMappingsCannotBeWritten) {
  Shared<Note> note;
  Child borrower([&] {
    const Tensor mine = open(Handle::from_text(note->read()), Access::read_only);
    EXPECT_EQ(element(mine, 9), 9);
    std::signal(SIGSEGV, SIG_DFL);  // sanitizers would report it and exit
    set_element<std::int64_t>(mine, 0, 1);
  });
  const Tensor tensor = numbers(10);
  const Handle handle = share(tensor);
  note->write(handle.to_text());
  EXPECT_EQ(borrower.join(), testing::device() == kCpu ? -SIGSEGV : Child::kThrew);
  EXPECT_EQ(element(tensor, 0), 0);
}

TEST(Fork, WhatAChildInheritedStaysAliveUntilItLetsGo) {
  Shared<Note> note;
  Tensor tensor = numbers(1000);
  JoinedChild child([&] {
    note->step = 1;
    EXPECT_TRUE(eventually([&] { return note->step == 2; }));
    EXPECT_EQ(element(tensor, 999), 999);
    tensor.release();
    note->step = 3;
    EXPECT_TRUE(eventually([&] { return note->step == 4; }));
  });
  EXPECT_TRUE(eventually([&] { return note->step == 1; }));
  tensor.release();
  EXPECT_EQ(stats().limbo, 1u);
  for (int i = 0; i < 100; ++i) numbers(1000);
  note->step = 2;
  EXPECT_TRUE(eventually([&] { return note->step == 3; }));
  EXPECT_TRUE(eventually([] { return stats().limbo == 0; }));
  note->step = 4;
}

TEST(Fork, AChildDoesNotHoldWhatItsParentKeepsForABorrower) {
  Shared<Note> note;
  Shared<Note> bundle;
  Child owner([&] {
    const Handle handle = share(numbers(1000));
    note->write(handle.to_text());
    pause();
  });
  Child borrower([&] {
    const Bundle opened = Bundle::open(Handle::from_text(bundle->read()));
    bundle->step = 2;
    bundle->reach(3);
  });
  {
    const std::vector<NamedTensor> one{{"borrowed", open(Handle::from_text(note->read()))}};
    const Handle handle = share_bundle(one);
    bundle->write(handle.to_text());
    bundle->reach(2);
  }
  ASSERT_EQ(stats().limbo, 1u) << "the bundle's table";
  ASSERT_EQ(stats().leases, 1u) << "what the table keeps";
  Child child([] { EXPECT_EQ(stats().leases, 0u); });
  EXPECT_EQ(child.join(), 0);
  EXPECT_EQ(stats().leases, 1u);
  bundle->step = 3;
  EXPECT_EQ(borrower.join(), 0);
  EXPECT_TRUE(eventually([] { return stats().leases == 0; }));
}

TEST(Fork, LeasesOfTheParentBecomeTheChildsToo) {
  Shared<Note> note;
  Shared<Note> step;
  JoinedChild owner([&] {
    Tensor tensor = numbers(1000);
    note->write(share(tensor).to_text());
    EXPECT_TRUE(eventually([&] { return step->step >= 1; }));
    tensor.release();
    EXPECT_TRUE(eventually([&] { return step->step == 2; }));
    EXPECT_EQ(stats().limbo, 1u);
    step->step = 3;
    EXPECT_TRUE(eventually([] { return stats().limbo == 0; }));
  });
  JoinedChild middle([&] {
    Tensor tensor = open(Handle::from_text(note->read()));
    JoinedChild grandchild([&] {
      EXPECT_TRUE(eventually([&] { return step->step == 3; }));
      EXPECT_EQ(element(tensor, 999), 999);
      tensor.release();
    });
    step->step = 1;
    tensor.release();
    step->step = 2;
  });
}

TEST(Fork, AGrandchildKeepsWhatItsGrandparentOwns) {
  Shared<Note> step;
  Tensor tensor = numbers(1000);
  Child child([&] {
    JoinedChild grandchild([&] {
      EXPECT_TRUE(eventually([&] { return step->step == 1; }));
      EXPECT_EQ(element(tensor, 999), 999);
      const Handle handle = share(tensor);
      EXPECT_EQ(element(open(handle), 1), 1);
    });
    tensor.release();
  });
  tensor.release();
  for (int i = 0; i < 100; ++i) numbers(1000);
  step->step = 1;
  EXPECT_EQ(child.join(), 0);
  EXPECT_TRUE(eventually([] { return stats().limbo == 0; }));
}

TEST(Fork, AChildThatExecsLetsGo) {
  Tensor tensor = numbers(1000);
  Child child([&] { execlp("sleep", "sleep", "60", nullptr); });
  tensor.release();
  EXPECT_TRUE(eventually([] { return stats().limbo == 0; }));
  child.kill();
}

TEST(Fork, WithoutDescriptorsForThePageTheChildsMemoryIsSafeAllTheSame) {
  JoinedChild parent([] {
    Shared<Note> note;
    Tensor tensor = numbers(1000);
    rlimit limit{};
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = 3;
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
    Child child([&] {
      note->reach(1);
      EXPECT_EQ(element(tensor, 999), 999);
      tensor.release();
      note->step = 2;
    });
    Tensor other = numbers(10);
    tensor.release();
    for (int i = 0; i < 100; ++i) set_element<std::int64_t>(numbers(1000), 999, 0);
    note->step = 1;
    note->reach(2);
    for (int i = 0; i < 100; ++i) set_element<std::int64_t>(numbers(1000), 999, 0);
    EXPECT_EQ(stats().limbo, 1u);  // the child's release cannot be seen
    EXPECT_EQ(stats().live_blocks, 1u);
    EXPECT_EQ(child.join(), 0);
  });
}

TEST(Fork, AChildSharesTensorsOfItsOwn) {
  Shared<Note> note;
  const Tensor parents = numbers(10);
  JoinedChild child([&] {
    const Tensor tensor = numbers(1000);
    const Handle handle = share(tensor);
    note->write(handle.to_text());
    EXPECT_TRUE(eventually([&] { return note->step == 2; }));
  });
  EXPECT_EQ(element(open(Handle::from_text(note->read())), 999), 999);
  note->step = 2;
}

}  // namespace
}  // namespace onecopy
