// SPDX-License-Identifier: Apache-2.0
#include "os/poly1305_lanes.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include <cstring>

#define ONECOPY_IFMA __attribute__((target("avx512f,avx512ifma")))

namespace onecopy {
namespace poly_lanes {
namespace {

constexpr std::size_t kLanes = 8, kStep = 16 * kLanes;
constexpr std::uint64_t k44 = 0xfff'ffff'ffff, k42 = 0x3ff'ffff'ffff;
/// Of the eight blocks of a step, the one that each lane has: as unpacking two registers deals them out.
constexpr int kBlockOfLane[kLanes] = {0, 4, 1, 5, 2, 6, 3, 7};

typedef std::uint64_t Word __attribute__((vector_size(64)));  // NOLINT(modernize-use-using)

/// Eight numbers, one a lane.
struct Lanes {
  Word limbs[3];
};

ONECOPY_IFMA inline Word multiply_low(Word sum, Word a, Word b) {
  return (Word)_mm512_madd52lo_epu64((__m512i)sum, (__m512i)a, (__m512i)b);
}
ONECOPY_IFMA inline Word multiply_high(Word sum, Word a, Word b) {
  return (Word)_mm512_madd52hi_epu64((__m512i)sum, (__m512i)a, (__m512i)b);
}

ONECOPY_IFMA Lanes in_all_lanes(const PolyNumber& number) {
  Lanes lanes;
  for (int i = 0; i < 3; ++i) lanes.limbs[i] = Word{} + number.limbs[i];
  return lanes;
}

/// r^8 for the lane of the first block, r for that of the last.
ONECOPY_IFMA Lanes falling(const PolyNumber (&powers)[8]) {
  Lanes lanes;
  for (int limb = 0; limb < 3; ++limb)
    for (std::size_t lane = 0; lane < kLanes; ++lane)
      lanes.limbs[limb][lane] = powers[7 - kBlockOfLane[lane]].limbs[limb];
  return lanes;
}

ONECOPY_IFMA inline Lanes load_step(const std::byte* bytes) {
  Word first, second;
  std::memcpy(&first, bytes, sizeof first);
  std::memcpy(&second, bytes + sizeof first, sizeof second);
  const Word low = __builtin_shufflevector(first, second, 0, 8, 2, 10, 4, 12, 6, 14);
  const Word high = __builtin_shufflevector(first, second, 1, 9, 3, 11, 5, 13, 7, 15);
  return {{low & k44, (low >> 44 | high << 20) & k44, high >> 24 | std::uint64_t{1} << 40}};
}

ONECOPY_IFMA inline Lanes add(const Lanes& a, const Lanes& b) {
  return {{a.limbs[0] + b.limbs[0], a.limbs[1] + b.limbs[1], a.limbs[2] + b.limbs[2]}};
}

/// A factor, and its upper limbs times 20: 2^132 is 20 modulo 2^130 - 5.
struct Factor {
  Lanes r;
  Word s1, s2;
};

ONECOPY_IFMA inline Factor factor_of(const Lanes& r) { return {r, r.limbs[1] * 20, r.limbs[2] * 20}; }

/// The lower 52 bits of the products, and the upper ones, each with its own sum.
struct SplitSum {
  Word low, high;
};

ONECOPY_IFMA inline SplitSum products(const Lanes& h, Word a, Word b, Word c) {
  SplitSum sum{multiply_low(Word{}, h.limbs[0], a), multiply_high(Word{}, h.limbs[0], a)};
  sum = {multiply_low(sum.low, h.limbs[1], b), multiply_high(sum.high, h.limbs[1], b)};
  return {multiply_low(sum.low, h.limbs[2], c), multiply_high(sum.high, h.limbs[2], c)};
}

/// An upper sum counts 2^52, which is 2^8 of the next limb, and 2^10 above the third's 42 bits.
ONECOPY_IFMA inline Lanes multiply(const Lanes& h, const Factor& f) {
  const SplitSum d0 = products(h, f.r.limbs[0], f.s2, f.s1);
  const SplitSum d1 = products(h, f.r.limbs[1], f.r.limbs[0], f.s2);
  const SplitSum d2 = products(h, f.r.limbs[2], f.r.limbs[1], f.r.limbs[0]);
  const Word e1 = d1.low + (d0.low >> 44) + (d0.high << 8);
  const Word e2 = d2.low + (e1 >> 44) + (d1.high << 8);
  const Word over = (e2 >> 42) + (d2.high << 10);
  const Word h0 = (d0.low & k44) + over + (over << 2);
  return {{h0 & k44, (e1 & k44) + (h0 >> 44), e2 & k42}};
}

ONECOPY_IFMA PolyNumber sum_of(const Lanes& h) {
  std::uint64_t d[3] = {};
  for (int i = 0; i < 3; ++i)
    for (std::size_t lane = 0; lane < kLanes; ++lane) d[i] += h.limbs[i][lane];
  d[1] += d[0] >> 44;
  d[2] += d[1] >> 44;
  const std::uint64_t low = (d[0] & k44) + (d[2] >> 42) * 5;
  return {{low & k44, (d[1] & k44) + (low >> 44), d[2] & k42}};
}

}  // namespace
}  // namespace poly_lanes

bool has_poly_lanes() noexcept {
  static const bool has = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512ifma");
  return has;
}

ONECOPY_IFMA void add_blocks_in_lanes(PolyNumber& sum, const PolyNumber (&powers)[8],
                                      ByteSpan bytes) noexcept {
  using namespace poly_lanes;
  const Factor eighth = factor_of(in_all_lanes(powers[7]));
  const std::byte* at = bytes.data();
  const std::byte* const end = at + bytes.size();
  Lanes h = load_step(at);
  for (int i = 0; i < 3; ++i) h.limbs[i][0] += sum.limbs[i];
  for (at += kStep; at != end; at += kStep) h = add(multiply(h, eighth), load_step(at));
  sum = sum_of(multiply(h, factor_of(falling(powers))));
}

}  // namespace onecopy

#else

namespace onecopy {

bool has_poly_lanes() noexcept { return false; }
void add_blocks_in_lanes(PolyNumber&, const PolyNumber (&)[8], ByteSpan) noexcept {}

}  // namespace onecopy

#endif
