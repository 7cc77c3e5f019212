// SPDX-License-Identifier: Apache-2.0
#include "graph/relocation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "onecopy/core/error.h"

namespace onecopy::graph {

namespace {

constexpr std::size_t kWord = 8;
constexpr std::size_t kHalf = 4;

template <class Value>
Value at(const std::vector<std::byte>& bytes, std::size_t offset) {
  Value value = 0;
  std::memcpy(&value, bytes.data() + offset, std::min(sizeof value, bytes.size() - offset));
  return value;
}

bool has_other_parameters(const RecordedNode& a, const RecordedNode& b) {
  return a.kind != b.kind || a.name != b.name || a.shape != b.shape || a.parameters != b.parameters ||
         a.bytes.size() != b.bytes.size();
}

/// Why two recordings are not of the same work; empty when they are.
std::string other_work(const Recording& graph, const Recording& other) {
  if (graph.nodes.size() != other.nodes.size())
    return fmt::format("{} nodes became {}", graph.nodes.size(), other.nodes.size());
  if (graph.edges != other.edges) return "its nodes come in another order";
  for (std::size_t i = 0; i < graph.nodes.size(); ++i)
    if (has_other_parameters(graph.nodes[i], other.nodes[i]))
      return fmt::format("node {} ({}) became another one ({})", i, graph.nodes[i].name,
                         other.nodes[i].name);
  return {};
}

std::string unreadable(const Recording& graph) {
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    const RecordedNode& node = graph.nodes[i];
    if (node.kind == RecordedNode::Kind::other)
      return fmt::format("node {} is {}, whose addresses are unknown", i, node.name);
  }
  return {};
}

bool lies_in(std::uint64_t word, const MovedRegion& region) {
  return word >= region.base && word - region.base <= region.bytes;
}

bool overlap(const MovedRegion& a, const MovedRegion& b) {
  const auto meet = [](std::uint64_t x, std::uint64_t y, std::uint64_t bytes_of_x,
                       std::uint64_t bytes_of_y) { return x < y + bytes_of_y && y < x + bytes_of_x; };
  return meet(a.base, b.base, a.bytes, b.bytes) || meet(a.moved, b.moved, a.bytes, b.bytes);
}

/// Is half a word that holds their distance, or their sum, equal in the graph and in the evidence? Both change
/// their sign where all bits of both addresses change, so this is so for places that lie 2 GiB apart, or a multiple.
bool keep_half(const MovedRegion& a, const MovedRegion& b) {
  const auto half = [](std::uint64_t word) { return static_cast<std::uint32_t>(word); };
  return half(a.base - b.base) == half(a.moved - b.moved) ||
         half(a.base + b.base) == half(a.moved + b.moved);
}

/// With the same displacement twice, a word could be an address of either, or the distance of both.
std::string ambiguity(std::span<const MovedRegion> regions) {
  for (std::size_t i = 0; i < regions.size(); ++i) {
    const std::uint64_t way = regions[i].moved - regions[i].base;
    if (way == 0) return fmt::format("region {} did not move for the evidence", i);
    if (way % Relocation::kAlignment != 0) return fmt::format("region {} is aligned in another way", i);
    for (std::size_t j = 0; j < i; ++j) {
      if (regions[j].moved - regions[j].base == way)
        return fmt::format("regions {} and {} moved by the same distance", j, i);
      if (overlap(regions[i], regions[j])) return fmt::format("regions {} and {} overlap", j, i);
      if (keep_half(regions[i], regions[j]))
        return fmt::format("half of the distance of regions {} and {} is the same in the evidence", j, i);
    }
  }
  return {};
}

/// The words of one node.
class NodeProof {
 public:
  NodeProof(const Relocation::Pair& home, const Relocation::Pair& moved, std::size_t node,
            std::span<const MovedRegion> regions)
      : home_(home.first.nodes[node].bytes),
        home_again_(home.second.nodes[node].bytes),
        moved_(moved.first.nodes[node].bytes),
        moved_again_(moved.second.nodes[node].bytes),
        regions_(regions) {}

  /// The region that the word at `offset` is an address of, or none. `is_explained` says no when it is neither that
  /// nor without meaning.
  std::optional<std::uint32_t> look(std::size_t offset, bool& is_explained, bool& is_noise) const {
    is_explained = true;
    is_noise = false;
    const auto old = at<std::uint64_t>(home_, offset);
    const auto now = at<std::uint64_t>(moved_, offset);
    if (const auto region = region_of(offset, old, now)) return region;
    for (std::size_t half = offset; half < std::min(offset + kWord, home_.size()); half += kHalf) {
      if (differs(half)) is_noise = true;
      else if (at<std::uint32_t>(home_, half) != at<std::uint32_t>(moved_, half)) is_explained = false;
    }
    if (!is_noise && is_old_address(old)) is_explained = false;
    return std::nullopt;
  }

 private:
  /// Between two captures that see the same addresses.
  bool differs(std::size_t half) const {
    return at<std::uint32_t>(moved_, half) != at<std::uint32_t>(moved_again_, half) ||
           at<std::uint32_t>(home_, half) != at<std::uint32_t>(home_again_, half);
  }
  bool is_old_address(std::uint64_t word) const {
    return std::any_of(regions_.begin(), regions_.end(), [&](const MovedRegion& region) {
      return word >= region.base && word - region.base < region.bytes;
    });
  }
  std::optional<std::uint32_t> region_of(std::size_t offset, std::uint64_t old, std::uint64_t now) const {
    if (offset + kWord > home_.size() || differs(offset) || differs(offset + kHalf)) return std::nullopt;
    for (std::uint32_t i = 0; i < regions_.size(); ++i)
      if (lies_in(old, regions_[i]) && now - old == regions_[i].moved - regions_[i].base) return i;
    return std::nullopt;
  }

