// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "rpc/node.h"

/// The report of a node for listings.
namespace onecopy::rpc {
namespace {

constexpr std::size_t kMaxPeers = 256;  // the listing is one packet

std::string state_of(Member& member, std::uint32_t own_number) {
  if (member.number() == own_number) return "here";
  if (member.is_gone()) return member.has_left ? "left" : "ended";
  const auto silence = member.transport->silence_of(member);
  if (silence.count() != 0) return fmt::format("silent for {} s", silence.count());
  return member.out.load() ? "open" : "new";
}

PeerInfo describe_peer(Member& member, std::uint32_t own_number) {
  PeerInfo peer;
  peer.name = member.name();
  peer.number = member.number();
  peer.pid = member.address.pid;
  peer.state = state_of(member, own_number);
  peer.lanes = (member.out.load() ? 1 : 0) + (member.in.load() ? 1 : 0);
  peer.calls = member.counters.calls.load(std::memory_order_relaxed);
  peer.answers = member.counters.answers.load(std::memory_order_relaxed);
  peer.served = member.counters.served.load(std::memory_order_relaxed);
  for (std::size_t i = 0; i < kRouteNames.size(); ++i)
    if (const auto tensors = member.counters.routes[i].load(std::memory_order_relaxed))
      peer.routes.emplace_back(kRouteNames[i], tensors);
  return peer;
}

}  // namespace

GroupInfo Node::describe() const {
  GroupInfo group;
  group.name = name();
  group.number = number();
  group.calls_under_way = calls_under_way();
  group.idle_workers = static_cast<std::uint64_t>(idle_workers());
  const auto under_way = calls_.by_member();
  for (Member* const member : *list_.load(std::memory_order_acquire)) {
    if (member->next) continue;
    if (group.peers.size() == kMaxPeers) {
      ++group.unlisted;
      continue;
    }
    group.peers.push_back(describe_peer(*member, number()));
    if (const auto at = under_way.find(member->number()); at != under_way.end())
      group.peers.back().calls_under_way = at->second;
  }
  return group;
}

}  // namespace onecopy::rpc
