// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "channel/ring/ring.h"
#include "onecopy/core/error.h"
#include "support/eventually.h"

namespace onecopy {

/// For waits that must not time out.
inline Deadline in_good_time() { return Deadline::after(testing::kPatience); }

/// An item that shows when it is torn: a number, repeated over a length that depends on it.
inline std::size_t write_number(std::uint64_t number, std::span<std::byte> space) {
  const std::size_t words = 1 + number % (kMaxItemBytes / 8);
  for (std::size_t i = 0; i < words; ++i) write_value(space.data() + 8 * i, number);
  return words * 8;
}

inline std::optional<std::uint64_t> read_number(ByteSpan bytes) {
  if (bytes.size() < 8) return std::nullopt;
  const auto number = load<std::uint64_t>(bytes.data());
  if (bytes.size() != 8 * (1 + number % (kMaxItemBytes / 8))) return std::nullopt;
  for (std::size_t i = 0; i < bytes.size(); i += 8)
    if (load<std::uint64_t>(bytes.data() + i) != number) return std::nullopt;
  return number;
}

/// The position the number was put at; nothing when there was no space in time.
inline std::optional<std::uint64_t> put_number(Ring& ring, std::uint64_t number,
                                               Deadline deadline = kForever) {
  std::uint64_t at = 0;
  const auto write = [&](std::uint64_t position, std::span<std::byte> space) {
    at = position;
    return write_number(number, space);
  };
  if (!ring.put(write, deadline)) return std::nullopt;
  return at;
}

inline constexpr std::uint64_t kTorn = ~std::uint64_t{0};

/// Nothing when there was no item in time; kTorn for a damaged one.
inline std::optional<std::uint64_t> take_number(Ring& ring, Deadline deadline = kForever) {
  std::uint64_t number = kTorn;
  const auto accept = [&](RingItem item) {
    number = read_number(item.bytes).value_or(kTorn);
    return true;
  };
  if (ring.take(accept, deadline) != TakeResult::yes) return std::nullopt;
  return number;
}

template <class Call>
std::optional<ErrorCode> error_of(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.code();
  }
  return std::nullopt;
}

}  // namespace onecopy
