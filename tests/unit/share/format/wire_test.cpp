// SPDX-License-Identifier: Apache-2.0
#include "share/format/wire.h"

#include <gtest/gtest.h>

#include "os/memfd.h"
#include "support/refusal.h"

namespace onecopy::wire {
namespace {

using onecopy::testing::expect_refusal;

ExportedMemory sample_memory() {
  ExportedMemory memory{SegmentKind::cuda_ipc, 2 << 20, {}, Bytes(88, std::byte{5}), {}, 3};
  memory.device.bytes[3] = 9;
  return memory;
}

void expect_sample(const ExportedMemory& memory) {
  EXPECT_EQ(memory.kind, SegmentKind::cuda_ipc);
  EXPECT_EQ(memory.size, std::uint64_t{2} << 20);
  EXPECT_EQ(memory.blob, Bytes(88, std::byte{5}));
  EXPECT_EQ(memory.device.bytes[3], 9);
  EXPECT_EQ(memory.missing, 3u);
}

TEST(Wire, MemoryArrivesAsItWasExported) {
  auto read = unpack<Segment>(pack(Segment{Described(sample_memory()), true, false}));
  EXPECT_TRUE(read.has_table);
  EXPECT_FALSE(read.owner_gone);
  expect_sample(std::move(read.memory).with({}));
}

TEST(Wire, ARequestToRetainArrivesWhole) {
  auto read = unpack<Retain>(pack(Retain{"ab", 7, {42, 99}, 5, 6, Described(sample_memory())}));
  EXPECT_EQ(read.owner, "ab");
  EXPECT_EQ(read.segment, 7u);
  EXPECT_EQ(read.origin.pid, 42);
  EXPECT_EQ(read.origin.start_time, 99u);
  EXPECT_EQ(read.queue, 5u);
  EXPECT_EQ(read.number, 6u);
  expect_sample(std::move(read.memory).with({}));
}

TEST(Wire, SeveralSegmentsAreAskedForAndDescribedInOneMessageEach) {
  const auto asked = unpack<WantSegments>(pack(WantSegments{{{7, true, 0}, {9, false, 42}}})).wanted;
  ASSERT_EQ(asked.size(), 2u);
  EXPECT_EQ(asked[0].segment, 7u);
  EXPECT_TRUE(asked[0].read_only);
  EXPECT_EQ(asked[1].number, 42);
  auto described = unpack<Segments>(pack(Segments{{Described(sample_memory()), {}}})).segments;
  ASSERT_EQ(described.size(), 2u);
  expect_sample(std::move(described[0]).with({}));
  EXPECT_EQ(described[1].size, 0u) << "to be asked for alone";
}

TEST(Wire, MessagesThatAreNotWholeAreRefused) {
  const Bytes retain = pack(Retain{"ab", 7, {42, 99}, 5, 6, Described(sample_memory())});
  for (std::size_t size = 0; size < retain.size(); ++size)
    expect_refusal(ErrorCode::protocol, {"cut off"}, [&] { unpack<Retain>(ByteSpan(retain).first(size)); });
  const Bytes segments = pack(Segments{{Described(sample_memory()), {}}});
  for (std::size_t size = 0; size < segments.size(); ++size)
    expect_refusal(ErrorCode::protocol, {"cut off"},
                   [&] { unpack<Segments>(ByteSpan(segments).first(size)); });
}

/// Versions up to 4 had the type and the version in the other order.
TEST(Wire, AMessageOfAnEarlierVersionIsTakenForOneOfAnotherVersion) {
  Bytes packet = pack(Welcome{});
  for (std::uint32_t type = 1; type <= static_cast<std::uint32_t>(kLastType); ++type) {
    write_value(packet.data(), type);
    write_value(packet.data() + sizeof type, std::uint32_t{4});
    expect_refusal(ErrorCode::version_mismatch, {"this one version 64", "same release"},
                   [&] { type_of(packet); });
  }
}

TEST(Wire, AnotherMessageThanExpectedIsRefused) {
  expect(pack(Welcome{}), Type::welcome);
  expect_refusal(ErrorCode::protocol, {"type 4", "8"}, [] { expect(pack(Welcome{}), Type::segment); });
}

TEST(Wire, TheBlockTableComesBeforeTheMemory) {
  std::vector<Fd> fds;
  for (const char* name : {"table", "memory"}) fds.push_back(create_memfd(name, 4096));
  const int table = fds.front().get();
  EXPECT_EQ(take_table(fds).get(), table);
  EXPECT_EQ(fds.size(), 1u);
  fds.clear();
  expect_refusal(ErrorCode::protocol, {"block table"}, [&] { take_table(fds); });
}

TEST(Wire, OnlyMessagesThatNobodyWaitsForGetNoAnswer) {
  for (const Type type : {Type::acknowledge, Type::adopt_child, Type::child_hello, Type::leave_queue,
                          Type::detach, Type::forget, Type::release})
    EXPECT_FALSE(is_answered(type));
  for (const Type type : {Type::hello, Type::prove, Type::want_segment, Type::want_foreign, Type::ask_limbo,
                          Type::retain, Type::want_info, Type{999}})
    EXPECT_TRUE(is_answered(type));
}

}  // namespace
}  // namespace onecopy::wire
