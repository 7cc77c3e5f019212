// SPDX-License-Identifier: Apache-2.0
#include "support/exchange.h"

#include <fmt/format.h>

#include <atomic>
#include <cstdlib>

#include "support/arena.h"
#include "support/cpu.h"

namespace onecopy::bench {
namespace {

constexpr int kWarm = 20;
constexpr const char* kPrefix = "follow ";

}  // namespace

double lead_round(Exchange& exchange, const std::string& name, Peer& peer, int count) {
  Arena& arena = Arena::in(peer.raw());
  const std::uint32_t round = arena.round.load() + 1;
  arena.round.store(round);
  peer.say(fmt::format("{}{} {}", kPrefix, count, name));
  exchange.lead(kWarm);
  spin_until([&] { return arena.ready.load() == round; });
  return time_ns([&] {
           exchange.lead(count);
           spin_until([&] { return arena.done.load() == round; });
         }) /
         count;
}

bool follow_round(const Exchanges& exchanges, Parent& parent, const std::string& message) {
  const std::string_view prefix(kPrefix);
  if (message.compare(0, prefix.size(), prefix) != 0) return false;
  char* end = nullptr;
  const int count = static_cast<int>(std::strtol(message.c_str() + prefix.size(), &end, 10));
  Exchange& exchange = *exchanges.at(end + 1);
  Arena& arena = Arena::in(parent.raw);
  const std::uint32_t round = arena.round.load();
  exchange.follow(kWarm);
  arena.ready.store(round);
  exchange.follow(count);
  arena.done.store(round);
  return true;
}

}  // namespace onecopy::bench
