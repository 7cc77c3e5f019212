// SPDX-License-Identifier: Apache-2.0
#include "owner_table.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "os/file.h"

namespace onecopy::cli {
namespace {

std::string command_of(const OwnerInfo& owner) {
  std::string command = command_line(owner.pid);
  return command.empty() ? fmt::format("[{}]", escaped(owner.name)) : command;
}

std::string age(double seconds) {
  return format_age(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::duration<double>(seconds)));
}

std::vector<std::string> numbers(const Stats& stats, std::uint64_t borrowers) {
  return {format_bytes(stats.bytes_shared),     format_bytes(stats.live_bytes),
          fmt::format("{}", stats.live_blocks), fmt::format("{}", stats.in_transit),
          fmt::format("{}", stats.limbo),       fmt::format("{}", borrowers)};
}

std::vector<std::string> row(std::string pid, std::vector<std::string> cells, std::string command) {
  cells.insert(cells.begin(), std::move(pid));
  cells.push_back(std::move(command));
  return cells;
}

std::vector<std::string> totals(const std::vector<ListedOwner>& owners) {
  Stats sum;
  std::uint64_t borrowers = 0;
  for (const ListedOwner& owner : owners) {
    for (auto member :
         {&Stats::bytes_shared, &Stats::live_bytes, &Stats::live_blocks, &Stats::in_transit, &Stats::limbo})
      sum.*member += owner.info.stats.*member;
    borrowers += owner.info.borrowers.size();
  }
  return row("total", numbers(sum, borrowers), plural(owners.size(), "owner"));
}

std::string arena_line(const ArenaInfo& arena) {
  const std::string own =
      arena.own == 0 ? "" : fmt::format(", and {} of single ones", format_bytes(arena.own));
  return fmt::format("{} of an arena on {} for {}{}{}", format_bytes(arena.shared), escaped(arena.device),
                     plural(arena.windows, "captured graph"), own, arena.parked ? ", parked" : "");
}

/// The blocks in transit in one place.
struct TransitSummary {
  std::uint64_t blocks = 0;
  double youngest = 0;  ///< seconds
  double oldest = 0;
};

std::map<std::string, TransitSummary> by_place(const std::vector<TransitInfo>& transits) {
  std::map<std::string, TransitSummary> places;
  for (const TransitInfo& transit : transits) {
    auto [at, is_new] =
        places.try_emplace(transit.where, TransitSummary{0, transit.age_seconds, transit.age_seconds});
    at->second.blocks += transit.blocks;
    at->second.youngest = std::min(at->second.youngest, transit.age_seconds);
    at->second.oldest = std::max(at->second.oldest, transit.age_seconds);
  }
  return places;
}

/// Returns e.g. "3 s", or "3 s to 2 min".
std::string ages(const TransitSummary& waiting) {
  const std::string from = age(waiting.youngest);
  const std::string to = age(waiting.oldest);
  return from == to ? to : fmt::format("{} to {}", from, to);
}

std::string routes_of(const PeerInfo& peer) {
  std::string text;
  for (const auto& [route, count] : peer.routes)
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", escaped(route), count);
  return text;
}

std::string peers_of(const GroupInfo& group) {
  constexpr auto kRight = Align::right;
  Table table({{"peer", Align::left},
               {"pid", kRight},
               {"state", Align::left},
               {"lanes", kRight},
               {"under way", kRight},
               {"calls", kRight},
               {"answers", kRight},
               {"served", kRight},
               {"routes", Align::left}},
              "  ");
  for (const PeerInfo& peer : group.peers)
    table.add({fmt::format("{} ({})", escaped(peer.name), peer.number), fmt::format("{}", peer.pid),
               escaped(peer.state), fmt::format("{}", peer.lanes), fmt::format("{}", peer.calls_under_way),
               fmt::format("{}", peer.calls), fmt::format("{}", peer.answers),
               fmt::format("{}", peer.served), routes_of(peer)});
  return table.str();
}

std::string group_text(const ListedOwner& owner, const GroupInfo& group) {
  std::string text = fmt::format("{} is {} ({}), with {} under way and {}: {}\n", owner.info.pid,
                                 escaped(group.name), group.number, plural(group.calls_under_way, "call"),
                                 plural(group.idle_workers, "idle worker"), owner.command);
  if (!group.peers.empty()) text += peers_of(group);
  if (group.unlisted != 0) text += fmt::format("  and {} more\n", plural(group.unlisted, "peer"));
  return text;
}

}  // namespace

