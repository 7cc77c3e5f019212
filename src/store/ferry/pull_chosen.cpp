// SPDX-License-Identifier: Apache-2.0
// Versions of which this host knows by others than its sources, such as a group's.
#include <fmt/format.h>

#include <set>
#include <thread>
#include <utility>

#include "onecopy/core/error.h"
#include "store/ferry/pull.h"

namespace onecopy::store::ferry {
namespace {

/// Returns whether another source cannot help.
bool is_of_this_host(ErrorCode code) noexcept {
  return code == ErrorCode::out_of_memory || code == ErrorCode::out_of_descriptors ||
         code == ErrorCode::invalid_argument || code == ErrorCode::unsupported;
}

}  // namespace

/// Finds a version that is here and no longer arrives. Its number is the one that it has here.
std::optional<Origins::Pair> Pull::find_here(const Token& version) {
  const auto pairs = origins_.pairs();
  for (const std::uint64_t number : LocalVersions::of(*client_, options_.name).numbers) {
    const auto local = token_of(*client_, options_.name, number);
    for (const Origins::Pair& pair : pairs)
      if (local && pair.local == *local && pair.origin == version)
        return Origins::Pair{version, *local, number, pair.source};
  }
  return {};
}

/// Finds a version that arrives, or has arrived and was not shown yet.
std::optional<Arrival> Pull::find_arrival(const Token& version) {
  const auto pairs = origins_.pairs();
  std::optional<Token> before;
  for (auto pair = pairs.rbegin(); pair != pairs.rend(); ++pair) {
    if (pair->origin != version || pair->local == before) continue;
    if (auto arrival = Arrival::resume(client_, pair->local)) return arrival;
    before = pair->local;
  }
  return {};
}

std::optional<std::uint64_t> Pull::has(const Chosen& chosen) {
  if (const auto here = find_here(chosen.version)) {
    const auto reading =
        client_->open(options_.name, here->number, nullptr, Deadline::after(kKeeperPatience));
    return reading->version().bytes;
  }
  for (const Origins::Pair& pair : origins_.pairs()) {
    const auto files =
        pair.origin == chosen.version ? ArrivingFiles::find(*client_, pair.local) : std::nullopt;
    if (files && files->is_whole()) return bytes_to_send(files->table);
  }
  return {};
}

bool Pull::show(const Chosen& chosen) {
  if (shown_origin() == chosen.version) return true;
  if (const auto here = find_here(chosen.version)) {
    client_->ask<Done>(Rollback{options_.name, here->number});
    origins_.add({chosen.version, here->local, chosen.number, here->source});
    return true;
  }
  auto arrival = find_arrival(chosen.version);
  if (!arrival) return shown_origin() == chosen.version;
  if (!arrival->is_whole()) return false;
  arrival->commit();
  return true;
}

/// Looks at the last notes alone: each fetch has dropped what was there before, and the keeper drops the rest after kAway.
void Pull::drop_arriving_unless(const std::function<bool(const Token&)>& is_wanted) {
  constexpr std::ptrdiff_t kLooked = 32;
  const auto pairs = origins_.pairs();
  std::set<Token> seen;
  for (auto pair = pairs.rbegin(); pair != pairs.rend() && pair - pairs.rbegin() < kLooked; ++pair)
    if (seen.insert(pair->local).second && ArrivingFiles::find(*client_, pair->local) &&
        !is_wanted(pair->origin))
      drop(pair->origin);
}

void Pull::drop(const Token& version) {
  if (auto arrival = find_arrival(version)) arrival->abort();
}

Arrival Pull::stage(const Chosen& chosen, std::uint32_t keep, Table table, Fd memory) {
  const Token& local = chosen.version;  // for which the keeper has reserved room
  Arrival arrival = Arrival::of_whole(client_, local,
                                      {options_.name, chosen.number | kExactNumber, keep, std::move(table)},
                                      std::move(memory));
  origins_.add({chosen.version, local, chosen.number, 0});
  return arrival;
}

/// Asks a source for the version. A source before the last one gets a moment to begin with it, so that hosts form a chain.
std::optional<Told> Pull::told_of(Source& source, const Chosen& chosen) {
  constexpr std::chrono::milliseconds kMoment{500}, kPause{20};
  const Deadline until =
      sources_.size() > 1 && &source == sources_.data() ? Deadline::after(kMoment) : kNow;
  for (;;) {
    for (const std::uint64_t number : {std::uint64_t{0}, chosen.number}) {
      try {
        Told told = poll(source, number, {}, {});
        if (told.version == chosen.version) return told;
      } catch (const Error& error) {
        if (error.code() != ErrorCode::stale_handle) throw;
      }
    }
    if (until.has_passed()) return {};
    options_.between_chunks();
    std::this_thread::sleep_for(kPause);
  }
}

std::uint64_t Pull::bring_whole(Source& source, const Told& told) {
  auto arrival = find_arrival(told.version);
  if (!arrival) {
    Told exact = told;
    exact.number |= kExactNumber;
    arrival = begin(source, exact);
  }
  take_all(source, told, *arrival);
  arrival->seal();
  return arrival->bytes();
}

std::uint64_t Pull::stage(const Chosen& chosen) {
  static_cast<void>(shown_origin());  // throws for an object that was published here
  std::exception_ptr last;
  for (Source& source : sources_) {
    try {
      if (const auto told = told_of(source, chosen)) return bring_whole(source, *told);
    } catch (const Error& error) {
      if (is_of_this_host(error.code())) throw;
      last = std::current_exception();
      leave(source);
    }
  }
  if (last) std::rethrow_exception(last);
  throw Error(ErrorCode::stale_handle,
              fmt::format("no host has version {} of \"{}\" now", chosen.number, options_.name));
}

}  // namespace onecopy::store::ferry
