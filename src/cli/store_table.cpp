// SPDX-License-Identifier: Apache-2.0
#include "store_table.h"

#include <chrono>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "onecopy/core/error.h"
#include "text.h"

namespace onecopy::cli {
namespace {

nlohmann::json json_of(const store::ObjectInfo& object) {
  nlohmann::json versions = nlohmann::json::array();
  for (const auto& v : object.versions)
    versions.push_back({{"version", v.number},
                        {"bytes", v.bytes},
                        {"device", v.device},
                        {"readers", v.readers},
                        {"publisher", v.publisher},
                        {"awaited", v.is_awaited},
                        {"made_at", static_cast<double>(v.made_at) * 1e-9}});
  return {{"name", object.name},
          {"current", object.current},
          {"is_arena", object.is_arena},
          {"versions", versions}};
}

}  // namespace

std::vector<store::ObjectInfo> stored_objects() {
  try {
    return store::Store::connect({.autostart = false}).list();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::peer_died) throw;
    return {};
  }
}

std::string store_table(const std::vector<store::ObjectInfo>& objects, std::size_t width) {
  Table table({{"OBJECT", Align::left, true},
               {"VERSION", Align::right},
               {"SIZE", Align::right},
               {"DEVICE"},
               {"READERS", Align::right},
               {"AGE", Align::right}});
  for (const auto& object : objects)
    for (const auto& v : object.versions)
      table.add({escaped(object.name),
                 object.is_arena ? "arena"
                                 : fmt::format("{}{}", v.number, v.number == object.current ? "*" : " "),
                 format_bytes(v.bytes), v.device, v.is_awaited ? "awaited" : std::to_string(v.readers),
                 age_of(v)});
  return table.str(width);
}

std::string age_of(const store::VersionInfo& version) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return format_age(now - std::chrono::nanoseconds(version.made_at));
}

nlohmann::json json_of(const std::vector<store::ObjectInfo>& objects) {
  nlohmann::json all = nlohmann::json::array();
  for (const auto& object : objects) all.push_back(json_of(object));
  return all;
}

}  // namespace onecopy::cli
