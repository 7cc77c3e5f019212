// SPDX-License-Identifier: Apache-2.0
#include "share/format/info_text.h"

#include <nlohmann/json.hpp>

#include "onecopy/core/error.h"

namespace onecopy {
namespace {

using nlohmann::json;

[[noreturn]] void refuse_text(const std::string& why) {
  throw Error(ErrorCode::protocol, "a process described itself in an unknown way: " + why);
}

/// Limits the nesting of a text, because values are copied and freed recursively, on the stack.
void check_nesting(const std::string& text) {
  constexpr int kMaxNested = 8;
  int depth = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '"') in_string = !in_string;
    else if (in_string) i += c == '\\';
    else if (c == '[' || c == '{') ++depth;
    else if (c == ']' || c == '}') --depth;
    if (depth > kMaxNested) refuse_text("it is nested too deeply");
  }
}

/// Returns zero if the number is missing. Throws unless it was written as an integer: converting 1e99 or -1.5 into one
/// is not defined.
template <class Integer>
Integer integer(const json& object, const char* name) {
  if (object.is_object() && !object.contains(name)) return 0;
  const auto value = object.at(name).get_ref<const json::number_unsigned_t&>();
  if (!std::in_range<Integer>(value)) refuse_text(std::string(name) + " is too large");
  return static_cast<Integer>(value);
}

double age(const json& object) {
  constexpr double kLongest = 1e9;
  const double seconds = object.value("age_seconds", 0.0);
  if (!(seconds >= 0 && seconds <= kLongest)) refuse_text("age_seconds is not a valid duration");
  return seconds;
}

std::uint64_t count(const json& object, const char* name) { return integer<std::uint64_t>(object, name); }

constexpr std::array<std::pair<const char*, std::uint64_t PeerInfo::*>, 5> kPeerFields{{
    {"lanes", &PeerInfo::lanes},
    {"calls_under_way", &PeerInfo::calls_under_way},
    {"calls", &PeerInfo::calls},
    {"answers", &PeerInfo::answers},
    {"served", &PeerInfo::served},
}};

json peer_to_json(const PeerInfo& peer) {
  json text{{"name", peer.name}, {"number", peer.number}, {"pid", peer.pid}, {"state", peer.state}};
  for (const auto& [name, field] : kPeerFields) text[name] = peer.*field;
  text["routes"] = json::object();
  for (const auto& [route, tensors] : peer.routes) text["routes"][route] = tensors;
  return text;
}

PeerInfo peer_from_json(const json& text) {
  PeerInfo peer;
  peer.name = text.value("name", "");
  peer.number = integer<std::uint32_t>(text, "number");
  peer.pid = integer<int>(text, "pid");
  peer.state = text.value("state", "");
  for (const auto& [name, field] : kPeerFields) peer.*field = count(text, name);
  const json routes = text.value("routes", json::object());
  for (const auto& [route, tensors] : routes.items())
    peer.routes.emplace_back(route, count(routes, route.c_str()));
  return peer;
}

json group_to_json(const GroupInfo& group) {
  json text{{"name", group.name},
            {"number", group.number},
            {"calls_under_way", group.calls_under_way},
            {"idle_workers", group.idle_workers},
            {"unlisted", group.unlisted},
            {"peers", json::array()}};
  for (const PeerInfo& peer : group.peers) text["peers"].push_back(peer_to_json(peer));
  return text;
}

GroupInfo group_from_json(const json& text) {
  GroupInfo group;
  group.name = text.value("name", "");
  group.number = integer<std::uint32_t>(text, "number");
  group.calls_under_way = count(text, "calls_under_way");
  group.idle_workers = count(text, "idle_workers");
  group.unlisted = count(text, "unlisted");
  for (const json& peer : text.value("peers", json::array())) group.peers.push_back(peer_from_json(peer));
  return group;
}

constexpr std::array<std::pair<const char*, std::uint64_t ArenaInfo::*>, 4> kArenaFields{{
    {"shared", &ArenaInfo::shared},
    {"own", &ArenaInfo::own},
    {"mapped", &ArenaInfo::mapped},
    {"windows", &ArenaInfo::windows},
}};

json arena_to_json(const ArenaInfo& arena) {
  json text{{"device", arena.device}, {"parked", arena.parked}};
  for (const auto& [name, field] : kArenaFields) text[name] = arena.*field;
  return text;
}

ArenaInfo arena_from_json(const json& text) {
  ArenaInfo arena;
  arena.device = text.value("device", "");
  arena.parked = text.value("parked", false);
  for (const auto& [name, field] : kArenaFields) arena.*field = count(text, name);
  return arena;
}

}  // namespace

std::string to_json(const OwnerInfo& info) {
  json text{{"pid", info.pid}, {"name", info.name}, {"socket", info.socket}};
  for (const StatsField& field : kStatsFields) text["stats"][field.name] = info.stats.*field.value;
  text["devices"] = json::array();
  for (const DeviceUse& d : info.devices)
    text["devices"].push_back(
        {{"device", d.device}, {"uuid", d.uuid}, {"segments", d.segments}, {"bytes", d.bytes}});
  text["borrowers"] = json::array();
  for (const BorrowerInfo& b : info.borrowers)
    text["borrowers"].push_back({{"pid", b.pid}, {"name", b.name}, {"claims", b.claims}});
  text["transit"] = json::array();
  for (const TransitInfo& t : info.in_transit)
    text["transit"].push_back({{"blocks", t.blocks}, {"age_seconds", t.age_seconds}, {"where", t.where}});
  text["groups"] = json::array();
  for (const GroupInfo& group : info.groups) text["groups"].push_back(group_to_json(group));
  text["arenas"] = json::array();
  for (const ArenaInfo& arena : info.arenas) text["arenas"].push_back(arena_to_json(arena));
  return text.dump(-1, ' ', false, json::error_handler_t::replace);
}

OwnerInfo owner_from_json(const std::string& text) {
  try {
    check_nesting(text);
    const json root = json::parse(text);
    OwnerInfo info;
    info.name = root.value("name", "");
    info.socket = root.value("socket", "");
    info.pid = integer<int>(root, "pid");
    const json stats = root.value("stats", json::object());
    for (const StatsField& field : kStatsFields) info.stats.*field.value = count(stats, field.name);
    for (const json& d : root.value("devices", json::array()))
      info.devices.push_back(
          {d.value("device", ""), d.value("uuid", ""), count(d, "segments"), count(d, "bytes")});
    for (const json& b : root.value("borrowers", json::array()))
      info.borrowers.push_back({integer<int>(b, "pid"), b.value("name", ""), count(b, "claims")});
    for (const json& t : root.value("transit", json::array()))
      info.in_transit.push_back({count(t, "blocks"), age(t), t.value("where", "")});
    for (const json& group : root.value("groups", json::array()))
      info.groups.push_back(group_from_json(group));
    for (const json& arena : root.value("arenas", json::array()))
      info.arenas.push_back(arena_from_json(arena));
    return info;
  } catch (const json::exception& e) {
    refuse_text(e.what());
  }
}

}  // namespace onecopy