  const std::vector<std::byte>&home_, &home_again_, &moved_, &moved_again_;
  std::span<const MovedRegion> regions_;
};

Relocation::Proof refuse(std::string reason) { return {std::nullopt, std::move(reason)}; }

std::string other_work(const Relocation::Pair& home, const Relocation::Pair& moved) {
  for (const Recording* other : {&home.second, &moved.first, &moved.second})
    if (std::string reason = other_work(home.first, *other); !reason.empty()) return reason;
  return {};
}

}  // namespace

Relocation::Proof Relocation::prove(const Pair& home, const Pair& moved,
                                    std::span<const MovedRegion> regions) {
  for (std::string reason : {ambiguity(regions), unreadable(home.first), other_work(home, moved)})
    if (!reason.empty()) return refuse(std::move(reason));
  Relocation made;
  made.regions_.assign(regions.begin(), regions.end());
  for (const MovedRegion& region : regions) made.bases_.push_back(region.base);
  const std::vector<RecordedNode>& nodes = home.first.nodes;
  for (std::uint32_t i = 0; i < nodes.size(); ++i) {
    const NodeProof proof(home, moved, i, regions);
    for (std::uint32_t offset = 0; offset < nodes[i].bytes.size(); offset += kWord) {
      bool is_explained = true, is_noise = false;
      const auto region = proof.look(offset, is_explained, is_noise);
      if (!is_explained)
        return refuse(fmt::format(
            "the word at {} of node {} ({}) changed from {:#x} to {:#x}, which is no address that "
            "has moved",
            offset, i, nodes[i].name, at<std::uint64_t>(nodes[i].bytes, offset),
            at<std::uint64_t>(moved.first.nodes[i].bytes, offset)));
      made.noise_ += is_noise;
      if (region) made.words_.push_back({i, offset, *region});
    }
  }
  return {std::move(made), {}};
}

bool Relocation::can_be_at(std::size_t region, std::uint64_t base) const {
  if (region >= regions_.size()) return false;
  const MovedRegion& proved = regions_[region];
  return ((base ^ proved.base) & ~(proved.moved ^ proved.base)) == 0;
}

std::string Relocation::difference(const Recording& graph, const Recording& other) const {
  if (std::string reason = other_work(graph, other); !reason.empty()) return reason;
  for (const Word& word : words_) {
    const auto here = at<std::uint64_t>(graph.nodes[word.node].bytes, word.offset);
    const auto there = at<std::uint64_t>(other.nodes[word.node].bytes, word.offset);
    if (here != there)
      return fmt::format("the address at {} of node {} ({}) is {:#x}, and {:#x} in a capture there",
                         word.offset, word.node, graph.nodes[word.node].name, here, there);
  }
  return {};
}

std::string Relocation::check(const Recording& graph, const Recording& fresh,
                              const Recording& again) const {
  for (const Recording* other : {&fresh, &again})
    if (std::string reason = difference(graph, *other); !reason.empty()) return reason;
  return stray(fresh, again);
}

/// A word that is an address in a region, and that the proof does not know.
std::string Relocation::stray(const Recording& fresh, const Recording& again) const {
  const auto is_known = [&](std::uint32_t node, std::size_t offset) {
    return std::any_of(words_.begin(), words_.end(),
                       [&](const Word& word) { return word.node == node && word.offset == offset; });
  };
  for (std::uint32_t i = 0; i < fresh.nodes.size(); ++i) {
    const std::vector<std::byte>& bytes = fresh.nodes[i].bytes;
    for (std::size_t offset = 0; offset + kWord <= bytes.size(); offset += kWord) {
      const auto word = at<std::uint64_t>(bytes, offset);
      const bool is_address =
          word == at<std::uint64_t>(again.nodes[i].bytes, offset) && is_in_a_region(word);
      if (is_address && !is_known(i, offset))
        return fmt::format("the word at {} of node {} ({}) is {:#x}, an address that there was no proof of",
                           offset, i, fresh.nodes[i].name, word);
    }
  }
  return {};
}

bool Relocation::is_in_a_region(std::uint64_t word) const {
  for (std::size_t i = 0; i < bases_.size(); ++i)
    if (word >= bases_[i] && word - bases_[i] < regions_[i].bytes) return true;
  return false;
}

std::vector<std::uint32_t> Relocation::apply(Recording& graph, std::size_t region, std::uint64_t base) {
  if (!can_be_at(region, base))
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("there is no proof for region {} at {:#x}, which has bits that the evidence has not "
                    "changed",
                    region, base));
  const std::uint64_t way = base - bases_[region];
  std::vector<std::uint32_t> nodes;
  for (const Word& word : words_) {
    if (word.region != region) continue;
    std::vector<std::byte>& bytes = graph.nodes.at(word.node).bytes;
    const std::uint64_t value = at<std::uint64_t>(bytes, word.offset) + way;
    std::memcpy(bytes.data() + word.offset, &value, sizeof value);
    if (nodes.empty() || nodes.back() != word.node) nodes.push_back(word.node);
  }
  bases_[region] = base;
  return nodes;
}

}  // namespace onecopy::graph
