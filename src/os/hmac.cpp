// SPDX-License-Identifier: Apache-2.0
#include "os/hmac.h"

#include <algorithm>
#include <cstring>

namespace onecopy {
namespace {

constexpr std::size_t kBlock = 64;

constexpr std::array<std::uint32_t, 64> kRoundConstants{
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

/// A SHA-256 over bytes that come in parts. The variables have the names of FIPS 180-4.
class Sha256 {
 public:
  void update(ByteSpan bytes) noexcept {
    length_ += bytes.size();
    while (!bytes.empty()) {
      const std::size_t part = std::min(bytes.size(), kBlock - filled_);
      std::memcpy(buffer_.data() + filled_, bytes.data(), part);
      filled_ += part;
      bytes = bytes.subspan(part);
      if (filled_ == kBlock) compress();
    }
  }

  Digest finish() noexcept {
    const std::uint64_t bits = length_ * 8;
    buffer_[filled_++] = std::byte{0x80};
    if (filled_ > kBlock - 8) pad_to(kBlock);
    pad_to(kBlock - 8);
    write_value(buffer_.data() + kBlock - 8, __builtin_bswap64(bits));
    compress();
    Digest digest;
    for (std::size_t i = 0; i < state_.size(); ++i) {
      const std::uint32_t word = __builtin_bswap32(state_[i]);
      std::memcpy(digest.data() + 4 * i, &word, 4);
    }
    return digest;
  }

 private:
  void pad_to(std::size_t end) noexcept {
    std::fill(buffer_.begin() + static_cast<std::ptrdiff_t>(filled_),
              buffer_.begin() + static_cast<std::ptrdiff_t>(end), std::byte{0});
    filled_ = end;
    if (end == kBlock) compress();
  }

  void compress() noexcept {
    std::array<std::uint32_t, 64> w;
    for (std::size_t t = 0; t < 16; ++t)
      w[t] = __builtin_bswap32(load<std::uint32_t>(buffer_.data() + 4 * t));
    for (std::size_t t = 16; t < 64; ++t) {
      const std::uint32_t x = w[t - 15];
      const std::uint32_t y = w[t - 2];
      w[t] = w[t - 16] + (std::rotr(x, 7) ^ std::rotr(x, 18) ^ (x >> 3)) + w[t - 7] +
             (std::rotr(y, 17) ^ std::rotr(y, 19) ^ (y >> 10));
    }
    auto [a, b, c, d, e, f, g, h] = state_;
    for (std::size_t t = 0; t < 64; ++t) {
      const std::uint32_t t1 = h + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) +
                               ((e & f) ^ (~e & g)) + kRoundConstants[t] + w[t];
      const std::uint32_t t2 =
          (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) + ((a & b) ^ (a & c) ^ (b & c));
      h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
    }
    const std::array<std::uint32_t, 8> mixed{a, b, c, d, e, f, g, h};
    for (std::size_t i = 0; i < mixed.size(); ++i) state_[i] += mixed[i];
    filled_ = 0;
  }

  std::array<std::uint32_t, 8> state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<std::byte, kBlock> buffer_{};
  std::size_t filled_ = 0;
  std::uint64_t length_ = 0;
};

}  // namespace

Digest sha256(ByteSpan bytes) noexcept {
  Sha256 hash;
  hash.update(bytes);
  return hash.finish();
}

Digest hmac_sha256(ByteSpan key, ByteSpan message) noexcept {
  std::array<std::byte, kBlock> inner_pad{};
  if (key.size() > kBlock) {
    const Digest short_key = sha256(key);
    std::memcpy(inner_pad.data(), short_key.data(), short_key.size());
  } else if (!key.empty()) {
    std::memcpy(inner_pad.data(), key.data(), key.size());
  }
  std::array<std::byte, kBlock> outer_pad = inner_pad;
  for (std::byte& byte : inner_pad) byte ^= std::byte{0x36};
  for (std::byte& byte : outer_pad) byte ^= std::byte{0x5c};
  Sha256 inner;
  inner.update(inner_pad);
  inner.update(message);
  const Digest inner_digest = inner.finish();
  Sha256 outer;
  outer.update(outer_pad);
  outer.update(std::as_bytes(std::span(inner_digest)));
  return outer.finish();
}

bool equal_in_constant_time(ByteSpan a, ByteSpan b) noexcept {
  if (a.size() != b.size()) return false;
  volatile unsigned different = 0;  // volatile: the compiler may not stop early
  for (std::size_t i = 0; i < a.size(); ++i) different = different | std::to_integer<unsigned>(a[i] ^ b[i]);
  return different == 0;
}

}  // namespace onecopy
