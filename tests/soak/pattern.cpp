// SPDX-License-Identifier: Apache-2.0
#include "soak/pattern.h"

#include "onecopy/share/share.h"

namespace onecopy::soak {
namespace {

std::uint64_t word_at(std::uint64_t block, std::uint64_t version, std::size_t place) noexcept {
  std::uint64_t x = block * 0x9e3779b97f4a7c15 + version * 0xbf58476d1ce4e5b9 + place;
  x = (x ^ (x >> 31)) * 0x94d049bb133111eb;
  return x ^ (x >> 29);
}

std::size_t step_of(std::size_t bytes) noexcept {
  return bytes <= (64 << 10) ? 1 : 512 / sizeof(std::uint64_t);
}

}  // namespace

std::span<std::byte> bytes_of(const Tensor& tensor) {
  if (tensor.shape().size() != 1) return storage(tensor);
  return {static_cast<std::byte*>(tensor.data()), tensor.nbytes()};
}

void fill(const Tensor& tensor, std::uint64_t block, std::uint64_t version) {
  const auto bytes = bytes_of(tensor);
  auto* const words = reinterpret_cast<std::uint64_t*>(bytes.data());
  const std::size_t count = bytes.size() / sizeof *words;
  const std::size_t step = step_of(bytes.size());
  words[0] = block;
  words[1] = version;
  for (std::size_t i = 2; i < count; i += step) words[i] = word_at(block, version, i);
}

Seen read(const Tensor& tensor) {
  const auto bytes = bytes_of(tensor);
  const auto* const words = reinterpret_cast<const volatile std::uint64_t*>(bytes.data());
  const std::size_t count = bytes.size() / sizeof *words;
  const std::size_t step = step_of(bytes.size());
  Seen seen{words[0], words[1], true};
  for (std::size_t i = 2; i < count; i += step)
    seen.whole = seen.whole && words[i] == word_at(seen.block, seen.version, i);
  return seen;
}

}  // namespace onecopy::soak
