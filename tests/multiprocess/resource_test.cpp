// SPDX-License-Identifier: Apache-2.0
// No descriptors, no address space, no mappings, no memory: an error that names the shortage and the remedy, nothing
// half done, and it works again once there is room.
#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <new>
#include <sstream>

#include "onecopy/channel/queue.h"
#include "onecopy/share/share.h"
#include "onecopy/share/stats.h"
#include "share/format/process_name.h"
#include "share/format/wire.h"
#include "share/runtime/runtime.h"
#include "support/child.h"
#include "support/footprint.h"
#include "support/limits.h"
#include "support/note.h"
#include "support/refusal.h"

namespace onecopy {
namespace {

using testing::address_space_for;
using testing::Child;
using testing::descriptors_for;
using testing::eventually;
using testing::expect_refusal;
using testing::expect_soon;
using testing::Footprint;
using testing::JoinedChild;
using testing::kPatience;
using testing::kSanitized;
using testing::Limit;
using testing::Note;
using testing::Shared;
using namespace std::chrono_literals;

constexpr std::int64_t kMiB = 1 << 20;
/// UBSan opens a pipe to see whether an object's memory can be read, and calls the object bad if it cannot.
constexpr const char* kSanitizerNeedsDescriptors = "sanitizers need descriptors of their own";

Tensor bytes_of_value(std::int64_t count, unsigned char value) {
  Tensor tensor = empty(Layout(DType::u8, {count}));
  std::memset(tensor.data(), value, static_cast<std::size_t>(count));
  return tensor;
}

int last_byte(const Tensor& tensor) { return tensor.as<unsigned char>()[tensor.nbytes() - 1]; }

/// Two processes in steps: the owner has small (pooled) and large tensors, each in its own segment.
class Shortage : public ::testing::Test {
 protected:
  Handle handle(int step) { return Handle::from_text(note_->read(step)); }