std::string command_line(int pid) {
  std::string text = try_read_text(fmt::format("/proc/{}/cmdline", pid)).value_or("");
  while (!text.empty() && text.back() == '\0') text.pop_back();
  std::ranges::replace(text, '\0', ' ');
  return escaped(text);
}

std::vector<ListedOwner> sorted(std::vector<OwnerInfo> owners) {
  std::ranges::sort(owners, {}, [](const OwnerInfo& owner) {
    return std::tuple(~owner.stats.bytes_shared, ~owner.stats.live_blocks, owner.pid);
  });
  std::vector<ListedOwner> listed;
  listed.reserve(owners.size());
  for (OwnerInfo& owner : owners) {
    std::string command = command_of(owner);
    listed.push_back({std::move(owner), std::move(command)});
  }
  return listed;
}

bool shares_something(const OwnerInfo& owner) {
  const Stats& stats = owner.stats;
  return stats.bytes_shared != 0 || stats.live_blocks != 0 || stats.limbo != 0 || stats.in_transit != 0;
}

std::string owner_table(const std::vector<ListedOwner>& owners, std::size_t width) {
  constexpr auto kRight = Align::right;
  Table table({{"pid", kRight},
               {"memory", kRight},
               {"bytes", kRight},
               {"blocks", kRight},
               {"in transit", kRight},
               {"limbo", kRight},
               {"borrowers", kRight},
               {"command", Align::left, true}});
  for (const ListedOwner& owner : owners)
    table.add(row(fmt::format("{}", owner.info.pid), numbers(owner.info.stats, owner.info.borrowers.size()),
                  owner.command));
  if (owners.size() > 1) table.add(totals(owners));
  return table.str(width);
}

std::string owner_details(const ListedOwner& owner) {
  const OwnerInfo& info = owner.info;
  std::string text;
  const auto add = [&](const std::string& line) { text += fmt::format("{}: {}\n", info.pid, line); };
  add(owner.command);
  for (const DeviceUse& use : info.devices)
    add(fmt::format("{} on {}, {}{}", plural(use.segments, "segment"), escaped(use.device),
                    format_bytes(use.bytes),
                    use.uuid.empty() ? "" : fmt::format(" ({})", escaped(use.uuid))));
  for (const ArenaInfo& arena : info.arenas) add(arena_line(arena));
  for (const BorrowerInfo& borrower : info.borrowers)
    add(fmt::format("{} ({}) borrows {}", borrower.pid, escaped(borrower.name),
                    plural(borrower.claims, "block")));
  for (const auto& [where, waiting] : by_place(info.in_transit))
    add(fmt::format("{} in transit for {} ({})", plural(waiting.blocks, "block"), ages(waiting),
                    escaped(where)));
  if (info.stats.unkept != 0)
    add(fmt::format("{} that it put into queues end with their process (the queues do not keep them)",
                    plural(info.stats.unkept, "segment")));
  if (info.stats.host_waits != 0)
    add(fmt::format("its host waited for streams {} (its devices have no stream memory operations)",
                    plural(info.stats.host_waits, "time")));
  if (info.stats.pinned_bytes != 0)
    add(fmt::format("{} pinned for its cards", format_bytes(info.stats.pinned_bytes)));
  if (info.stats.pageable_copies != 0)
    add(fmt::format("{} went between cards and memory that is not pinned, {}",
                    format_bytes(info.stats.pageable_bytes), plural(info.stats.pageable_copies, "time")));
  if (info.stats.staged_copies != 0)
    add(fmt::format("{} went from card to card through the host {} (there is no peer access)",
                    format_bytes(info.stats.staged_bytes), plural(info.stats.staged_copies, "time")));
  return text;
}

std::string group_table(const std::vector<ListedOwner>& owners) {
  std::string text;
  for (const ListedOwner& owner : owners)
    for (const GroupInfo& group : owner.info.groups)
      text += fmt::format("{}{}", text.empty() ? "" : "\n", group_text(owner, group));
  return text.empty() ? "No process of this user that answers is a member of an rpc group.\n" : text;
}

}  // namespace onecopy::cli
