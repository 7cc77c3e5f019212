// SPDX-License-Identifier: Apache-2.0
#include "core/crc32c.h"

#include <array>

#include "onecopy/core/bytes.h"

#if defined(__x86_64__)
#include <nmmintrin.h>
#elif defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace onecopy {
namespace crc {
namespace {

constexpr std::uint32_t kPolynomial = 0x82F63B78;  // reflected

constexpr std::array<std::uint32_t, 256> make_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) ? kPolynomial : 0);
    table[i] = crc;
  }
  return table;
}

constexpr auto kTable = make_table();

#if defined(__x86_64__)

__attribute__((target("sse4.2"))) std::uint32_t update_by_instruction(std::uint32_t crc,
                                                                      const std::byte* at,
                                                                      std::size_t size) noexcept {
  std::uint64_t wide = crc;
  for (; size >= 8; at += 8, size -= 8) wide = _mm_crc32_u64(wide, load<std::uint64_t>(at));
  crc = static_cast<std::uint32_t>(wide);
  for (; size > 0; ++at, --size) crc = _mm_crc32_u8(crc, std::to_integer<std::uint8_t>(*at));
  return crc;
}

bool has_instruction() noexcept { return __builtin_cpu_supports("sse4.2") != 0; }

#elif defined(__aarch64__)

// The loop is assembly, because clang offers the intrinsics only to files compiled for processors that have them.
std::uint32_t update_by_instruction(std::uint32_t crc, const std::byte* at, std::size_t size) noexcept {
  for (; size >= 8; at += 8, size -= 8)
    asm(".arch_extension crc\n\tcrc32cx %w0, %w0, %x1" : "+r"(crc) : "r"(load<std::uint64_t>(at)));
  for (; size > 0; ++at, --size)
    asm(".arch_extension crc\n\tcrc32cb %w0, %w0, %w1"
        : "+r"(crc)
        : "r"(std::to_integer<std::uint32_t>(*at)));
  return crc;
}

bool has_instruction() noexcept { return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0; }

#endif

}  // namespace

std::uint32_t update_by_table(std::uint32_t crc, const std::byte* at, std::size_t size) noexcept {
  for (; size > 0; ++at, --size)
    crc = (crc >> 8) ^ kTable[(crc ^ std::to_integer<std::uint32_t>(*at)) & 0xFF];
  return crc;
}

Update hardware_update() noexcept {
#if defined(__x86_64__) || defined(__aarch64__)
  if (has_instruction()) return update_by_instruction;
#endif
  return nullptr;
}

}  // namespace crc

std::uint32_t crc32c(ByteSpan bytes, std::uint32_t seed) noexcept {
  static const crc::Update hardware = crc::hardware_update();
  const crc::Update update = hardware ? hardware : crc::update_by_table;
  return ~update(~seed, bytes.data(), bytes.size());
}

}  // namespace onecopy