  Shared<Note> note_;
};

TEST_F(Shortage, OfDescriptorsAtTheOwnerMakesNewBorrowersWait) {
  if (kSanitized) GTEST_SKIP() << kSanitizerNeedsDescriptors;
  Child owner([&] {
    const Tensor tensor = bytes_of_value(1000, 7);
    const Handle handle = share(tensor);
    Footprint::settled_owner();
    Limit limit(RLIMIT_NOFILE, descriptors_for(0));
    note_->write(handle.to_text());
    note_->reach(2);
    limit.lift();
    note_->reach(3);
    EXPECT_TRUE(eventually([] { return stats().borrowers == 0; }));
  });
  const Handle good = handle(1);
  UnixSocket first = UnixSocket::connect(socket_name(public_name(good.fields().owner)), kPatience);
  first.send(wire::pack(peer::Hello{}), {}, kPatience);
  expect_refusal(ErrorCode::timeout, {}, [&] { first.receive(100ms); });
  note_->step = 2;
  wire::expect(first.receive(kPatience).bytes, wire::Type::challenge);
  EXPECT_EQ(last_byte(open(good)), 7);
  note_->step = 3;
  first = UnixSocket();
}

/// A ring is as large as fits, and a queue has two mappings of it.
TEST_F(Shortage, OfAddressesMakesASmallerQueue) {
  if (kSanitized) GTEST_SKIP() << "sanitizers reserve addresses";
  JoinedChild child([] {
    bytes_of_value(1000, 7);  // its own tables are there
    for (const int gib : {7, 3, 1}) {
      const Limit limit(RLIMIT_AS, address_space_for(std::size_t(gib) << 30));
      Queue queue = Queue::create();
      queue.put(bytes_of_value(1000, 9));
      EXPECT_EQ(last_byte(queue.get_tensor()), 9);
    }
  });
}

/// The borrower should not look at its own limit.
TEST_F(Shortage, OfDescriptorsAtTheOwnerNamesTheOwner) {
  if (kSanitized) GTEST_SKIP() << kSanitizerNeedsDescriptors;
  Child owner([&] {
    const Tensor small = bytes_of_value(1000, 7);
    const Tensor large = bytes_of_value(40 * kMiB, 8);
    const Handle first = share(small);
    const Handle second = share(large);
    for (int more = 1; more <= 2;
         ++more) {  // one is needed to accept, then pidfd, table; the page is there
      Footprint::settled_owner();
      Limit limit(RLIMIT_NOFILE, descriptors_for(more));
      note_->write(first.to_text(), 4 * more - 3);
      note_->reach(4 * more - 2);
      limit.lift();
      note_->step = 4 * more - 1;
      note_->reach(4 * more);
    }
    Footprint::settled_owner();
    note_->write(first.to_text(), 101);
    note_->reach(102);
    Footprint::settled_owner(1);
    Limit limit(RLIMIT_NOFILE, descriptors_for(0));  // one that is attached asks for a segment
    note_->write(second.to_text(), 103);
    note_->reach(104);
    limit.lift();
    note_->step = 105;
    note_->reach(106);
  });
  const std::string named = "process " + std::to_string(owner.pid());
  for (int more = 1; more <= 2; ++more) {
    Child borrower([&] {
      const Handle good = handle(4 * more - 3);
      const Footprint before = Footprint::unchanging();
      expect_refusal(ErrorCode::out_of_descriptors, {named.c_str(), "ulimit -n"}, [&] { open(good); });
      expect_soon(before);
      note_->step = 4 * more - 2;
      note_->reach(4 * more - 1);
      EXPECT_EQ(last_byte(open(good)), 7);
    });
    EXPECT_EQ(borrower.join(), 0);
    note_->step = 4 * more;
  }
  open(handle(101));
  const Footprint before = Footprint::unchanging();
  note_->step = 102;
  const Handle large = handle(103);
  expect_refusal(ErrorCode::out_of_descriptors, {named.c_str(), "ulimit -n"}, [&] { open(large); });
  expect_soon(before);
  note_->step = 104;
  note_->reach(105);
  EXPECT_EQ(last_byte(open(large)), 8);
  note_->step = 106;
  EXPECT_EQ(owner.join(), 0);
}

/// The owner loses the page of the borrower's child and hangs up; neither is dead.
TEST_F(Shortage, OfDescriptorsAtTheOwnerWhileABorrowerForksEndsInANewConnection) {
  if (kSanitized) GTEST_SKIP() << kSanitizerNeedsDescriptors;
  JoinedChild owner([&] {
    Tensor small = bytes_of_value(1000, 7);
    Tensor large = bytes_of_value(40 * kMiB, 8);
    Handle first = share(small);
    Handle second = share(large);
    note_->write(first.to_text());
    note_->reach(2);
    Footprint::settled_owner(1);
    Limit limit(RLIMIT_NOFILE, descriptors_for(0));
    note_->step = 3;
    note_->reach(4);
    limit.lift();
    note_->write(second.to_text(), 5);
    note_->reach(6);
    for (Tensor* tensor : {&small, &large}) tensor->release();
    first = second = Handle();
    EXPECT_TRUE(eventually([] {
      const Stats now = stats();
      return now.borrowers == 0 && now.limbo == 0 && now.live_blocks == 0;
    }));
  });
  Child borrower([&] {
    const Tensor small = open(handle(1));
    note_->step = 2;
    note_->reach(3);
    Child child([&] { EXPECT_EQ(last_byte(small), 7); });
    EXPECT_EQ(child.join(), 0);
    EXPECT_TRUE(eventually([] { return Runtime::current().peers().list().at(0)->broker().is_over(); }));
    note_->step = 4;
    EXPECT_EQ(last_byte(open(handle(5))), 8);
    EXPECT_EQ(last_byte(open(handle(5), Access::read_only)), 8);
    EXPECT_EQ(last_byte(small), 7);
  });
  EXPECT_EQ(borrower.join(), 0);
  note_->step = 6;
}

/// fork cannot be refused, so it must neither crash nor hang nor endanger what the child inherits.
TEST_F(Shortage, OfDescriptorsDuringAForkLosesNothing) {
  if (kSanitized) GTEST_SKIP() << kSanitizerNeedsDescriptors;
  JoinedChild owner([&] {
    const Tensor theirs = bytes_of_value(1000, 5);
    note_->write(share(theirs).to_text());
    note_->reach(9);
  });
  Child parent([&] {
    Tensor mine = bytes_of_value(1000, 7);
    const Handle handle_of_mine = share(mine);
    Tensor borrowed = open(handle(1));
    Limit limit(RLIMIT_NOFILE, descriptors_for(0));
    Child child([&] {
      note_->step = 2;
      note_->reach(3);
      EXPECT_EQ(last_byte(mine), 7);
      EXPECT_EQ(last_byte(borrowed), 5);
      mine.release();
      borrowed.release();
    });
    limit.lift();
    note_->reach(2);
    mine.release();
    borrowed.release();
    for (int i = 0; i < 100; ++i) bytes_of_value(1000, 1);
    note_->step = 3;
    EXPECT_EQ(child.join(), 0);
    EXPECT_EQ(last_byte(open(share(bytes_of_value(1000, 9)))), 9);
    EXPECT_EQ(last_byte(open(handle(1))), 5);
  });
  EXPECT_EQ(parent.join(), 0);
  note_->step = 9;
}

/// The one in the middle keeps its inheritance, also if the youngest lets go of some.
TEST_F(Shortage, OfDescriptorsDuringASecondForkLosesNothing) {
  if (kSanitized) GTEST_SKIP() << kSanitizerNeedsDescriptors;
  JoinedChild grandparent([&] {
    Tensor tensor = bytes_of_value(1000, 7);
    Child parent([&] {
      {
        Limit limit(RLIMIT_NOFILE, descriptors_for(0));
        JoinedChild child([&] {
          EXPECT_EQ(last_byte(tensor), 7);
          tensor.release();
        });
      }
      note_->step = 1;
      note_->reach(2);
      EXPECT_EQ(last_byte(tensor), 7);
    });
    note_->reach(1);
    tensor.release();
    for (int i = 0; i < 100; ++i) bytes_of_value(1000, 1);
    note_->step = 2;
    EXPECT_EQ(parent.join(), 0);
    EXPECT_TRUE(eventually([] { return stats().limbo == 0; }));
  });
}

/// During any call descriptors run out.
TEST_F(Shortage, OfDescriptorsAtABorrowerIsAnErrorAtEveryStep) {
  if (kSanitized) GTEST_SKIP() << kSanitizerNeedsDescriptors;
  Child owner([&] {
    const Tensor tensor = bytes_of_value(1000, 7);
    note_->write(share(tensor).to_text());
    note_->reach(2);
    EXPECT_TRUE(eventually([] { return stats().borrowers == 0; }));
  });
  int refused = 0;
  for (int more = 0; more < 14; ++more) {
    Child borrower([&] {
      const Handle good = handle(1);
      Limit limit(RLIMIT_NOFILE, descriptors_for(more));
      int failed = 0;
      try {
        open(good);
      } catch (const Error& e) {
        EXPECT_EQ(e.code(), ErrorCode::out_of_descriptors) << more << ": " << e.what();
        EXPECT_NE(std::string(e.what()).find("ulimit -n"), std::string::npos) << e.what();
        failed = 1;
      }
      limit.lift();
      EXPECT_EQ(stats().leases, 0u);
      EXPECT_EQ(last_byte(open(good)), 7) << more;
      if (::testing::Test::HasFailure()) return;
      _exit(failed ? 50 : 0);
    });
    const int end = borrower.join();
    EXPECT_TRUE(end == 0 || end == 50) << more;
    refused += end == 50;
  }
  EXPECT_GT(refused, 3);
  EXPECT_LT(refused, 14) << "a borrower needs fewer than 14 descriptors";
  note_->step = 2;
  EXPECT_EQ(owner.join(), 0);
}

TEST_F(Shortage, OfDescriptorsWhileSharingLeavesNobodyDeaf) {
  if (kSanitized) GTEST_SKIP() << kSanitizerNeedsDescriptors;
  int refused = 0;
  for (int more = 0; more < 14; ++more) {
    Shared<Note> note;
    Child owner([&] {
      Limit limit(RLIMIT_NOFILE, descriptors_for(more));
      try {
        share(bytes_of_value(1000, 1));
      } catch (const Error& e) {
        EXPECT_EQ(e.code(), ErrorCode::out_of_descriptors) << more << ": " << e.what();
        note->text[100] = 1;
      }
      limit.lift();
      EXPECT_EQ(stats().live_blocks, 0u);
      const Tensor tensor = bytes_of_value(1000, 7);
      note->write(share(tensor).to_text());
      note->reach(2);
    });
    EXPECT_EQ(last_byte(open(Handle::from_text(note->read()))), 7) << more;
    note->step = 2;
    EXPECT_EQ(owner.join(), 0);
    refused += 1;
    collect();
  }
  EXPECT_EQ(refused, 14);
}

TEST_F(Shortage, OfAddressSpaceAtABorrowerIsAnErrorAtEveryStep) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer needs terabytes of address space";
  Child owner([&] {
    const Tensor tensor = bytes_of_value(1000, 7);
    note_->write(share(tensor).to_text());
    note_->reach(2);
    EXPECT_TRUE(eventually([] { return stats().borrowers == 0; }));
  });
  int refused = 0;
  for (std::size_t more = 8; more <= 1024; more += more < 512 ? 56 : 256) {
    Child borrower([&] {
      const Handle good = handle(1);
      Limit limit(RLIMIT_AS, address_space_for(more << 20));
      int failed = 0;
      try {
        open(good);
      } catch (const Error& e) {
        EXPECT_TRUE(e.code() == ErrorCode::out_of_mappings || e.code() == ErrorCode::out_of_memory)
            << more << ": " << name(e.code()) << ": " << e.what();
        EXPECT_NE(std::string(e.what()).find("ulimit -v"), std::string::npos) << e.what();
        failed = 1;
      }
      limit.lift();
      EXPECT_EQ(last_byte(open(good)), 7) << more;
      if (!::testing::Test::HasFailure()) _exit(failed ? 50 : 0);
    });
    const int end = borrower.join();
    EXPECT_TRUE(end == 0 || end == 50) << more;
    refused += end == 50;
  }
  EXPECT_GT(refused, 2);
  note_->step = 2;
  EXPECT_EQ(owner.join(), 0);
}

TEST_F(Shortage, OfAddressSpaceAtTheStartOfAnOwnerIsAnErrorAndThenItWorks) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer needs terabytes of address space";
  for (std::size_t more = 8; more <= 512; more += more < 256 ? 8 : 64) {  // a thread wants 8
    Child owner([&] {
      Limit limit(RLIMIT_AS, address_space_for(more << 20));
      try {
        share(bytes_of_value(1000, 1));
      } catch (const Error& e) {
        EXPECT_TRUE(e.code() == ErrorCode::out_of_mappings || e.code() == ErrorCode::out_of_memory)
            << more << ": " << name(e.code()) << ": " << e.what();
      } catch (const std::bad_alloc&) {  // our mappings left no room for the heap, which no Error can help
      }
      limit.lift();
      EXPECT_EQ(last_byte(open(share(bytes_of_value(1000, 9)))), 9);
    });
    EXPECT_EQ(owner.join(), 0) << more;
  }
}

