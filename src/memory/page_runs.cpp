// SPDX-License-Identifier: Apache-2.0
#include "page_runs.h"

#include <algorithm>

namespace onecopy {

void PageRuns::insert(PageRun run, Kind kind, PoolTime since) {
  by_place_.emplace(Place{run.segment, run.first}, Free{run.pages, kind, since});
  by_size(kind).emplace(run.pages, run.segment, run.first);
  if (kind == Kind::warm) warm_pages_ += run.pages;
}

PageRuns::Free PageRuns::erase(ByPlace::iterator at) {
  const auto [place, free] = *at;
  by_size(free.kind).erase({free.pages, place.first, place.second});
  if (free.kind == Kind::warm) warm_pages_ -= free.pages;
  by_place_.erase(at);
  return free;
}

void PageRuns::put(PageRun run, Kind kind, PoolTime since) {
  while (wall_ != 0 && run.first / wall_ != (run.first + run.pages - 1) / wall_) {
    const std::uint32_t before = wall_ - run.first % wall_;
    put_between_walls({run.segment, run.first, before}, kind, since);
    run.first += before;
    run.pages -= before;
  }
  put_between_walls(run, kind, since);
}

void PageRuns::put_between_walls(PageRun run, Kind kind, PoolTime since) {
  std::uint32_t largest = run.pages;
  const auto join = [&](ByPlace::iterator at) {
    const Free other = erase(at);
    run.pages += other.pages;
    if (other.pages > largest) since = other.since;
    largest = std::max(largest, other.pages);
  };
  auto after = by_place_.lower_bound({run.segment, run.first});
  if (after != by_place_.begin() && !is_wall(run.first)) {
    const auto before = std::prev(after);
    const auto& [place, free] = *before;
    if (free.kind == kind && place.first == run.segment && place.second + free.pages == run.first) {
      run.first = place.second;
      join(before);
    }
  }
  if (after != by_place_.end() && after->second.kind == kind && !is_wall(run.first + run.pages) &&
      after->first == Place{run.segment, run.first + run.pages})
    join(after);
  insert(run, kind, since);
}

std::optional<PageRun> PageRuns::take_warm(std::uint32_t pages) {
  const auto best = by_size(Kind::warm).lower_bound({pages, 0, 0});
  if (best == by_size(Kind::warm).end()) return std::nullopt;
  const PageRun run{std::get<1>(*best), std::get<2>(*best), pages};
  const Free free = erase(by_place_.find(place_of(*best)));
  if (free.pages > pages)
    insert({run.segment, run.first + pages, free.pages - pages}, Kind::warm, free.since);
  return run;
}

std::optional<PageRuns::Growth> PageRuns::take_cold(std::uint32_t pages, std::uint32_t ahead) {
  const auto best = by_size(Kind::cold).lower_bound({pages, 0, 0});
  if (best == by_size(Kind::cold).end()) return std::nullopt;
  Growth growth{{std::get<1>(*best), std::get<2>(*best), 0}, 0};
  const Free cold = erase(by_place_.find(place_of(*best)));

  auto before = by_place_.lower_bound({growth.run.segment, growth.run.first});
  if (before != by_place_.begin() && !is_wall(growth.run.first)) {
    --before;
    const auto& [place, free] = *before;
    if (place.first == growth.run.segment && place.second + free.pages == growth.run.first &&
        free.pages < pages) {
      growth.run.first = place.second;
      growth.warm = free.pages;
      erase(before);
    }
  }
  const std::uint32_t taken = std::min(cold.pages, std::max(pages - growth.warm, ahead));
  growth.run.pages = growth.warm + taken;
  if (taken < cold.pages)
    insert({growth.run.segment, growth.run.first + growth.run.pages, cold.pages - taken}, Kind::cold, {});
  return growth;
}

void PageRuns::put_back(const Growth& growth) {
  const PageRun& run = growth.run;
  if (growth.warm > 0)
    put({run.segment, run.first, growth.warm}, Kind::warm, std::chrono::steady_clock::now());
  put({run.segment, run.first + growth.warm, run.pages - growth.warm}, Kind::cold);
}

bool PageRuns::is_returnable(ByPlace::const_iterator at, std::uint32_t pages) const {
  const auto& [place, free] = *at;
  if (free.pages >= pages) return true;
  const auto after = std::next(at);
  if (after != by_place_.end() && after->first == Place{place.first, place.second + free.pages})
    return true;
  if (at == by_place_.begin()) return false;
  const auto before = std::prev(at);
  return before->first.first == place.first && before->first.second + before->second.pages == place.second;
}

std::vector<PageRun> PageRuns::take_idle(PoolTime until, std::uint32_t pages, std::uint64_t max_pages) {
  std::vector<PageRun> idle;
  for (const Size& size : by_size(Kind::warm)) {
    if (max_pages == 0) break;
    const auto at = by_place_.find(place_of(size));
    if (at->second.since > until || !is_returnable(at, pages)) continue;
    const auto taken = static_cast<std::uint32_t>(std::min<std::uint64_t>(at->second.pages, max_pages));
    idle.push_back({at->first.first, at->first.second, taken});
    max_pages -= taken;
  }
  for (const PageRun& run : idle) {
    const Free whole = erase(by_place_.find({run.segment, run.first}));
    if (run.pages < whole.pages)
      insert({run.segment, run.first + run.pages, whole.pages - run.pages}, whole.kind, whole.since);
  }
  return idle;
}

bool PageRuns::has_returnable(std::uint32_t pages) const {
  if (has_warm(pages)) return true;
  for (const Size& size : by_size_[static_cast<int>(Kind::warm)])
    if (is_returnable(by_place_.find(place_of(size)), pages)) return true;
  return false;
}

std::optional<PageRun> PageRuns::take_largest_warm(std::uint32_t pages) {
  if (!has_warm(pages)) return std::nullopt;
  const Size largest = *by_size(Kind::warm).rbegin();
  erase(by_place_.find(place_of(largest)));
  return PageRun{std::get<1>(largest), std::get<2>(largest), std::get<0>(largest)};
}

bool PageRuns::take_if_all_cold(std::uint32_t segment, std::uint32_t pages) {
  std::uint32_t page = 0;
  while (page < pages) {
    const auto at = by_place_.find({segment, page});
    if (at == by_place_.end() || at->second.kind != Kind::cold) return false;
    page += at->second.pages;
  }
  for (page = 0; page < pages;) page += erase(by_place_.find({segment, page})).pages;
  return true;
}

bool PageRuns::is_all_warm(std::uint32_t segment, std::uint32_t pages, PoolTime until) const {
  const auto at = by_place_.find({segment, 0});
  return at != by_place_.end() && at->second.kind == Kind::warm && at->second.pages == pages &&
         at->second.since <= until;
}

void PageRuns::drop(std::uint32_t segment) { erase(by_place_.find({segment, 0})); }

bool PageRuns::has_warm(std::uint32_t pages) const {
  const auto& warm = by_size_[static_cast<int>(Kind::warm)];
  return !warm.empty() && std::get<0>(*warm.rbegin()) >= pages;
}

}  // namespace onecopy
