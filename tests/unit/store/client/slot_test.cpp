// SPDX-License-Identifier: Apache-2.0
// The rules of a slot, the addresses at which a follower shows one version after another, without a keeper or a process.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "onecopy/core/error.h"
#include "os/memfd.h"
#include "store/client/mapped_memory.h"
#include "support/child.h"
#include "support/limits.h"
#include "support/refusal.h"

namespace onecopy::store {
namespace {

using onecopy::testing::address_space_for;
using onecopy::testing::Child;
using onecopy::testing::expect_refusal;
using onecopy::testing::kSanitized;
using onecopy::testing::Limit;

constexpr std::uint64_t kBytes = 1 << 20;

MappedMemory& memory_of(const BlockRef& block) { return *static_cast<MappedMemory*>(block.group()); }

/// Returns a published version whose bytes are all `value`.
BlockRef make_version(int value, std::uint64_t bytes = kBytes) {
  BlockRef draft = MappedMemory::create(kCpu, bytes);
  MappedMemory& memory = memory_of(draft);
  if (memory.size() != 0) std::fill_n(memory.data(), memory.size(), static_cast<std::byte>(value));
  memory.protect();
  return draft;
}

std::vector<ExportedMemory> parts_of(const BlockRef& version) {
  std::vector<ExportedMemory> parts;
  if (memory_of(version).size() != 0) parts.push_back(memory_of(version).export_chunks());
  return parts;
}

BlockRef open_slot(const BlockRef& version) { return MappedMemory::open(kCpu, parts_of(version), {}); }

void show_in(const BlockRef& slot, std::vector<ExportedMemory> parts, std::uint64_t number = 0) {
  Shown shown;
  shown.version.number = number;
  const BlockRef next = MappedMemory::open(kCpu, std::move(parts), std::move(shown));
  memory_of(slot).take(memory_of(next));
}

/// Returns the value of all bytes; -1 for a mix.
int value_in(const BlockRef& slot) {
  const MappedMemory& memory = memory_of(slot);
  const std::byte first = *memory.data();
  const bool is_whole =
      std::all_of(memory.data(), memory.data() + memory.size(), [=](std::byte at) { return at == first; });
  return is_whole ? static_cast<int>(first) : -1;
}

TEST(ASlot, ShowsEachVersionAtTheSameAddresses) {
  const BlockRef one = make_version(1), two = make_version(2);
  const BlockRef slot = open_slot(one);
  const void* const place = memory_of(slot).data();
  EXPECT_EQ(value_in(slot), 1);
  for (const int value : {2, 1, 2}) {
    show_in(slot, parts_of(value == 1 ? one : two), static_cast<std::uint64_t>(value));
    EXPECT_EQ(value_in(slot), value);
    EXPECT_EQ(memory_of(slot).data(), place);
    EXPECT_EQ(memory_of(slot).shown()->version.number, static_cast<std::uint64_t>(value));
  }
}

TEST(ASlot, HasTheMemoryOfAVersionWhoseMakersHaveDroppedIt) {
  const BlockRef slot = open_slot(make_version(1));
  show_in(slot, parts_of(make_version(2)));
  EXPECT_EQ(value_in(slot), 2);
}

TEST(ASlot, StaysAsItWasIfAVersionHasAnotherSize) {
  const BlockRef slot = open_slot(make_version(1));
  show_in(slot, parts_of(make_version(2)), 2);
  expect_refusal(ErrorCode::bad_handle, {"1048576", "2097152"},
                 [&] { show_in(slot, parts_of(make_version(3, 2 * kBytes)), 3); });
  expect_refusal(ErrorCode::bad_handle, {"0 bytes"}, [&] { show_in(slot, {}, 3); });
  EXPECT_EQ(value_in(slot), 2);
  EXPECT_EQ(memory_of(slot).shown()->version.number, 2u);
}

TEST(ASlot, StaysAsItWasIfAFileIsShorterThanItsVersion) {
  const BlockRef slot = open_slot(make_version(1));
  std::vector<ExportedMemory> parts = parts_of(make_version(2, 4096));
  parts.front().size = kBytes;
  expect_refusal(ErrorCode::bad_handle, {"1048576"}, [&] { show_in(slot, std::move(parts)); });
  EXPECT_EQ(value_in(slot), 1);
}

TEST(ASlot, StaysAsItWasWithoutRoomForASecondMapping) {
  if (kSanitized) GTEST_SKIP() << "sanitizers need the address space";
  const BlockRef one = make_version(1), two = make_version(2);
  Child child([&] {
    const BlockRef slot = open_slot(one);
    std::vector<ExportedMemory> parts = parts_of(two);
    {
      const Limit limit(RLIMIT_AS, address_space_for(kBytes / 2));
      EXPECT_THROW(show_in(slot, std::move(parts)), Error);
    }
    EXPECT_EQ(value_in(slot), 1);
    show_in(slot, parts_of(two));
    EXPECT_EQ(value_in(slot), 2);
  });
  EXPECT_EQ(child.join(), 0);
}

TEST(ASlot, CannotBeWrittenByAnyProcess) {
  const BlockRef version = make_version(1);
  for (const Fd& file : memory_of(version).export_chunks().fds) EXPECT_NE(seals_of(file) & kSealWrite, 0);
  const BlockRef slot = open_slot(version);
  EXPECT_EQ(memory_of(slot).access(), Access::read_only);
  Child writer([&] { *memory_of(slot).data() = std::byte{3}; });
  EXPECT_NE(writer.join(), 0);
  EXPECT_EQ(value_in(slot), 1);
}

TEST(ASlot, IsFoundByTheAddressesOfItsBytes) {
  const BlockRef slot = open_slot(make_version(1));
  const MappedMemory& memory = memory_of(slot);
  const std::byte* const begin = memory.data();
  EXPECT_EQ(MappedMemory::find(begin).group(), slot.group());
  EXPECT_EQ(MappedMemory::find(begin + memory.size() - 1).group(), slot.group());
  EXPECT_FALSE(MappedMemory::find(begin + memory.size()));
  EXPECT_FALSE(MappedMemory::find(begin - 1));
}

TEST(ASlot, IsEmptyForVersionsWithoutBytes) {
  const BlockRef slot = open_slot(make_version(0, 0));
  show_in(slot, {}, 2);
  EXPECT_EQ(memory_of(slot).data(), nullptr);
  EXPECT_EQ(memory_of(slot).shown()->version.number, 2u);
}

TEST(ASlot, LendsNothingOfAVersionThatNoReadingKeeps) {
  const BlockRef slot = open_slot(make_version(1));
  const Tensor tensor(slot, memory_of(slot).data(), Layout(DType::u8, {8}), kCpu, Access::read_only);
  EXPECT_FALSE(memory_of(slot).lend(tensor));
}

}  // namespace
}  // namespace onecopy::store
