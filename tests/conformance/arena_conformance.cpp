// SPDX-License-Identifier: Apache-2.0
// Arenas of captured graphs on each backend that tells addresses from memory, with and without several addresses for
// one memory.
#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <vector>

#include "conformance/backend_conformance.h"
#include "onecopy/core/error.h"
#include "onecopy/graph/arena.h"
#include "support/refusal.h"

namespace onecopy::graph {

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(ArenaConformance);

namespace {

using onecopy::testing::expect_refusal;

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr int kPoison = 0xDB;

int count_of(const char* variable, int usual) {
  const char* text = std::getenv(variable);
  return text ? std::atoi(text) : usual;
}

}  // namespace

class ArenaConformance : public BackendConformance {
 protected:
  std::shared_ptr<Arena> arena(std::size_t limit = SIZE_MAX) { return Arena::make(place(), {limit}); }
  bool has_aliases() const { return device().traits().maps_one_chunk_twice; }

  void write(const Window& window, std::size_t offset, int value, std::size_t bytes = 1) {
    const std::vector<std::byte> values(bytes, std::byte(value));
    copy_bytes_and_wait({window.base() + offset, place(), values.data(), kCpu, bytes});
  }
  int read(const Window& window, std::size_t offset) {
    std::byte value{};
    copy_bytes_and_wait({&value, kCpu, window.base() + offset, place(), 1});
    return static_cast<int>(value);
  }
};

TEST_P(ArenaConformance, TakesWhatItsLargestWindowTakesInAnyOrder) {
  std::vector<std::size_t> sizes{3 * kMiB, 9 * kMiB, 64};
  do {
    const auto pages = arena();
    std::vector<Window> windows;
    for (const std::size_t bytes : sizes) windows.push_back(pages->open(bytes));
    EXPECT_EQ(pages->footprint().shared, 10 * kMiB);
    for (const Window& window : windows) write(window, window.size() - 1, 5);
  } while (std::next_permutation(sizes.begin(), sizes.end()));
}

TEST_P(ArenaConformance, ReportsWhetherEachWindowHasAddressesOfItsOwn) {
  const auto pages = arena();
  const Window first = pages->open(5 * kMiB), second = pages->open(3 * kMiB);
  EXPECT_EQ(pages->footprint().aliases, has_aliases());
  EXPECT_EQ(first.base() != second.base(), has_aliases());
  EXPECT_EQ(pages->footprint().mapped, (has_aliases() ? 12 : 6) * kMiB);
  EXPECT_EQ(pages->footprint().mappings, has_aliases() ? 4U : 2U);
  write(first, 2 * kMiB, 7);
  EXPECT_EQ(read(second, 2 * kMiB), 7);
}

TEST_P(ArenaConformance, AWindowOfItsOwnMemoryIsNotOverwrittenOrRefused) {
  const auto pages = arena();
  Window first = pages->open(4 * kMiB);
  const Window second = pages->open(4 * kMiB);
  const Extent begin{.from = 0, .bytes = 1};
  if (!has_aliases()) {
    expect_refusal(ErrorCode::unsupported, {"has one address", "arena of its own"},
                   [&] { first.make_own(std::span(&begin, 1)); });
    EXPECT_EQ(pages->footprint().own, 0U);
    return;
  }
  first.make_own(std::span(&begin, 1));
  write(first, 0, 3);
  write(second, 0, 8);
  EXPECT_EQ(read(first, 0), 3);
}

TEST_P(ArenaConformance, GrowsUpToItsLimitAndIsUnchangedBeyondIt) {
  const auto pages = arena(8 * kMiB);
  const Window held = pages->open(2 * kMiB);
  write(held, 0, 4);
  Window growing = pages->open_growing(64 * kMiB);
  growing.grow(6 * kMiB);
  expect_refusal(ErrorCode::out_of_memory, {"limit is 8388608"}, [&] { growing.grow(9 * kMiB); });
  EXPECT_EQ(pages->footprint().shared, 6 * kMiB);
  EXPECT_EQ(read(held, 0), 4);
  growing.retire();
  EXPECT_EQ(pages->footprint().shared, 2 * kMiB);
  EXPECT_EQ(read(held, 0), 4);
}

constexpr std::size_t kPart = 2 * kMiB;

/// Checks an arena against a model of its promises: sizes, and the bytes of pages that belong to one window only.
class Interleaving {
 public:
  struct Graph {
    Window window;
    std::map<std::size_t, int> own{};  ///< values by their places
    bool is_retired = false;

    bool owns_part_of(std::size_t at) const {
      return std::any_of(own.begin(), own.end(),
                         [&](const auto& one) { return one.first / kPart == at / kPart; });
    }
  };

  Interleaving(std::shared_ptr<Arena> arena, bool has_aliases)
      : arena_(std::move(arena)), aliases_(has_aliases) {}

