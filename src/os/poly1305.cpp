// SPDX-License-Identifier: Apache-2.0
#include "os/poly1305.h"

#include <algorithm>
#include <cstring>

#include "os/poly1305_lanes.h"

namespace onecopy {
namespace {

__extension__ typedef unsigned __int128 Wide;  // NOLINT(modernize-use-using)

constexpr std::uint64_t k44 = 0xfff'ffff'ffff;
constexpr std::uint64_t k42 = 0x3ff'ffff'ffff;

std::uint64_t load64(const void* bytes) noexcept {
  std::uint64_t value = 0;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

/// The sum of blocks times powers of r, modulo 2^130 - 5, in limbs of 44, 44 and 42 bits.
class Accumulator {
 public:
  explicit Accumulator(const std::uint8_t* r) noexcept {
    const std::uint64_t low = load64(r), high = load64(r + 8);
    r_[0] = low & 0xffc'0fff'ffff;
    r_[1] = (low >> 44 | high << 20) & 0xfff'ffc0'ffff;
    r_[2] = (high >> 24) & 0x00f'ffff'fc0f;
  }

  /// `top` is the bit above the block's 16 bytes.
  void add(const std::byte* block, std::uint64_t top) noexcept {
    const std::uint64_t low = load64(block), high = load64(block + 8);
    h_[0] += low & k44;
    h_[1] += (low >> 44 | high << 20) & k44;
    h_[2] += ((high >> 24) & k42) | top << 40;
    multiply();
  }

  /// Whole blocks.
  void add_all(ByteSpan blocks) noexcept {
    const std::size_t in_lanes =
        blocks.size() < kWorthLanes || !has_poly_lanes() ? 0 : blocks.size() / 128 * 128;
    if (in_lanes != 0) add_in_lanes(blocks.first(in_lanes));
    for (ByteSpan rest = blocks.subspan(in_lanes); !rest.empty(); rest = rest.subspan(16))
      add(rest.data(), 1);
  }

  ShortMac finish(const std::uint8_t* pad) noexcept;

 private:
  static constexpr std::size_t kWorthLanes = 1024;  // less is done before the powers of r are there

  void add_in_lanes(ByteSpan blocks) noexcept {
    PolyNumber powers[8];
    std::uint64_t sum[3];
    std::copy(h_, h_ + 3, sum);
    std::copy(r_, r_ + 3, h_);
    for (PolyNumber& power : powers) {
      std::copy(h_, h_ + 3, power.limbs);
      multiply();
    }
    PolyNumber lanes{{sum[0], sum[1], sum[2]}};
    add_blocks_in_lanes(lanes, powers, blocks);
    std::copy(lanes.limbs, lanes.limbs + 3, h_);
  }
  void multiply() noexcept {
    const std::uint64_t s1 = r_[1] * 20, s2 = r_[2] * 20;
    const Wide d0 = Wide{h_[0]} * r_[0] + Wide{h_[1]} * s2 + Wide{h_[2]} * s1;
    Wide d1 = Wide{h_[0]} * r_[1] + Wide{h_[1]} * r_[0] + Wide{h_[2]} * s2;
    Wide d2 = Wide{h_[0]} * r_[2] + Wide{h_[1]} * r_[1] + Wide{h_[2]} * r_[0];
    d1 += static_cast<std::uint64_t>(d0 >> 44);
    d2 += static_cast<std::uint64_t>(d1 >> 44);
    h_[0] = (static_cast<std::uint64_t>(d0) & k44) + static_cast<std::uint64_t>(d2 >> 42) * 5;
    h_[1] = (static_cast<std::uint64_t>(d1) & k44) + (h_[0] >> 44);
    h_[0] &= k44;
    h_[2] = static_cast<std::uint64_t>(d2) & k42;
  }
  void carry() noexcept {
    h_[1] += h_[0] >> 44;
    h_[2] += h_[1] >> 44;
    h_[0] = (h_[0] & k44) + (h_[2] >> 42) * 5;
    h_[1] &= k44;
    h_[2] &= k42;
  }
  void reduce() noexcept;

  std::uint64_t r_[3], h_[3] = {};
};

/// Subtracts the modulus if the sum reaches it, in equal time either way.
void Accumulator::reduce() noexcept {
  for (int i = 0; i < 3; ++i) carry();
  std::uint64_t g0 = h_[0] + 5;
  std::uint64_t g1 = h_[1] + (g0 >> 44);
  const std::uint64_t g2 = h_[2] + (g1 >> 44) - (std::uint64_t{1} << 42);
  g0 &= k44;
  g1 &= k44;
  const std::uint64_t keep = std::uint64_t{0} - (g2 >> 63);
  h_[0] = (h_[0] & keep) | (g0 & ~keep);
  h_[1] = (h_[1] & keep) | (g1 & ~keep);
  h_[2] = (h_[2] & keep) | (g2 & ~keep);
}

ShortMac Accumulator::finish(const std::uint8_t* pad) noexcept {
  reduce();
  const Wide sum =
      Wide{h_[0]} + (Wide{h_[1]} << 44) + (Wide{h_[2]} << 88) + load64(pad) + (Wide{load64(pad + 8)} << 64);
  ShortMac mac;
  std::memcpy(mac.data(), &sum, sizeof mac);
  return mac;
}

}  // namespace

ShortMac poly1305(const Digest& one_time_key, std::initializer_list<ByteSpan> parts) noexcept {
  Accumulator sum(one_time_key.data());
  for (ByteSpan part : parts) {
    sum.add_all(part.first(part.size() / 16 * 16));
    part = part.subspan(part.size() / 16 * 16);
    if (part.empty()) continue;
    std::byte last[16] = {};
    std::memcpy(last, part.data(), part.size());
    last[part.size()] = std::byte{1};
    sum.add(last, 0);
  }
  return sum.finish(one_time_key.data() + 16);
}

}  // namespace onecopy
