// SPDX-License-Identifier: Apache-2.0
#include "group_table.h"

#include <fmt/format.h>

namespace onecopy::cli {
namespace {

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

std::string group_table(const std::vector<ListedOwner>& owners) {
  std::string text;
  for (const ListedOwner& owner : owners)
    for (const GroupInfo& group : owner.info.groups)
      text += fmt::format("{}{}", text.empty() ? "" : "\n", group_text(owner, group));
  return text.empty() ? "No process of this user that answers is a member of an rpc group.\n" : text;
}

}  // namespace onecopy::cli
