// SPDX-License-Identifier: Apache-2.0
#include "store_table.h"

#include <chrono>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "onecopy/core/error.h"
#include "os/cgroup_owner.h"
#include "store/format/link.h"
#include "text.h"

namespace onecopy::cli {
namespace {

constexpr std::chrono::seconds kAnswerPatience{10};

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
          {"is_kv_pool", object.is_kv_pool},
          {"versions", versions}};
}

/// Returns how long ago a version was published: "12 min".
std::string age_of(const store::VersionInfo& version) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return format_age(now - std::chrono::nanoseconds(version.made_at));
}

}  // namespace

StoreState store_state() {
  const auto places = store::Places::of_this_user();
  StoreState state;
  try {
    state.home = store::Link::connect(places, Deadline::after(kAnswerPatience)).home();
    store::Store store = store::Store::connect({.autostart = false});
    state.keeper = store.keeper();
    state.ends_with = what_ends(state.keeper->worker);
    state.objects = store.list();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::peer_died) throw;
    places.check();
    state = {};
  }
  return state;
}

std::string keeper_line(const StoreState& state) {
  if (!state.keeper) return "The store has no keeper.\n";
  return fmt::format("The store's keeper listens in {} (worker {}, guard {}){}.\n", escaped(state.home),
                     state.keeper->worker, state.keeper->guard,
                     state.ends_with.empty() ? "" : fmt::format(", and ends with {}", state.ends_with));
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
                 object.is_kv_pool ? "kv_pool"
                                   : fmt::format("{}{}", v.number, v.number == object.current ? "*" : " "),
                 format_bytes(v.bytes), v.device, v.is_awaited ? "awaited" : std::to_string(v.readers),
                 age_of(v)});
  return table.str(width);
}

nlohmann::json json_of(const StoreState& state) {
  nlohmann::json keeper, objects = nlohmann::json::array();
  if (state.keeper)
    keeper = {{"worker", state.keeper->worker},
              {"guard", state.keeper->guard},
              {"directory", state.home},
              {"ends_with", state.ends_with}};
  for (const auto& object : state.objects) objects.push_back(json_of(object));
  return {{"keeper", keeper}, {"objects", objects}};
}

}  // namespace onecopy::cli
