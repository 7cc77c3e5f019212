// SPDX-License-Identifier: Apache-2.0
#include "share/info_text.h"

#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "onecopy/core/error.h"

namespace onecopy {
namespace {

using nlohmann::json;

constexpr std::array<std::pair<const char*, std::uint64_t Stats::*>, 15> kFields{{
    {"shared_total", &Stats::shared_total},
    {"opened_total", &Stats::opened_total},
    {"live_blocks", &Stats::live_blocks},
    {"live_bytes", &Stats::live_bytes},
    {"limbo", &Stats::limbo},
    {"in_transit", &Stats::in_transit},
    {"segments", &Stats::segments},
    {"foreign_segments", &Stats::foreign_segments},
    {"bytes_shared", &Stats::bytes_shared},
    {"borrowers", &Stats::borrowers},
    {"owners", &Stats::owners},
    {"leases", &Stats::leases},
    {"deposits", &Stats::deposits},
    {"descriptors", &Stats::descriptors},
    {"host_waits", &Stats::host_waits},
}};

}  // namespace

std::string to_json(const OwnerInfo& info) {
  json text{{"pid", info.pid}, {"name", info.name}, {"socket", info.socket}};
  for (const auto& [name, field] : kFields) text["stats"][name] = info.stats.*field;
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
  return text.dump(-1, ' ', false, json::error_handler_t::replace);
}

OwnerInfo owner_from_json(const std::string& text) {
  try {
    const json root = json::parse(text);
    OwnerInfo info;
    info.pid = root.value("pid", 0);
    info.name = root.value("name", "");
    info.socket = root.value("socket", "");
    const json stats = root.value("stats", json::object());
    for (const auto& [name, field] : kFields) info.stats.*field = stats.value(name, std::uint64_t{0});
    for (const json& d : root.value("devices", json::array()))
      info.devices.push_back({d.value("device", ""), d.value("uuid", ""),
                              d.value("segments", std::uint64_t{0}), d.value("bytes", std::uint64_t{0})});
    for (const json& b : root.value("borrowers", json::array()))
      info.borrowers.push_back(
          {b.value("pid", 0), b.value("name", ""), b.value("claims", std::uint64_t{0})});
    for (const json& t : root.value("transit", json::array()))
      info.in_transit.push_back(
          {t.value("blocks", std::uint64_t{0}), t.value("age_seconds", 0.0), t.value("where", "")});
    return info;
  } catch (const json::exception& e) {
    throw Error(ErrorCode::protocol,
                std::string("a process described itself in an unknown way: ") + e.what());
  }
}

}  // namespace onecopy
