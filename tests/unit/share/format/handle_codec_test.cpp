// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>
#include <set>

#include "onecopy/core/error.h"
#include "onecopy/share/handle_fields.h"
#include "support/codec_vectors.h"

namespace onecopy {
namespace {

using test::sample_fields;

/// The error that decoding throws, or an invalid_argument error when it throws none.
Error refusal(ByteSpan bytes) {
  try {
    (void)decode_handle(bytes);
  } catch (const Error& error) {
    return error;
  }
  return Error(ErrorCode::invalid_argument, "decoding succeeded");
}

Error text_refusal(std::string_view text) {
  try {
    (void)from_text(text);
  } catch (const Error& error) {
    return error;
  }
  return Error(ErrorCode::invalid_argument, "reading the text succeeded");
}

Bytes flipped(const Bytes& bytes, std::size_t bit) {
  Bytes changed = bytes;
  changed[bit / 8] ^= static_cast<std::byte>(1u << bit % 8);
  return changed;
}

HandleFields with_timeline() {
  HandleFields f = sample_fields();
  f.timeline_slot = 3;
  f.timeline_value = 1000;
  return f;
}

/// A handle with one more part at its end, and everything consistent with it.
Bytes with_part(std::uint16_t tag, std::uint16_t flags, const Bytes& content, std::uint32_t length) {
  Bytes handle = encode(sample_fields());
  const std::size_t at = handle.size();
  handle.resize(at + 8);
  write_value(handle.data() + at, tag);
  write_value(handle.data() + at + 2, flags);
  write_value(handle.data() + at + 4, length);
  handle.insert(handle.end(), content.begin(), content.end());
  write_value(handle.data() + 8, static_cast<std::uint32_t>(handle.size()));
  test::reseal_handle(handle);
  return handle;
}

Bytes with_part(std::uint16_t tag, std::uint16_t flags, const Bytes& content) {
  return with_part(tag, flags, content, static_cast<std::uint32_t>(content.size()));
}

TEST(HandleCodec, MatchesTheVectorsOfItsPageBothWays) {
  const auto vectors = test::read_vectors("docs/design/formats/handle-v1.md");
  ASSERT_GE(vectors.size(), 3u);
  for (const auto& vector : vectors) {
    SCOPED_TRACE(vector.title);
    const HandleFields fields = test::parse_fields(vector.text("fields"));
    const Bytes bytes = test::from_hex(vector.text("hex"));
    EXPECT_EQ(test::to_hex(encode(fields)), vector.text("hex"));
    EXPECT_EQ(decode_handle(bytes), fields);
    EXPECT_EQ(to_text(bytes) + "\n", vector.text("text"));
    EXPECT_EQ(from_text(vector.text("text")), bytes);
  }
}

TEST(HandleCodec, CarriesEveryDTypeAndNumberOfDimensions) {
  for (int dtype = static_cast<int>(kFirstDType); dtype <= static_cast<int>(kLastDType); ++dtype)
    for (std::size_t ndim = 0; ndim <= kMaxDims; ++ndim) {
      HandleFields f = sample_fields();
      std::vector<std::int64_t> shape(ndim, 1);
      if (ndim > 0) shape[ndim / 2] = 3;
      f.layout = Layout(static_cast<DType>(dtype), shape);
      const Bytes bytes = encode(f);
      ASSERT_EQ(bytes.size(), 128 + 16 * ndim);
      ASSERT_EQ(decode_handle(bytes), f);
    }
}

TEST(HandleCodec, CarriesEveryField) {
  const std::vector<std::function<void(HandleFields&)>> changes{
      [](HandleFields& f) { f.boot[7] = 0xFF; },
      [](HandleFields& f) { f.owner[15] = 0xFF; },
      [](HandleFields& f) { f.maker[0] = 0xFF; },
      [](HandleFields& f) {
        f.device_type = DeviceType::npu;
        f.kind = SegmentKind::ascend_vmm;
        f.device.bytes[3] = 9;
      },
      [](HandleFields& f) { f.kind = SegmentKind::named_file; },
      [](HandleFields& f) { f.segment = ~0u; },
      [](HandleFields& f) { f.segment_size = std::uint64_t{1} << 62; },
      [](HandleFields& f) { f.block = ~0u; },
      [](HandleFields& f) { f.generation = kMaxHandleGeneration; },
      [](HandleFields& f) { f.storage_size = f.segment_size; },
      [](HandleFields& f) { f.tensor_offset = 129; },
      [](HandleFields& f) { f.hold = ~std::uint64_t{0}; },
      [](HandleFields& f) { f.flags = kHandleIsBundle | kHandleIsReadOnly; },
      [](HandleFields& f) {
        f.layout = Layout(DType::u8, {2, 0, 4, 5});
      },
      [](HandleFields& f) { f.timeline_slot = ~0u; },
      [](HandleFields& f) { f.timeline_value = kMaxHandleGeneration; },
  };
  for (std::size_t i = 0; i < changes.size(); ++i) {
    SCOPED_TRACE(i);
    HandleFields f = sample_fields();
    changes[i](f);
    EXPECT_NE(f, sample_fields());
    EXPECT_EQ(decode_handle(encode(f)), f);
  }
}

TEST(HandleCodec, AllowsATensorThatEndsWhereItsStorageEnds) {
  HandleFields f = sample_fields();
  f.storage_size = f.segment_size = f.tensor_offset + f.layout.extent_bytes();
  EXPECT_EQ(decode_handle(encode(f)), f);
  --f.storage_size;
  EXPECT_EQ(refusal(encode(f)).code(), ErrorCode::bad_handle);
}

TEST(HandleCodec, AllowsAnEmptyTensorAtTheEndOfItsStorage) {
  HandleFields f = sample_fields();
  f.layout = Layout(DType::f64, {0});
  f.tensor_offset = f.storage_size;
  EXPECT_EQ(decode_handle(encode(f)), f);
  ++f.tensor_offset;
  EXPECT_EQ(refusal(encode(f)).code(), ErrorCode::bad_handle);
}

TEST(HandleCodec, RefusesEveryFlippedBit) {
  for (const HandleFields& fields : {sample_fields(), with_timeline()}) {
    const Bytes bytes = encode(fields);
    for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
      const ErrorCode expected =
          bit / 8 == 6 || bit / 8 == 7 ? ErrorCode::version_mismatch : ErrorCode::bad_handle;
      ASSERT_EQ(refusal(flipped(bytes, bit)).code(), expected) << "bit " << bit;
    }
  }
}

TEST(HandleCodec, RefusesEveryTruncationAndEverythingAppended) {
  const Bytes bytes = encode(with_timeline());
  for (std::size_t size = 0; size < bytes.size(); ++size)
    ASSERT_EQ(refusal(ByteSpan(bytes).first(size)).code(), ErrorCode::bad_handle) << size;
  Bytes longer = bytes;
  longer.push_back(std::byte{0});
  EXPECT_NE(std::string(refusal(longer).what()).find("has 184 bytes, but 185 are here"), std::string::npos)
      << refusal(longer).what();
}

/// A valid handle with one field overwritten and its checksum right again: only the field's own check
/// can refuse it.
struct Lie {
  const char* name;
  std::size_t offset;
  std::uint64_t value;
  std::size_t size;
  const char* message;
  ErrorCode code = ErrorCode::bad_handle;
};

class HandleLies : public ::testing::TestWithParam<Lie> {};

TEST_P(HandleLies, AreRefusedWithTheirOwnMessage) {
  const Lie& lie = GetParam();
  Bytes bytes = encode(with_timeline());
  std::memcpy(bytes.data() + lie.offset, &lie.value, lie.size);
  test::reseal_handle(bytes);
  const Error error = refusal(bytes);
  EXPECT_EQ(error.code(), lie.code) << error.what();
  EXPECT_NE(std::string(error.what()).find(lie.message), std::string::npos) << error.what();
}

constexpr std::uint64_t kMinus1 = ~std::uint64_t{0};
constexpr std::uint64_t kHuge = std::uint64_t{1} << 62;

/// Offsets as in docs/design/formats/handle-v1.md; dimensions from 128, the timeline part from 160.
const Lie kLies[] = {
    {"Magic", 0, 'x', 1, "do not begin with \"1COPY\""},
    {"Version", 6, 2, 2, "has format version 2", ErrorCode::version_mismatch},
    {"LengthTooShort", 8, 128, 4, "says that it has 128 bytes, but 184 are here"},
    {"LengthTooLong", 8, 185, 4, "says that it has 185 bytes, but 184 are here"},
    {"CpuWithUuid", 56, 1, 1, "gives the CPU the UUID"},
    {"DeviceTypeZero", 72, 0, 1, "device type 0"},
    {"DeviceType", 72, 4, 1, "device type 4"},
    {"KindZero", 73, 0, 1, "segment kind 0, which does not exist"},
    {"Kind", 73, 10, 1, "segment kind 10, which does not exist"},
    {"KindOfAnotherDevice", 73, 3, 1, "segment kind 3 is not memory of a cpu device"},
    {"DeviceOfAnotherKind", 72, 2, 1, "segment kind 1 is not memory of a cuda device"},
    {"DTypeZero", 74, 0, 1, "0 is not the number of a dtype"},
    {"DType", 74, 21, 1, "21 is not the number of a dtype"},
    {"TooManyDimensions", 75, 65, 1, "has 65 dimensions; the most is 64"},
    {"MoreDimensionsThanBytes", 75, 4, 1, "has 4 dimensions but only 56 bytes for them"},
    {"SegmentZero", 76, 0, 4, "names segment 0"},
    {"SegmentSize", 80, kMinus1, 8, "gives its segment 18446744073709551615 bytes"},
    {"SegmentSmallerThanStorage", 80, 4095, 8, "a storage of 4096 bytes in a segment of 4095 bytes"},
    {"Flags", 92, 8, 4, "has unknown flags 0x8"},
    {"Generation", 96, kHuge, 8, "has generation 4611686018427387904"},
    {"StorageLargerThanSegment", 104, 1 << 27, 8, "a storage of 134217728 bytes in a segment of 67108864"},
    {"StorageTooSmall", 104, 291, 8, "a tensor of 164 bytes at byte 128 of a storage of 291 bytes"},
    {"OffsetTooLarge", 112, 3933, 8, "a tensor of 164 bytes at byte 3933 of a storage of 4096 bytes"},
    {"OffsetThatOverflows", 112, kMinus1, 8, "a tensor of 164 bytes at byte 18446744073709551615"},
    {"NegativeSize", 128, kMinus1, 8, "size -1 of dimension 0 is negative"},
    {"NegativeStride", 152, kMinus1, 8, "stride -1 of dimension 1 is negative"},
    {"SizeThatOverflows", 128, kHuge, 8, "needs more than 2^63 - 1 bytes"},
    {"StrideThatOverflows", 136, kHuge, 8, "needs more than 2^63 - 1 bytes"},
    {"ExtentTooLarge", 136, 1024, 8, "a tensor of 8228 bytes at byte 128 of a storage of 4096 bytes"},
    {"PartUnknown", 160, 2, 2, "part with tag 2 that must be understood", ErrorCode::version_mismatch},
    {"PartFlags", 162, 3, 2, "unknown flags 0x3 on its part with tag 1"},
    {"TimelineNotRequired", 162, 0, 2, "timeline part of 16 bytes with flags 0"},
    {"PartTooLong", 164, 17, 4, "a part with tag 1 of 17 bytes where only 16 are left"},
    {"PartLongerThanAnything", 164, 0xFFFFFFFF, 4, "of 4294967295 bytes where only 16 are left"},
    {"TimelineTooShort", 164, 8, 4, "timeline part of 8 bytes"},
    {"TimelineReserved", 172, 5, 4, "has 5 in the reserved bytes of its timeline part"},
    {"TimelineValue", 176, kHuge, 8, "waits for timeline value 4611686018427387904"},
};

INSTANTIATE_TEST_SUITE_P(HandleCodec, HandleLies, ::testing::ValuesIn(kLies),
                         [](const auto& lie) { return lie.param.name; });

TEST(HandleCodec, RefusesATimelinePartThatNamesNothing) {
  const Bytes handle = with_part(1, 1, Bytes(16));
  EXPECT_NE(std::string(refusal(handle).what()).find("names nothing to wait for"), std::string::npos);
}

TEST(HandleCodec, RefusesASecondTimelinePart) {
  Bytes twice = encode(with_timeline());
  const Bytes part(twice.end() - 24, twice.end());
  twice.insert(twice.end(), part.begin(), part.end());
  write_value(twice.data() + 8, static_cast<std::uint32_t>(twice.size()));
  test::reseal_handle(twice);
  EXPECT_NE(std::string(refusal(twice).what()).find("two timeline parts"), std::string::npos);
}

TEST(HandleCodec, SkipsUnknownPartsThatNeedNotBeUnderstood) {
  EXPECT_EQ(decode_handle(with_part(77, 0, Bytes(5))), sample_fields());
  EXPECT_EQ(decode_handle(with_part(77, 0, {})), sample_fields());
}

TEST(HandleCodec, RefusesStrayBytesAfterTheLastPart) {
  for (std::size_t stray = 1; stray < 8; ++stray) {
    Bytes handle = encode(sample_fields());
    handle.resize(handle.size() + stray);
    write_value(handle.data() + 8, static_cast<std::uint32_t>(handle.size()));
    test::reseal_handle(handle);
    EXPECT_NE(std::string(refusal(handle).what()).find(fmt::format("{} stray bytes", stray)),
              std::string::npos);
  }
}

TEST(HandleCodec, RefusesAHandleLargerThanAnyCanBe) {
  EXPECT_EQ(decode_handle(with_part(77, 0, Bytes(4096 - 168))), sample_fields());
  const Error error = refusal(with_part(77, 0, Bytes(4096 - 167)));
  EXPECT_NE(std::string(error.what()).find("has 4097 bytes; the most is 4096"), std::string::npos)
      << error.what();
}

TEST(HandleCodec, SaysSoWhenGivenTextInsteadOfBytes) {
  const std::string text = to_text(encode(sample_fields()));
  const Error error = refusal(std::as_bytes(std::span(text)));
  EXPECT_NE(std::string(error.what()).find("from_text"), std::string::npos) << error.what();
}

TEST(HandleText, SurvivesWhiteSpaceAroundIt) {
  const Bytes bytes = encode(sample_fields());
  EXPECT_EQ(from_text(" \t\r\n" + to_text(bytes) + "\r\n "), bytes);
}

TEST(HandleText, CarriesBytesOfAnyLength) {
  Bytes bytes;
  for (int size = 0; size < 300; ++size) {
    ASSERT_EQ(from_text(to_text(bytes)), bytes);
    bytes.push_back(static_cast<std::byte>(size * 37));
  }
}

TEST(HandleText, UsesOnlyCharactersThatAreSafeInUrls) {
  Bytes bytes;
  for (int i = 0; i < 256; ++i)
    for (int k = 0; k < 3; ++k) bytes.push_back(static_cast<std::byte>(i * (k * 2 + 1)));
  const std::string text = to_text(bytes);
  const std::string_view body = std::string_view(text).substr(8);
  EXPECT_EQ(std::set<char>(body.begin(), body.end()).size(), 64u);
  EXPECT_EQ(body.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"),
            std::string_view::npos);
}

TEST(HandleText, NamesWhatIsWrong) {
  const std::string good = to_text(encode(sample_fields()));
  const std::pair<std::string, const char*> cases[] = {
      {"", "is empty"},
      {" \n", "is empty"},
      {"onecopy", "does not begin with \"onecopy:\""},
      {"Onecopy:AAAA", "does not begin with \"onecopy:\""},
      {"torch:AAAA", "does not begin with \"onecopy:\""},
      {"onecopy:AA+A", "character \"+\" at position 10"},
      {"onecopy:AA A", "white space at position 10"},
      {"onecopy:AA\nAA", "white space at position 10"},
      {"onecopy:AAA=", "character \"=\" at position 11"},
      {"onecopy:AAAAA", "position 12: it was cut off"},
      {"onecopy:AAB", "position 10: it was cut off"},
      {"onecopy:" + std::string(10000, 'A'), "10000 characters, more than any handle"},
  };
  for (const auto& [text, message] : cases) {
    const Error error = text_refusal(text);
    EXPECT_EQ(error.code(), ErrorCode::bad_handle) << text;
    EXPECT_NE(std::string(error.what()).find(message), std::string::npos) << error.what();
  }
}

/// The part that is lost when a long line is copied from a terminal; the length stands in the first 24 characters.
TEST(HandleText, SaysHowMuchOfItIsMissing) {
  const std::string text = to_text(encode(with_timeline()));
  for (std::size_t size = 24; size < text.size(); ++size) {
    const Error error = text_refusal(text.substr(0, size));
    EXPECT_EQ(error.code(), ErrorCode::bad_handle);
    ASSERT_NE(std::string(error.what())
                  .find(fmt::format(
                      "is cut off or was changed: its text has {} characters and begins like one of {};",
                      size, text.size())),
              std::string::npos)
        << error.what();
  }
  const std::string shortest =
      fmt::format("has 18 characters and begins like one of {};", 8 + (128 * 4 + 2) / 3);
  const Error error = text_refusal(text.substr(0, 18));
  EXPECT_NE(std::string(error.what()).find(shortest), std::string::npos) << error.what();
}

TEST(HandleText, RefusesEveryTruncation) {
  const std::string text = to_text(encode(with_timeline()));
  for (std::size_t size = 0; size < text.size(); ++size)
    ASSERT_THROW((void)decode_handle(from_text(text.substr(0, size))), Error) << size;
}

}  // namespace
}  // namespace onecopy