/// Takes all mappings that vm.max_map_count allows, but `spare`.
class MappingHog {
 public:
  explicit MappingHog(int spare) {
    for (;;) {
      // Every second page has another protection, or the kernel would join them.
      void* page = ::mmap(nullptr, 4096, pages_.size() % 2 ? PROT_READ : PROT_NONE,
                          MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (page == MAP_FAILED) break;
      pages_.push_back(page);
    }
    for (int i = 0; i < spare; ++i) release_one();
  }
  ~MappingHog() {
    while (!pages_.empty()) release_one();
  }

 private:
  void release_one() {
    ::munmap(pages_.back(), 4096);
    pages_.pop_back();
  }
  std::vector<void*> pages_ = [] {
    std::vector<void*> room;
    room.reserve(1 << 20);
    return room;
  }();
};

/// So that malloc needs no mapping: the test is of our mappings' failures, not of std::bad_alloc anywhere.
void keep_heap_room() {
  mallopt(M_ARENA_MAX, 1);
  mallopt(M_MMAP_THRESHOLD, 64 << 20);
  mallopt(M_TRIM_THRESHOLD, 64 << 20);
  void* volatile room = std::malloc(16 << 20);
  std::free(room);
}

TEST_F(Shortage, OfMappingsNamesTheLimitAndThenItWorks) {
  std::size_t most = 0;
  std::ifstream("/proc/sys/vm/max_map_count") >> most;
  if (kSanitized || most == 0 || most > 300'000) GTEST_SKIP() << "vm.max_map_count is " << most;
  JoinedChild owner([&] {
    const Tensor small = bytes_of_value(1000, 7);
    const Tensor large = bytes_of_value(40 * kMiB, 8);
    note_->write(share(small).to_text());
    note_->reach(2);
    note_->write(share(large).to_text(), 3);
    note_->reach(4);
  });
  Child borrower([&] {
    keep_heap_room();
    const Tensor small = open(handle(1));
    note_->step = 2;
    const Handle large = handle(3);
    const Footprint before = Footprint::unchanging();
    {
      const MappingHog hog(0);
      expect_refusal(ErrorCode::out_of_mappings, {"vm.max_map_count", std::to_string(most).c_str()},
                     [&] { open(large); });
      expect_refusal(ErrorCode::out_of_mappings, {"vm.max_map_count"},
                     [] { bytes_of_value(40 * kMiB, 1); });
    }
    expect_soon(before);
    EXPECT_EQ(last_byte(open(large)), 8);
    EXPECT_EQ(last_byte(bytes_of_value(40 * kMiB, 1)), 1);
  });
  EXPECT_EQ(borrower.join(), 0);
  note_->step = 4;
}

/// A memory control group of our own, below the one this process is in.
class MemoryGroup {
 public:
  explicit MemoryGroup(std::uint64_t limit) {
    std::ifstream groups("/proc/self/cgroup");
    for (std::string line; std::getline(groups, line);) {
      const auto at = line.find(":memory:");
      if (at != std::string::npos)
        make("/sys/fs/cgroup/memory" + line.substr(at + 8), "memory.limit_in_bytes", limit);
      else if (line.rfind("0::", 0) == 0 && path_.empty())
        make("/sys/fs/cgroup" + line.substr(3), "memory.max", limit);
      if (works_) return;
    }
  }
  ~MemoryGroup() {
    if (!path_.empty()) ::rmdir(path_.c_str());
  }
  bool works() const noexcept { return works_; }
  const std::string& path() const noexcept { return path_; }
  void enter() const { std::ofstream(path_ + "/cgroup.procs") << ::getpid() << std::flush; }

 private:
  void make(const std::string& parent, const std::string& file, std::uint64_t limit) {
    const std::string path = parent + "/onecopy-test-" + std::to_string(::getpid());
    if (::mkdir(path.c_str(), 0755) != 0) return;
    path_ = path;
    std::ofstream out(path + "/" + file);
    works_ = out.is_open() && static_cast<bool>(out << limit << std::flush);
    if (!works_) {
      ::rmdir(path.c_str());
      path_.clear();
    }
  }

  std::string path_;
  bool works_ = false;
};

/// The kernel would kill instead of refusing.
TEST_F(Shortage, OfAMemoryGroupIsRefusedBeforeTheKernelKills) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer's own memory counts as well";
  const MemoryGroup group(96 * kMiB);
  if (!group.works()) GTEST_SKIP() << "no memory control group can be made here";
  Child owner([&] {
    group.enter();
    expect_refusal(ErrorCode::out_of_memory,
                   {group.path().c_str(), "limit 96.0 MiB", "200.0 MiB", "raise the limit"},
                   [] { bytes_of_value(200 * kMiB, 1); });
    for (const std::int64_t size : {40 * kMiB, 6 * kMiB, std::int64_t{100'000}}) {
      std::vector<Tensor> all;
      expect_refusal(ErrorCode::out_of_memory, {"memory limit of the control group"}, [&] {
        while (all.size() < 10'000) all.push_back(bytes_of_value(size, 2));
      });
      EXPECT_FALSE(all.empty());
      all.pop_back();
      all.push_back(bytes_of_value(size, 3));  // there is room again
    }
  });
  EXPECT_EQ(owner.join(), 0) << "-9: the kernel killed it";
}

}  // namespace
}  // namespace onecopy
