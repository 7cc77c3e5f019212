// SPDX-License-Identifier: Apache-2.0
#include "share/format/bundle_codec.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>

#include "onecopy/core/error.h"
#include "support/codec_vectors.h"

namespace onecopy {
namespace {

using test::sample_fields;

template <class Action>
Error refusal(Action&& action) {
  try {
    action();
  } catch (const Error& error) {
    return error;
  }
  return Error(ErrorCode::unsupported, "nothing was refused");
}

Error refusal_of_table(ByteSpan table) {
  return refusal([&] { BundleReader reader(table); });
}

bool says(const Error& error, std::string_view words) {
  return std::string_view(error.what()).find(words) != std::string_view::npos;
}

HandleFields fields_of_row(std::size_t i) {
  HandleFields f = sample_fields();
  f.segment = static_cast<std::uint32_t>(1 + i % 3);
  f.block = static_cast<std::uint32_t>(i);
  f.generation = 1000 + i;
  f.flags = i % 2 == 0 ? 0 : kHandleIsReadOnly;
  std::vector<std::int64_t> shape(i % (kMaxDims + 1), 1);
  f.layout = Layout(static_cast<DType>(1 + i % 20), shape);
  return f;
}

std::string name_of_row(std::size_t i) { return fmt::format("blocks.{}.gewicht-für-{}", i / 4, i); }

/// Returns a table of three rows with two origins. kRowLies uses offsets in row 1.
Bytes sample_table() {
  BundleWriter writer;
  HandleFields f = sample_fields();
  writer.add("first", f);
  writer.add("second", f);
  f.segment = 8;
  writer.add("third", f);
  return writer.finish(test::from_hex("0102030405"));
}

TEST(BundleCodec, MatchesTheVectorsOfItsPageBothWays) {
  const auto vectors = test::read_vectors("docs/design/formats/bundle-v1.md");
  ASSERT_GE(vectors.size(), 2u);
  for (const auto& vector : vectors) {
    SCOPED_TRACE(vector.title);
    const Bytes table = test::from_hex(vector.text("hex"));
    const BundleReader reader(table);
    BundleWriter writer;
    for (const auto& block : vector.blocks) {
      if (block.kind != "row") continue;
      const HandleFields fields = test::parse_fields(block.text);
      const std::string name = test::value_of(block.text, "name");
      EXPECT_EQ(reader.fields(writer.size()), fields);
      EXPECT_EQ(reader.name(writer.size()), name);
      writer.add(name, fields);
    }
    const Bytes structure = test::from_hex(vector.text("structure"));
    EXPECT_EQ(reader.size(), writer.size());
    EXPECT_EQ(Bytes(reader.structure().begin(), reader.structure().end()), structure);
    EXPECT_EQ(test::to_hex(writer.finish(structure)), vector.text("hex"));
  }
}

TEST(BundleCodec, GivesBackEveryRowInItsOrder) {
  constexpr std::size_t kRows = 5000;
  BundleWriter writer;
  writer.reserve(kRows);
  for (std::size_t i = 0; i < kRows; ++i) writer.add(name_of_row(i), fields_of_row(i));
  const Bytes table = writer.finish();
  const BundleReader reader(table);
  ASSERT_EQ(reader.size(), kRows);
  EXPECT_EQ(reader.origins().size(), 3u);
  EXPECT_TRUE(reader.structure().empty());
  for (std::size_t i = 0; i < kRows; ++i) {
    ASSERT_EQ(reader.fields(i), fields_of_row(i));
    ASSERT_EQ(reader.name(i), name_of_row(i));
    ASSERT_EQ(reader.find(name_of_row(i)), i);
  }
  EXPECT_EQ(reader.find("blocks"), std::nullopt);
  EXPECT_EQ(reader.find(""), std::nullopt);
}

TEST(BundleCodec, WritesIntoMemoryOfTheCallerWhatItReturns) {
  BundleWriter writer;
  for (std::size_t i = 0; i < 10; ++i) writer.add(name_of_row(i), fields_of_row(i));
  const Bytes structure = test::from_hex("aabbcc");
  Bytes there(writer.finished_size(structure.size()));
  writer.finish(structure, there);
  EXPECT_EQ(there, writer.finish(structure));
}

TEST(BundleCodec, MayBeEmpty) {
  const Bytes table = BundleWriter().finish();
  const BundleReader reader(table);
  EXPECT_EQ(reader.size(), 0u);
  EXPECT_EQ(reader.find("x"), std::nullopt);
  EXPECT_EQ(refusal([&] { (void)reader.fields(0); }).code(), ErrorCode::invalid_argument);
  EXPECT_EQ(refusal([&] { (void)reader.name(0); }).code(), ErrorCode::invalid_argument);
}

TEST(BundleCodec, FindsTheFirstRowOfANameThatRepeats) {
  BundleWriter writer;
  for (const char* name : {"a", "", "b", "a", "", "b"}) writer.add(name, sample_fields());
  const Bytes table = writer.finish();
  const BundleReader reader(table);
  EXPECT_EQ(reader.find("a"), 0u);
  EXPECT_EQ(reader.find(""), 1u);
  EXPECT_EQ(reader.find("b"), 2u);
  EXPECT_EQ(reader.name(5), "b");
}

TEST(BundleCodec, FindsNamesFromSeveralThreadsAtOnce) {
  BundleWriter writer;
  for (std::size_t i = 0; i < 500; ++i) writer.add(name_of_row(i), sample_fields());
  const Bytes table = writer.finish();
  const BundleReader reader(table);
  std::atomic<std::size_t> found{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (std::size_t i = 0; i < 500; ++i)
        if (reader.find(name_of_row(i)) == i) ++found;
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(found, 2000u);
}

TEST(BundleWriterTest, RefusesRowsThatABundleCannotCarry) {
  struct Case {
    const char* words;
    std::string name;
    void (*change)(HandleFields&);
  };
  const Case cases[] = {
      {"itself a bundle", "x", [](HandleFields& f) { f.flags = kHandleIsBundle; }},
      {"unknown flags", "x", [](HandleFields& f) { f.flags = 1 << 16; }},
      {"a hold or timeline", "x", [](HandleFields& f) { f.hold = 1; }},
      {"a hold or timeline", "x", [](HandleFields& f) { f.timeline_slot = 1; }},
      {"a hold or timeline", "x", [](HandleFields& f) { f.timeline_value = 1; }},
      {"another boot", "x", [](HandleFields& f) { f.boot[0] = 77; }},
      {"not UTF-8", "\xC3", [](HandleFields&) {}},
      {"not UTF-8", "\xED\xA0\x80", [](HandleFields&) {}},
      {"not UTF-8", "latin-1 f\xFCr alle", [](HandleFields&) {}},
  };
  for (const Case& c : cases) {
    BundleWriter writer;
    writer.add("good", sample_fields());
    HandleFields f = sample_fields();
    c.change(f);
    const Error error = refusal([&] { writer.add(c.name, f); });
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    EXPECT_TRUE(says(error, c.words)) << error.what();
    EXPECT_TRUE(says(error, "Row 1 ")) << error.what();
    EXPECT_EQ(BundleReader(writer.finish()).size(), 1u);
  }
}

TEST(BundleReaderTest, RefusesEveryFlippedBit) {
  const Bytes table = sample_table();
  for (std::size_t bit = 0; bit < table.size() * 8; ++bit) {
    Bytes changed = table;
    changed[bit / 8] ^= static_cast<std::byte>(1u << bit % 8);
    const ErrorCode expected =
        bit / 8 == 6 || bit / 8 == 7 ? ErrorCode::version_mismatch : ErrorCode::bad_handle;
    ASSERT_EQ(refusal_of_table(changed).code(), expected) << "bit " << bit;
  }
}

TEST(BundleReaderTest, RefusesEveryTruncationAndEverythingAppended) {
  const Bytes table = sample_table();
  for (std::size_t size = 0; size < table.size(); ++size)
    ASSERT_EQ(refusal_of_table(ByteSpan(table).first(size)).code(), ErrorCode::bad_handle) << size;
  Bytes longer = table;
  longer.push_back(std::byte{0});
  EXPECT_TRUE(says(refusal_of_table(longer), "but 454 are here")) << refusal_of_table(longer).what();
}

/// One field overwritten and both checksums right again: only the field's own check can refuse it.
struct TableLie {
  const char* name;
  std::size_t offset;
  std::uint64_t value;
  std::size_t size;
  const char* message;
  ErrorCode code = ErrorCode::bad_handle;
};

Bytes lying_table(const TableLie& lie) {
  Bytes table = sample_table();
  std::memcpy(table.data() + lie.offset, &lie.value, lie.size);
  test::reseal_table(table);
  return table;
}

constexpr std::uint64_t kMinus1 = ~std::uint64_t{0};

/// Offsets as in docs/design/formats/bundle-v1.md; the second origin begins at 128.
const TableLie kHeaderLies[] = {
    {"Magic", 0, 'x', 1, "does not begin with \"1CBND\""},
    {"Version", 6, 2, 2, "has format version 2", ErrorCode::version_mismatch},
    {"Length", 24, 434, 8, "says that it has 434 bytes, but 453 are here"},
    {"LengthHuge", 24, kMinus1, 8, "says that it has 18446744073709551615 bytes"},
    {"MoreRows", 32, 4, 4, "dimensions take 96 x 1 bytes, but only 69 are left"},
    {"ManyRows", 32, 0xFFFFFFFF, 4, "4294967295 x 48 bytes"},
    {"FewerRows", 32, 2, 4, "has 48 bytes after its last section"},
    {"ManyOrigins", 36, 0xFFFFFFFF, 4, "4294967295 x 64 bytes"},
    {"FewerOrigins", 36, 1, 4, "has 64 bytes after its last section"},
    {"DimensionsHuge", 40, kMinus1, 8, "dimensions take 18446744073709551615 x 1 bytes"},
    {"DimensionsLess", 40, 80, 8, "has 16 bytes after its last section"},
    {"NamesHuge", 48, kMinus1, 8, "names take 18446744073709551615 x 1 bytes"},
    {"StructureHuge", 56, kMinus1, 8, "structure bytes take 18446744073709551615 x 1 bytes"},
    {"StructureLess", 56, 4, 8, "has 1 bytes after its last section"},
    {"OriginSegmentZero", 128 + 48, 0, 4, "Origin 1 of this bundle names segment 0"},
    {"OriginDeviceType", 128 + 52, 9, 1, "Origin 1 of this bundle names device type 9"},
    {"OriginKind", 128 + 53, 10, 1, "Origin 1 of this bundle names segment kind 10"},
    {"OriginKindOfAnotherDevice", 128 + 53, 3, 1, "segment kind 3 is not memory of a cpu device"},
    {"OriginUuid", 128 + 32, 1, 1, "Origin 1 of this bundle gives the CPU the UUID"},
    {"OriginReserved", 128 + 54, 1, 2, "Origin 1 of this bundle has 1 in its reserved bytes"},
    {"OriginSegmentSize", 128 + 56, kMinus1, 8, "Origin 1 of this bundle gives its segment"},
};

class TableLies : public ::testing::TestWithParam<TableLie> {};

TEST_P(TableLies, AreRefusedWhenTheTableIsOpened) {
  const Error error = refusal_of_table(lying_table(GetParam()));
  EXPECT_EQ(error.code(), GetParam().code) << error.what();
  EXPECT_TRUE(says(error, GetParam().message)) << error.what();
}

INSTANTIATE_TEST_SUITE_P(BundleReader, TableLies, ::testing::ValuesIn(kHeaderLies),
                         [](const auto& lie) { return lie.param.name; });

constexpr std::size_t kRow1 = 64 + 2 * 64 + 48;
constexpr std::size_t kDims1 = 64 + 2 * 64 + 3 * 48 + 32;

const TableLie kRowLies[] = {
    {"Origin", kRow1, 2, 4, "names origin 2, but there are 2"},
    {"OriginHuge", kRow1, 0xFFFFFFFF, 4, "names origin 4294967295"},
    {"Generation", kRow1 + 8, std::uint64_t{1} << 62, 8, "has generation 4611686018427387904"},
    {"StorageSize", kRow1 + 16, kMinus1, 8,
     "a storage of 18446744073709551615 bytes in a segment of 67108864"},
    {"StorageTooSmall", kRow1 + 16, 100, 8, "a tensor of 164 bytes at byte 128 of a storage of 100 bytes"},
    {"TensorOffset", kRow1 + 24, kMinus1, 8, "a tensor of 164 bytes at byte 18446744073709551615"},
    {"DType", kRow1 + 32, 0, 1, "0 is not the number of a dtype"},
    {"TooManyDimensions", kRow1 + 33, 65, 1, "has 65 dimensions; the most is 64"},
    {"MoreDimensionsThanThereAre", kRow1 + 33, 5, 1,
     "has 5 dimensions at byte 32 of a section of 96 bytes"},
    {"Flags", kRow1 + 34, 1, 2, "has unknown flags 0x1"},
    {"DimensionsOffset", kRow1 + 36, 65, 4, "has 2 dimensions at byte 65 of a section of 96 bytes"},
    {"DimensionsOffsetHuge", kRow1 + 36, 0xFFFFFFF0, 4, "dimensions at byte 4294967280"},
    {"NegativeSize", kDims1, kMinus1, 8, "size -1 of dimension 0 is negative"},
    {"StrideThatOverflows", kDims1 + 8, std::uint64_t{1} << 62, 8, "needs more than 2^63 - 1 bytes"},
};

class RowLies : public ::testing::TestWithParam<TableLie> {};

TEST_P(RowLies, AreRefusedWhenTheRowIsAskedForAndOnlyThen) {
  const Bytes table = lying_table(GetParam());
  const BundleReader reader(table);
  const Error error = refusal([&] { (void)reader.fields(1); });
  EXPECT_EQ(error.code(), ErrorCode::bad_handle);
  EXPECT_TRUE(says(error, GetParam().message)) << error.what();
  EXPECT_TRUE(says(error, "Row 1 of this bundle")) << error.what();
  EXPECT_EQ(reader.fields(0), sample_fields());
  EXPECT_EQ(reader.find("second"), 1u);
}

INSTANTIATE_TEST_SUITE_P(BundleReader, RowLies, ::testing::ValuesIn(kRowLies),
                         [](const auto& lie) { return lie.param.name; });

TEST(BundleReaderTest, RefusesNamesThatLieOutsideOrAreNotUtf8AndFindsTheOthers) {
  const TableLie lies[] = {{"", kRow1 + 40, 100, 4, "outside"},
                           {"", kRow1 + 40, 0xFFFFFFFF, 4, "outside"},
                           {"", kRow1 + 44, 0xFFFFFFFF, 4, "outside"},
                           {"", kRow1 + 44, 12, 4, "outside"},
                           {"", kDims1 + 64 + 5, 0xFF, 1, "UTF-8"}};
  for (const TableLie& lie : lies) {
    const Bytes table = lying_table(lie);
    const BundleReader reader(table);
    const Error error = refusal([&] { (void)reader.name(1); });
    EXPECT_EQ(error.code(), ErrorCode::bad_handle) << lie.offset;
    EXPECT_TRUE(says(error, lie.message)) << error.what();
    EXPECT_EQ(reader.find("second"), std::nullopt);
    EXPECT_EQ(reader.find("third"), 2u);
  }
}

/// Uses everything a reader offers; refusals are fine, anything else is not.
void use(const BundleReader& reader) {
  for (std::size_t i = 0; i < reader.size(); ++i) {
    try {
      const HandleFields row = reader.fields(i);
      EXPECT_LE(row.tensor_offset + row.layout.extent_bytes(), row.storage_size);
      EXPECT_LE(row.storage_size, row.segment_size);
      (void)reader.find(reader.name(i));
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::bad_handle);
    }
  }
}

TEST(BundleReaderTest, StaysInsideTheTableWhateverIsWrittenIntoItAfterOpening) {
  const Bytes table = sample_table();
  for (const unsigned value : {0x00u, 0x01u, 0x7Fu, 0x80u, 0xFFu})
    for (std::size_t at = 0; at < table.size(); ++at) {
      const auto shared = std::make_unique<std::byte[]>(table.size());  // exact, for the address sanitizer
      std::copy(table.begin(), table.end(), shared.get());
      const BundleReader reader(ByteSpan(shared.get(), table.size()));
      const bool index_first = at % 2 == 0;
      if (index_first) (void)reader.find("third");
      for (std::size_t i = at; i < std::min(at + 8, table.size()); ++i)
        shared[i] = static_cast<std::byte>(value);
      use(reader);
      EXPECT_EQ(reader.size(), 3u);
    }
}

}  // namespace
}  // namespace onecopy
