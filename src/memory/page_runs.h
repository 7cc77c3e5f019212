// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

namespace onecopy {

using PoolTime = std::chrono::steady_clock::time_point;

/// A range of adjacent pages in one segment.
struct PageRun {
  std::uint32_t segment = 0;
  std::uint32_t first = 0;
  std::uint32_t pages = 0;
};

/// The free pages of all shared segments: *warm* runs hold physical memory, *cold* ones do not. With walls, no run
/// crosses a multiple of that many pages, so no extent does either.
///
/// Invariant: two runs of one kind touch only at a wall. Runs of different kinds stay separate, so that a run is
/// reserved and given back as a whole. Thread safety: none; Pool locks.
class PageRuns {
 public:
  enum class Kind : std::uint8_t { cold = 0, warm = 1 };

  /// Constructs an empty set. `wall` is the number of pages between walls, or 0 for none.
  explicit PageRuns(std::uint32_t wall = 0) noexcept : wall_(wall) {}

  /// Adds free pages. A warm run that joins a larger one takes over its age.
  void put(PageRun run, Kind kind, PoolTime since = {});

  /// Takes exactly `pages` from the best fit among the warm runs.
  std::optional<PageRun> take_warm(std::uint32_t pages);

  /// A run of pages for which memory must be reserved, except for the first `warm` pages.
  struct Growth {
    PageRun run;
    std::uint32_t warm = 0;
  };
  /// Takes at least `pages`, and `ahead` cold ones if there are so many, from the best fit among the cold runs together
  /// with the warm run just before it.
  std::optional<Growth> take_cold(std::uint32_t pages, std::uint32_t ahead);
  void put_back(const Growth& growth);

  /// Takes warm runs worth giving back that were freed at or before `until`: runs of at least `pages`, and runs beside
  /// a cold run, which they then join. Takes at most `max_pages` in total, so of some runs only the first pages.
  std::vector<PageRun> take_idle(PoolTime until, std::uint32_t pages,
                                 std::uint64_t max_pages = ~std::uint64_t{0});
  bool has_returnable(std::uint32_t pages) const;
  /// Takes the largest warm run, if it has at least `pages`.
  std::optional<PageRun> take_largest_warm(std::uint32_t pages);
  /// Takes [0, pages) of the segment and returns true, if all of it is cold.
  bool take_if_all_cold(std::uint32_t segment, std::uint32_t pages);

  /// Returns whether [0, pages) of the segment is one warm run, freed at or before `until`. REQUIRES: no walls.
  bool is_all_warm(std::uint32_t segment, std::uint32_t pages, PoolTime until) const;
  /// Removes the run. REQUIRES: is_all_warm().
  void drop(std::uint32_t segment);

  std::uint64_t warm_pages() const noexcept { return warm_pages_; }

 private:
  using Place = std::pair<std::uint32_t, std::uint32_t>;  // the segment and the first page
  // The number of pages, the segment and the first page.
  using Size = std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>;
  struct Free {
    std::uint32_t pages;
    Kind kind;
    PoolTime since;
  };
  using ByPlace = std::map<Place, Free>;

  std::set<Size>& by_size(Kind kind) { return by_size_[static_cast<int>(kind)]; }
  bool is_returnable(ByPlace::const_iterator at, std::uint32_t pages) const;
  bool has_warm(std::uint32_t pages) const;
  void put_between_walls(PageRun run, Kind kind, PoolTime since);
  bool is_wall(std::uint32_t page) const noexcept { return wall_ != 0 && page % wall_ == 0; }
  void insert(PageRun run, Kind kind, PoolTime since);
  Free erase(ByPlace::iterator at);
  static Place place_of(const Size& size) { return {std::get<1>(size), std::get<2>(size)}; }

  const std::uint32_t wall_;
  ByPlace by_place_;
  std::set<Size> by_size_[2];
  std::uint64_t warm_pages_ = 0;
};

}  // namespace onecopy