  /// A window was opened: the arena has pages up to its end.
  void grow(std::size_t bytes) {
    const std::size_t end = (bytes + kPart - 1) / kPart * kPart;
    while (end > reach()) ends_.push_back(std::min(end, reach() + std::max(kPart, 4 * reach())));
  }
  /// Pages end with the last window that shows them.
  void trim() {
    std::size_t most = 0;
    for (const Graph& graph : graphs)
      if (!graph.is_retired) most = std::max(most, graph.window.size());
    while (!ends_.empty() && (ends_.size() > 1 ? ends_[ends_.size() - 2] : 0) >= most) ends_.pop_back();
    if (graphs.empty()) had_own = false;
  }
  std::size_t reach() const { return ends_.empty() ? 0 : ends_.back(); }
  void check(std::size_t shared, std::size_t own) const {
    if (is_parked) {
      EXPECT_EQ(shared, 0U);
    } else if (had_own) {  // some pages are there whole and in parts, or are windows' own
      EXPECT_GE(shared + own, reach());
      EXPECT_LE(shared, 2 * reach());
    } else {
      EXPECT_EQ(shared, reach());
    }
  }
  Arena& arena() { return *arena_; }
  bool has_aliases() const { return aliases_; }

  std::vector<Graph> graphs{};
  bool is_parked = false;
  bool had_own = false;  ///< had a window memory of its own since there was last none?

 private:
  std::vector<std::size_t> ends_{};  ///< of pages
  std::shared_ptr<Arena> arena_;
  const bool aliases_;
};

/// ONECOPY_ARENA_STEPS asks for more.
TEST_P(ArenaConformance, RandomInterleavingsKeepWhatAModelKeepsThoughPagesArePoisonedAfterEveryReplay) {
  const int steps = count_of("ONECOPY_ARENA_STEPS", 400);
  std::mt19937_64 chance(static_cast<unsigned>(count_of("ONECOPY_ARENA_SEED", 3)));
  Interleaving all(arena(), has_aliases());
  const auto capture = [&] {
    Interleaving::Graph made{all.arena().open(1 + chance() % (12 * kMiB))};
    all.grow(made.window.size());
    if (all.has_aliases() && chance() % 3 == 0) {  // it leaves something alive
      const Extent alive{.from = chance() % made.window.size(), .bytes = 1};
      made.window.make_own(std::span(&alive, 1));
      made.own[alive.from] = static_cast<int>(chance() % 256);
      all.had_own = true;
      write(made.window, alive.from, made.own[alive.from]);
    }
    all.graphs.push_back(std::move(made));
  };
  const auto poison = [&] {
    for (const auto& graph : all.graphs)
      for (std::size_t at = 0; at < graph.window.size() && !graph.is_retired; at += kPart)
        if (!graph.owns_part_of(at)) write(graph.window, at, kPoison, 1);
  };
  const auto replay = [&](const Interleaving::Graph& graph) {
    const std::size_t at = chance() % graph.window.size();
    if (graph.is_retired || graph.own.contains(at)) return;
    const int value = static_cast<int>(chance() % 256);
    write(graph.window, at, value);
    EXPECT_EQ(read(graph.window, at), value) << "its own input, before anyone else's replay";
    poison();
  };
  for (int step = 0; step < steps && !HasFailure(); ++step) {
    const std::size_t which = all.graphs.empty() ? 0 : chance() % all.graphs.size();
    switch (chance() % 12) {
      case 0:
      case 1:
        if (all.graphs.size() < 8 && !all.is_parked) capture();
        break;
      case 2:
        if (!all.graphs.empty()) all.graphs.erase(all.graphs.begin() + static_cast<std::ptrdiff_t>(which));
        break;
      case 3:
        all.is_parked ? all.arena().resume() : all.arena().park();
        all.is_parked = !all.is_parked;
        break;
      case 4:
        if (!all.graphs.empty()) all.graphs[which].window.retire(), all.graphs[which].is_retired = true;
        break;
      default:
        if (!all.graphs.empty() && !all.is_parked) replay(all.graphs[which]);
    }
    all.trim();
    const Footprint footprint = all.arena().footprint();
    all.check(footprint.shared, footprint.own);
    EXPECT_EQ(all.arena().footprint().windows, all.graphs.size()) << "step " << step;
    for (const auto& graph : all.graphs)
      for (const auto& [at, value] : graph.own) EXPECT_EQ(read(graph.window, at), value) << "step " << step;
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, ArenaConformance,
                         ::testing::Values(BackendCase{"cpu", DeviceType::cpu, 0, SegmentKind::memfd},
                                           BackendCase{"cuda", DeviceType::cuda, 0, SegmentKind::cuda_vmm},
                                           BackendCase{"npu", DeviceType::npu, 0, SegmentKind::ascend_vmm}),
                         [](const auto& one) { return one.param.name; });

}  // namespace onecopy::graph
