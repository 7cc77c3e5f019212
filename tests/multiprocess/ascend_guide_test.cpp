// SPDX-License-Identifier: Apache-2.0 The published guide to sharing memory between processes on Ascend, step by step:
// a handle and its rebuilding on npu:0, then access from npu:1 to memory of npu:0. The last tests check the
// peculiarities of this memory.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>

#include "onecopy/channel/queue.h"
#include "onecopy/core/error.h"
#include "onecopy/memory/copy.h"
#include "onecopy/share/bundle.h"
#include "onecopy/share/share.h"
#include "onecopy/share/stats.h"
#include "support/ascend_calls.h"
#include "support/child.h"
#include "support/note.h"
#include "support/numbers.h"
#include "support/refusal.h"

namespace onecopy {
namespace {

using testing::Child;
using testing::element;
using testing::eventually;
using testing::expect_refusal;
using testing::JoinedChild;
using testing::Note;
using testing::set_element;
using testing::Shared;

constexpr Device kFirst{DeviceType::npu, 0};
constexpr Device kSecond{DeviceType::npu, 1};

Tensor thousand_on(Device device) {
  const Tensor host = empty(Layout(DType::i64, {1000}));
  for (std::int64_t i = 0; i < 1000; ++i) host.as<std::int64_t>()[i] = i;
  return copy(host.view(), device);
}

class AscendGuide : public ::testing::Test {
 protected:
  void SetUp() override {
    Shared<std::atomic<std::size_t>> count;
    Child looks([&] { *count = backend(DeviceType::npu).devices().size(); });
    looks.join();
    if (*count < 2) GTEST_SKIP() << "needs two Ascend devices";
  }
  /// Shares a tensor on the device until the step, at which a borrower has changed the tensor.
  void lend(Device device, int until = 2) {
    const Tensor tensor = thousand_on(device);
    note->write(share(tensor).to_text());
    note->reach(until);
    EXPECT_EQ(element(tensor, 7), 70);
  }

