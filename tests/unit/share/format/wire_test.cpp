// SPDX-License-Identifier: Apache-2.0
#include "share/format/wire.h"

#include <gtest/gtest.h>

#include "support/refusal.h"

namespace onecopy::wire {
namespace {

using onecopy::testing::expect_refusal;

ByteSpan text(std::string_view t) { return std::as_bytes(std::span(t)); }

TEST(Wire, GivesBackTypeBodyAndTail) {
  const Bytes packet = pack(Segment{1 << 20, 2, 1, 0, {}}, text("path"));
  EXPECT_EQ(type_of(packet), Type::segment);
  EXPECT_EQ(body_of<Segment>(packet).size, 1u << 20);
  EXPECT_EQ(body_of<Segment>(packet).kind, 2);
  const ByteSpan tail = tail_of<Segment>(packet);
  EXPECT_TRUE(std::equal(tail.begin(), tail.end(), text("path").begin(), text("path").end()));
}

TEST(Wire, BodiesThatAreNotWholeAreRefused) {
  const Bytes packet = pack(Retain{});
  for (std::size_t size = 0; size < packet.size(); ++size)
    expect_refusal(ErrorCode::protocol, {"bytes"}, [&] { body_of<Retain>(ByteSpan(packet).first(size)); });
  EXPECT_TRUE(tail_of<Retain>(packet).empty());
}

TEST(Wire, SeveralSegmentsAreAskedForAndDescribedInOneMessageEach) {
  const std::vector<WantSegment> wanted{{7, 1, 0}, {9, 0, 42}};
  const std::vector<WantSegment> read = segments_wanted(want_segments(wanted));
  ASSERT_EQ(read.size(), 2u);
  EXPECT_EQ(read[0].segment, 7u);
  EXPECT_EQ(read[0].read_only, 1);
  EXPECT_EQ(read[1].number, 42);
  Bytes tail;
  std::optional<ExportedMemory> memory =
      ExportedMemory{SegmentKind::cuda_ipc, 2 << 20, {}, Bytes(88, std::byte{5}), {}};
  memory->device.bytes[3] = 9;
  add_segment(tail, memory);
  add_segment(tail, {});
  const auto described = segments_in(pack(Segments{2}, tail), 2);
  ASSERT_TRUE(described[0]);
  EXPECT_FALSE(described[1]) << "to be asked for alone";
  EXPECT_EQ(described[0]->kind, SegmentKind::cuda_ipc);
  EXPECT_EQ(described[0]->size, std::uint64_t{2} << 20);
  EXPECT_EQ(described[0]->blob, memory->blob);
  EXPECT_EQ(described[0]->device, memory->device);
}

TEST(Wire, SegmentsThatAreNotAllThereAreRefused) {
  const std::vector<WantSegment> wanted(3);
  const Bytes question = want_segments(wanted);
  for (std::size_t size = 12; size < question.size(); ++size)
    expect_refusal(ErrorCode::protocol, {}, [&] { segments_wanted(ByteSpan(question).first(size)); });
  expect_refusal(ErrorCode::protocol, {"65 segments"},
                 [&] { segments_wanted(want_segments(std::vector<WantSegment>(kMaxAskedAtOnce + 1))); });
  Bytes tail;
  for (int i = 0; i < 3; ++i) add_segment(tail, ExportedMemory{SegmentKind::cuda_ipc, 1, {}, Bytes(8), {}});
  const Bytes answer = pack(Segments{3}, tail);
  EXPECT_EQ(segments_in(answer, 3).size(), 3u);
  for (std::size_t size = 12; size < answer.size(); ++size)
    expect_refusal(ErrorCode::protocol, {}, [&] { segments_in(ByteSpan(answer).first(size), 3); });
  expect_refusal(ErrorCode::protocol, {}, [&] { segments_in(answer, 2); });
  expect_refusal(ErrorCode::protocol, {}, [&] { segments_in(pack(Segments{2}, tail), 2); });
}

TEST(Wire, AnAnswerIsKnownByItsQuestionsSerial) {
  Bytes packet = pack(Limbo{1});
  EXPECT_EQ(serial_of(packet), 0u);
  set_serial(packet, 4711);
  EXPECT_EQ(serial_of(packet), 4711u);
  EXPECT_EQ(type_of(packet), Type::limbo);
  EXPECT_EQ(body_of<Limbo>(packet).yes, 1);
}

TEST(Wire, OtherVersionsAreRefusedWithBothNumbers) {
  Bytes packet = pack(Hello{});
  write_value(packet.data() + 4, std::uint32_t{9});
  const std::string ours = "this one " + std::to_string(kVersion);
  expect_refusal(ErrorCode::version_mismatch, {"version 9", ours.c_str(), "same release"},
                 [&] { type_of(packet); });
  expect_refusal(ErrorCode::protocol, {"3 bytes"}, [&] { type_of(ByteSpan(packet).first(3)); });
}

TEST(Wire, ARefusalArrivesAsTheErrorItWas) {
  const Bytes packet = refuse(Error(ErrorCode::stale_handle, "freed"));
  EXPECT_EQ(expect_refusal(ErrorCode::stale_handle, {}, [&] { expect(packet, Type::segment); }), "freed");
}

TEST(Wire, ARefusalWithACodeThatDoesNotExistIsAProtocolError) {
  for (int code = 0; code < 256; ++code) {
    const Bytes packet = pack(Refused{static_cast<ErrorCode>(code)});
    if (std::string_view(name(static_cast<ErrorCode>(code))) == "unknown")
      expect_refusal(ErrorCode::protocol, {"does not exist"}, [&] { expect(packet, Type::segment); });
    else expect_refusal(static_cast<ErrorCode>(code), {}, [&] { expect(packet, Type::segment); });
  }
}

TEST(Wire, AnotherMessageThanExpectedIsRefused) {
  expect(pack(Welcome{}), Type::welcome);
  expect_refusal(ErrorCode::protocol, {"type 4", "8"}, [] { expect(pack(Welcome{}), Type::segment); });
}

TEST(Wire, NamesOfAnyLengthFitOrAreCut) {
  EXPECT_EQ(to_string(to_name("0123456789abcdef0123456789abcdef")), "0123456789abcdef0123456789abcdef");
  EXPECT_EQ(to_string(to_name(std::string(40, 'x'))), std::string(32, 'x'));
  EXPECT_EQ(to_string(to_name("")).size(), 32u);
}

TEST(Wire, OnlyMessagesThatNobodyWaitsForGetNoAnswer) {
  for (const Type type : {Type::acknowledge, Type::adopt_child, Type::child_hello, Type::leave_queue,
                          Type::forget, Type::release})
    EXPECT_FALSE(is_answered(type));
  for (const Type type : {Type::hello, Type::prove, Type::want_segment, Type::want_foreign, Type::ask_limbo,
                          Type::retain, Type::want_info, Type{999}})
    EXPECT_TRUE(is_answered(type));
}

}  // namespace
}  // namespace onecopy::wire
