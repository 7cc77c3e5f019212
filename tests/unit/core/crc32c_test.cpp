// SPDX-License-Identifier: Apache-2.0
#include "core/crc32c.h"

#include <gtest/gtest.h>

#include <random>
#include <string_view>

#include "onecopy/core/bytes.h"

namespace onecopy {
namespace {

ByteSpan bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

Bytes filled(std::size_t size, int value) { return Bytes(size, static_cast<std::byte>(value)); }

Bytes counting_up(std::size_t size) {
  Bytes bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i);
  return bytes;
}

// RFC 3720, appendix B.4.
TEST(Crc32c, MatchesTheVectorsOfIscsi) {
  EXPECT_EQ(crc32c(filled(32, 0x00)), 0x8A9136AAu);
  EXPECT_EQ(crc32c(filled(32, 0xFF)), 0x62A8AB43u);
  EXPECT_EQ(crc32c(counting_up(32)), 0x46DD794Eu);
  EXPECT_EQ(crc32c(bytes_of("123456789")), 0xE3069283u);
  EXPECT_EQ(crc32c({}), 0u);
}

TEST(Crc32c, GoesOnWhereItStoppedWhenTheSeedIsTheFirstResult) {
  EXPECT_EQ(crc32c(bytes_of("6789"), crc32c(bytes_of("12345"))), crc32c(bytes_of("123456789")));
}

TEST(Crc32c, TheTableMatchesTheVectorsToo) {
  const Bytes zeros = filled(32, 0);
  EXPECT_EQ(~crc::update_by_table(~0u, zeros.data(), zeros.size()), 0x8A9136AAu);
}

TEST(Crc32c, TheProcessorsInstructionEqualsTheTable) {
  const crc::Update hardware = crc::hardware_update();
  if (!hardware) GTEST_SKIP() << "this processor has no CRC instruction";
  std::mt19937 random(1);
  Bytes bytes(300);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  for (std::size_t size = 0; size < 250; ++size) {
    for (std::size_t offset = 0; offset < 9; ++offset) {
      const auto seed = static_cast<std::uint32_t>(random());
      EXPECT_EQ(hardware(seed, bytes.data() + offset, size),
                crc::update_by_table(seed, bytes.data() + offset, size));
    }
  }
}

TEST(Crc32c, NoticesEverySingleFlippedBit) {
  Bytes bytes = counting_up(64);
  const std::uint32_t right = crc32c(bytes);
  for (std::size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    bytes[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    EXPECT_NE(crc32c(bytes), right) << "bit " << bit;
    bytes[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
  }
}

}  // namespace
}  // namespace onecopy