  Shared<Note> note;
};

TEST_F(AscendGuide, AHandleIsRebuiltOnTheSameCard) {
  JoinedChild producer([&] {
    // 1. Makes a tensor on npu:0.
    const Tensor tensor = thousand_on(kFirst);
    // 2. Its handle, as text for any carrier.
    note->write(share(tensor).to_text());
    // 3. The memory stays until the consumer is done with it, and shows what the consumer wrote.
    note->reach(2);
    EXPECT_EQ(element(tensor, 7), 70);
  });
  JoinedChild consumer([&] {
    // 4. Its memory in another process: no copy is made.
    const Tensor tensor = open(Handle::from_text(note->read()));
    EXPECT_EQ(tensor.device(), kFirst);
    EXPECT_EQ(tensor.shape()[0], 1000);
    EXPECT_EQ(element(tensor, 999), 999);
    set_element<std::int64_t>(tensor, 7, 70);
    note->step = 2;
  });
}

TEST_F(AscendGuide, TheOtherCardReadsTheMemoryWhereItIs) {
  JoinedChild producer([&] { lend(kFirst); });
  JoinedChild consumer([&] {
    const Tensor there = open(Handle::from_text(note->read()));
    const Tensor here = copy(there.view(), kSecond);  // from card to card, not by way of the host
    EXPECT_EQ(here.device(), kSecond);
    EXPECT_EQ(element(here, 999), 999);
    set_element<std::int64_t>(here, 7, 70);
    copy_into(here.view(), there.view());
    note->step = 2;
  });
}

/// The guide's change of the device in the handle's arguments.
TEST_F(AscendGuide, TheHandleIsRebuiltForTheOtherCard) {
  JoinedChild producer([&] { lend(kFirst); });
  JoinedChild consumer([&] {
    const Handle handle = Handle::from_text(note->read());
    const Tensor tensor = open(handle, {.device = kSecond});
    EXPECT_EQ(tensor.device(), kSecond);
    const Tensor mine = copy(tensor.view(), kSecond);  // work of the second card
    EXPECT_EQ(element(mine, 999), 999);
    set_element<std::int64_t>(mine, 7, 70);
    copy_into(mine.view(), tensor.view());
    EXPECT_EQ(element(tensor, 7), 70) << "by way of the second card's own memory";
    EXPECT_EQ(share(tensor).fields().device, handle.fields().device) << "it still is the first card's";
    const Tensor reader = open(handle, {.access = Access::read_only, .device = kSecond});
    expect_refusal(ErrorCode::read_only, {"read-only"}, [&] { copy_into(mine.view(), reader.view()); });
    note->step = 2;
  });
}

/// The data that crosses where no broker of ours is in between.
struct Crossing {
  Note note;
  std::atomic<std::size_t> size{0};
  std::atomic<std::int32_t> number{0};
  std::byte blob[512];
  std::size_t bytes = 0;
};

void lend_to_the_second_card(SegmentKind kind) {
  Shared<Crossing> crossing;
  JoinedChild producer([&] {
    Backend& npu = backend(DeviceType::npu);
    const auto memory = npu.create(0, std::size_t{2} << 20, kind, "0123456789abcdef0123456789abcdef", 1);
    memory->commit(0, memory->size());
    std::int64_t value = 41;
    copy_bytes_and_wait({memory->data(), kFirst, &value, kCpu, sizeof value});
    const ExportedMemory exported = memory->export_memory(Access::read_write);
    crossing->size = exported.size;
    crossing->bytes = exported.blob.size();
    std::copy(exported.blob.begin(), exported.blob.end(), crossing->blob);
    crossing->note.step = 1;
    crossing->note.reach(2);
    npu.admit(exported, crossing->number);
    crossing->note.step = 3;
    crossing->note.reach(4);
    copy_bytes_and_wait({&value, kCpu, memory->data(), kFirst, sizeof value});
    EXPECT_EQ(value, 42);
  });
  JoinedChild consumer([&] {
    Backend& npu = backend(DeviceType::npu);
    crossing->note.reach(1);
    const auto exported = [&] {
      return ExportedMemory{
          kind, crossing->size, {}, Bytes(crossing->blob, crossing->blob + crossing->bytes), {}};
    };
    expect_refusal(ErrorCode::owner_died, {"not lent to this process"},
                   [&] { npu.open(1, exported(), Access::read_write); });
    crossing->number = npu.borrower_number();
    crossing->note.step = 2;
    crossing->note.reach(3);
    const auto memory = npu.open(1, exported(), Access::read_write);
    std::int64_t value = 0;
    copy_bytes_and_wait(
        {&value, kCpu, memory->data(), kSecond, sizeof value});  // by way of npu:1's own memory
    EXPECT_EQ(value, 41);
    ++value;
    copy_bytes_and_wait({memory->data(), kSecond, &value, kCpu, sizeof value});
    const auto reader = npu.open(1, exported(), Access::read_only);
    expect_refusal(ErrorCode::read_only, {"reading only"}, [&] {
      copy_bytes_and_wait({reader->data(), kSecond, &value, kCpu, sizeof value});
    });
    crossing->note.step = 4;
  });
}

TEST_F(AscendGuide, TheOtherCardOpensPhysicalMemoryItself) {
  lend_to_the_second_card(SegmentKind::ascend_vmm);
}
TEST_F(AscendGuide, TheOtherCardOpensMemoryByItsKey) { lend_to_the_second_card(SegmentKind::ascend_key); }

TEST_F(AscendGuide, WithoutAPathBetweenTheCardsThatIsSaid) {
  if (!testing::is_simulated_ascend()) GTEST_SKIP() << "needs cards without a path";
  testing::in_npu_child({{"ONECOPY_SIM_ASCEND_PEERS", "none"}}, [] {
    Backend& npu = backend(DeviceType::npu);
    const auto memory = npu.create(0, std::size_t{2} << 20, SegmentKind::ascend_vmm, "0", 1);
    memory->commit(0, memory->size());
    expect_refusal(ErrorCode::unsupported, {"npu:1 has no path to the memory of npu:0", "copy it"},
                   [&] { npu.open(1, memory->export_memory(Access::read_write), Access::read_write); });
  });
}

class AscendBetweenProcesses : public AscendGuide {};

TEST_F(AscendBetweenProcesses, TheBorrowerFindsTheDeviceByItsUuid) {
  JoinedChild owner([&] { lend(kSecond, 3); });
  Child hidden([&] {
    ::setenv("ASCEND_RT_VISIBLE_DEVICES", "0", 1);
    expect_refusal(ErrorCode::unsupported, {"UUID", "ASCEND_RT_VISIBLE_DEVICES"},
                   [&] { open(Handle::from_text(note->read())); });
    note->step = 2;
  });
  JoinedChild renumbered([&] {
    note->reach(2);
    ::setenv("ASCEND_RT_VISIBLE_DEVICES", "1", 1);
    const Tensor tensor = open(Handle::from_text(note->read()));
    EXPECT_EQ(tensor.device(), kFirst) << "what is 1 to its owner";
    EXPECT_EQ(element(tensor, 999), 999);
    set_element<std::int64_t>(tensor, 7, 70);
    note->step = 3;
  });
  EXPECT_EQ(hidden.join(), 0);
}

/// In a container the driver knows processes by other numbers than getpid().
TEST_F(AscendBetweenProcesses, BorrowersAreAdmittedByTheDriversNumbers) {
  if (!testing::is_simulated_ascend()) GTEST_SKIP() << "needs a container";
  ::setenv("ONECOPY_SIM_ASCEND_NUMBER_OFFSET", "1000000", 1);
  Child owner([&] {
    const Tensor tensor = thousand_on(kFirst);
    note->write(share(tensor).to_text());
    note->reach(2);
  });
  Child borrower([&] {
    EXPECT_EQ(backend(DeviceType::npu).borrower_number(), ::getpid() + 1000000);
    EXPECT_EQ(element(open(Handle::from_text(note->read())), 999), 999);
    note->step = 2;
  });
  EXPECT_EQ(borrower.join(), 0);
  EXPECT_EQ(owner.join(), 0);
  ::unsetenv("ONECOPY_SIM_ASCEND_NUMBER_OFFSET");
}

TEST_F(AscendBetweenProcesses, WithoutVirtualMemoryTheyShareByKey) {
  if (!testing::is_simulated_ascend()) GTEST_SKIP() << "needs an older runtime";
  const testing::RuntimeWithout older("aclrtMallocPhysical");
  const std::string before = std::getenv("ONECOPY_ASCEND_RUNTIME");
  ::setenv("ONECOPY_ASCEND_RUNTIME", older.path().c_str(), 1);
  Child owner([&] {
    const Tensor tensor = thousand_on(kFirst);
    EXPECT_EQ(share(tensor).fields().kind, SegmentKind::ascend_key);
    note->write(share(tensor).to_text());
    ::pause();
  });
  Child borrower([&] {
    const Handle handle = Handle::from_text(note->read());
    const Tensor tensor = open(handle);
    EXPECT_EQ(element(tensor, 999), 999);
    note->step = 2;
    note->reach(3);
    EXPECT_TRUE(eventually([&] {
      try {
        open(handle);
        return false;
      } catch (const Error& error) {
        return error.code() == ErrorCode::owner_died;
      }
    })) << "such memory ends with its process";
  });
  note->reach(2);
  owner.kill();
  note->step = 3;
  EXPECT_EQ(borrower.join(), 0);
  ::setenv("ONECOPY_ASCEND_RUNTIME", before.c_str(), 1);
}

TEST_F(AscendBetweenProcesses, VirtualDevicesShareByKey) {
  if (!testing::is_simulated_ascend()) GTEST_SKIP() << "needs a virtual device";
  JoinedChild owner([&] {
    ::setenv("ONECOPY_SIM_ASCEND_VIRTUAL", "all", 1);
    lend(kFirst);
  });
  JoinedChild borrower([&] {
    ::setenv("ONECOPY_SIM_ASCEND_VIRTUAL", "all", 1);
    const Tensor tensor = open(Handle::from_text(note->read()));
    EXPECT_EQ(element(tensor, 999), 999);
    set_element<std::int64_t>(tensor, 7, 70);
    note->step = 2;
  });
}

TEST_F(AscendBetweenProcesses, WhatIsOpenOutlivesItsOwnerAndIsNotLentOn) {
  Shared<Note> on;
  Child owner([&] {
    const Tensor tensor = thousand_on(kFirst);
    note->write(share(tensor).to_text());
    ::pause();
  });
  JoinedChild middle([&] {
    const Tensor tensor = open(Handle::from_text(note->read()));
    note->step = 2;
    note->reach(3);
    EXPECT_EQ(element(tensor, 999), 999) << "still there";
    on->write(share(tensor).to_text());
    on->reach(2);
    EXPECT_EQ(element(copy(tensor.view()), 999), 999) << "and can be copied";
  });
  note->reach(2);
  owner.kill();
  note->step = 3;
  JoinedChild last([&] {
    expect_refusal(ErrorCode::unsupported, {"Ascend", "is gone", "copy it"},
                   [&] { open(Handle::from_text(on->read())); });
    on->step = 2;
  });
}

TEST_F(AscendBetweenProcesses, WhatAnEndedProducerLeftInAQueueIsSaidToBeLost) {
  Queue queue = Queue::create();
  const Handle handle = queue.handle();
  Child producer([&] {
    Queue out = Queue::connect(handle);
    out.put(thousand_on(kFirst));
  });
  EXPECT_EQ(producer.join(), 0);
  JoinedChild consumer([&] {
    Queue in = Queue::connect(handle);
    expect_refusal(ErrorCode::owner_died, {"lost", "has exited"}, [&] { in.get_tensor(); });
  });
}

TEST_F(AscendBetweenProcesses, AForkedChildIsToldToUseSpawn) {
  JoinedChild parent([] {
    Tensor tensor = thousand_on(kFirst);
    Child child([&] {
      expect_refusal(ErrorCode::unsupported, {"fork", "spawn"}, [] { thousand_on(kFirst); });
      expect_refusal(ErrorCode::unsupported, {"fork", "spawn"}, [&] { element(tensor, 0); });
      tensor.release();
    });
    tensor.release();
    EXPECT_EQ(child.join(), 0);
    EXPECT_EQ(element(thousand_on(kFirst), 9), 9);
  });
}

}  // namespace
}  // namespace onecopy
