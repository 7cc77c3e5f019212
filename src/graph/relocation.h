// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "device/graphs.h"

namespace onecopy::graph {

/// Memory that a graph works on, and where the same memory was for the evidence.
struct MovedRegion {
  std::uint64_t base = 0;   ///< in the graph
  std::uint64_t moved = 0;  ///< in both captures of the evidence
  std::uint64_t bytes = 0;
};

/// Which words of a captured graph are addresses in which region: so that a region may be elsewhere without another
/// capture.
///
/// Found by evidence: four more captures of the work, two with all regions at the graph's places and two with all
/// regions elsewhere. Two at one place see the same addresses, so a word that differs between them depends on no
/// address. Any other word that differs between the two places must be an address of one region.
///
/// A graph has words by chance, the old content of the stack or the heap, and captures that are made in another way
/// have others. So nothing is concluded from the graph itself: difference() says whether it has the addresses.
///
/// A function of an address that gives the same at both places cannot be told from a constant. Therefore a region
/// goes only where it differs from its first place in bits that the evidence has changed (can_be_at()).
///
/// Pure functions over bytes. Thread safety: as a value.
class Relocation {
 public:
  /// One word of a node's parameters.
  struct Word {
    std::uint32_t node = 0;
    std::uint32_t offset = 0;
    std::uint32_t region = 0;
    bool operator==(const Word&) const = default;
  };
  struct Proof;

  /// The evidence keeps remainders by this: kernels are chosen by them.
  static constexpr std::uint64_t kAlignment = 512;

  /// Two captures made at one place.
  struct Pair {
    const Recording& first;
    const Recording& second;
  };
  /// Memory that is none of the regions (windows) is at one place in all four. No proof, and the reason, where a word
  /// cannot be explained.
  static Proof prove(const Pair& home, const Pair& moved, std::span<const MovedRegion> regions);

  /// Does the proof hold for the region there?
  bool can_be_at(std::size_t region, std::uint64_t base) const;
  /// Is another recording of the same work, and has it the same words where these are addresses? Empty, or the
  /// difference. All its other words may be its own: they depend on no region that moves.
  std::string difference(const Recording& graph, const Recording& other) const;
  /// After a move: does the graph have the addresses of two captures at its places, and do those have none besides?
  /// Empty, or the difference.
  std::string check(const Recording& graph, const Recording& fresh, const Recording& again) const;
  /// Changes the words for a region that lies at `base` from now on. Returns the nodes whose bytes have changed, in
  /// ascending order. Throws invalid_argument where the region cannot be; nothing is changed then.
  std::vector<std::uint32_t> apply(Recording& graph, std::size_t region, std::uint64_t base);

  const std::vector<Word>& words() const noexcept { return words_; }
  std::uint64_t base(std::size_t region) const { return bases_.at(region); }
  /// Words that depend on no address.
  std::size_t noise() const noexcept { return noise_; }

 private:
  std::string stray(const Recording& fresh, const Recording& again) const;
  bool is_in_a_region(std::uint64_t word) const;

  std::vector<Word> words_;           ///< by node
  std::vector<MovedRegion> regions_;  ///< when it was proved
  std::vector<std::uint64_t> bases_;  ///< now
  std::size_t noise_ = 0;
};

/// The outcome of prove(): a relocation, or the reason why there is none.
struct Relocation::Proof {
  std::optional<Relocation> relocation;
  std::string reason;  ///< why there is none
};

}  // namespace onecopy::graph
