// SPDX-License-Identifier: Apache-2.0
#include "core/crc32c.h"

#include <array>

#include "onecopy/core/bytes.h"

#if defined(__x86_64__)
#include <nmmintrin.h>
#include <wmmintrin.h>
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

constexpr std::size_t kLane = 40;  ///< bytes; three lanes are fewer than the bytes of a handle

/// Returns x^n modulo the polynomial, reflected.
constexpr std::uint32_t power_of_x(std::size_t n) {
  std::uint32_t power = 0x80000000;
  for (; n > 0; --n) power = (power >> 1) ^ ((power & 1) ? kPolynomial : 0);
  return power;
}

/// Multiplies by a power of x. The instruction for CRCs, which multiplies by x^33, does the rest of the way over `Bytes`.
template <std::size_t Bytes>
__attribute__((target("sse4.2,pclmul"))) __m128i ahead(std::uint64_t crc) noexcept {
  constexpr std::uint32_t kPower = power_of_x(8 * Bytes - 33);
  return _mm_clmulepi64_si128(_mm_cvtsi64_si128(static_cast<std::int64_t>(crc)), _mm_cvtsi32_si128(kPower),
                              0);
}

/// Computes three lanes of the bytes in turn, since each instruction waits for the one before it in its lane. See Intel,
/// "Fast CRC Computation for iSCSI Polynomial Using CRC32 Instruction" (2011).
__attribute__((target("sse4.2,pclmul"))) std::uint32_t update_by_instruction(std::uint32_t crc,
                                                                             const std::byte* at,
                                                                             std::size_t size) noexcept {
  std::uint64_t wide = crc;
  for (; size >= 3 * kLane; at += 3 * kLane, size -= 3 * kLane) {
    std::uint64_t second = 0, third = 0;
    for (std::size_t i = 0; i < kLane; i += 8) {
      wide = _mm_crc32_u64(wide, load<std::uint64_t>(at + i));
      second = _mm_crc32_u64(second, load<std::uint64_t>(at + kLane + i));
      third = _mm_crc32_u64(third, load<std::uint64_t>(at + 2 * kLane + i));
    }
    const __m128i both = _mm_xor_si128(ahead<2 * kLane>(wide), ahead<kLane>(second));
    wide = third ^ _mm_crc32_u64(0, static_cast<std::uint64_t>(_mm_cvtsi128_si64(both)));
  }
  for (; size >= 8; at += 8, size -= 8) wide = _mm_crc32_u64(wide, load<std::uint64_t>(at));
  crc = static_cast<std::uint32_t>(wide);
  for (; size > 0; ++at, --size) crc = _mm_crc32_u8(crc, std::to_integer<std::uint8_t>(*at));
  return crc;
}

bool has_instruction() noexcept {
  return __builtin_cpu_supports("sse4.2") != 0 && __builtin_cpu_supports("pclmul") != 0;
}

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
