// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "support/peer.h"

namespace onecopy::bench {

/// The words that two processes spin and sleep on, each in its own cache lines.
struct Arena {
  template <class T>
  using Word = std::atomic<T>;

  static constexpr std::size_t kRing = 1024;

  // Rounds: see exchange.h.
  alignas(128) Word<std::uint32_t> round;
  alignas(128) Word<std::uint32_t> ready;
  alignas(128) Word<std::uint32_t> done;

  alignas(128) Word<std::uint32_t> there;
  alignas(128) Word<std::uint32_t> back;
  alignas(128) Word<std::uint32_t> sleep_there;
  alignas(128) Word<std::uint32_t> sleep_back;
  alignas(128) Word<std::uint64_t> head;
  alignas(128) Word<std::uint64_t> tail;
  alignas(128) std::array<std::uint64_t, kRing> ring;

  static Arena& in(const RawLink& link) { return *link.arena.as<Arena>(); }
};
static_assert(sizeof(Arena) <= kArenaBytes);

}  // namespace onecopy::bench
