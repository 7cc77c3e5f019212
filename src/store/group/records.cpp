// SPDX-License-Identifier: Apache-2.0
#include "store/group/records.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cctype>
#include <span>
#include <utility>

#include "core/fields.h"
#include "core/throw_error.h"
#include "onecopy/core/error.h"
#include "os/hmac.h"
#include "store/client/membership.h"

namespace onecopy::store::group {

using nlohmann::json;

namespace {

ByteSpan bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

Token token_in(const json& record, const char* field) {
  const auto text = record.at(field).get<std::string>();
  std::string_view rest = text;
  return take_token(rest);
}

template <class Read>
auto read_record(const std::string& text, Read read) -> std::optional<decltype(read(json()))> {
  try {
    return read(json::parse(text));
  } catch (const json::exception&) {
    return {};
  } catch (const Error&) {
    return {};
  }
}

Current current_in(const json& r) {
  return {r.at("number"), r.at("newest"), r.at("generation"), token_in(r, "token")};
}
Stage stage_in(const json& r) {
  return {r.at("number"), r.at("generation"), token_in(r, "token"),
          r.at("host"),   r.at("address"),    r.at("protocol")};
}
Report report_in(const json& r) {
  return {token_in(r, "token"), r.at("generation"), r.at("shown"), r.at("number"),
          r.at("bytes"),        r.at("problem"),    r.at("code")};
}

/// Returns what the code of a stage is made of beside its address.
Current numbers_of(const Stage& stage) { return {stage.number, 0, stage.generation, stage.token}; }
std::string place_of(const Stage& stage) {
  return fmt::format("{} {} {}", stage.host, stage.address, stage.protocol);
}

std::string code(const Bytes& key, const std::string& id, const char* kind, const std::string& name,
                 const Current& current, const std::string& place) {
  FieldWriter writer;
  writer(std::string("onecopy group 1"), id, std::string(kind), name, current.number, current.newest,
         current.generation, current.token, place);
  return fmt::format("{:02x}", fmt::join(hmac_sha256(key, writer.take()), ""));
}

}  // namespace

void check_label(const std::string& label, const char* what) {
  const auto is_good = [](unsigned char c) { return std::isalnum(c) || c == '-' || c == '_' || c == '.'; };
  if (!label.empty() && label.size() <= 128 && std::ranges::all_of(label, is_good)) return;
  throw_error(ErrorCode::invalid_argument, "{} is a name of up to 128 letters, digits and -_. , not \"{}\"",
              what, label);
}

Records::Records(const std::string& group, std::vector<Bytes> keys)
    : prefix_("/onecopy/" + group + "/"), keys_(std::move(keys)) {
  check_label(group, "a group of hosts");
}

std::string Records::text_of(const std::string& id, const std::string& name, const Current& current) const {
  return json{{"number", current.number},
              {"newest", current.newest},
              {"generation", current.generation},
              {"token", store::text_of(current.token)},
              {"code", code(keys_.front(), id, "current", name, current, "")}}
      .dump();
}

std::string Records::text_of(const std::string& id, const std::string& name, const Stage& stage) const {
  return json{{"number", stage.number},
              {"generation", stage.generation},
              {"token", store::text_of(stage.token)},
              {"host", stage.host},
              {"address", stage.address},
              {"protocol", stage.protocol},
              {"code", code(keys_.front(), id, "stage", name, numbers_of(stage), place_of(stage))}}
      .dump();
}

std::string Records::text_of(const Report& report) {
  return json{{"token", store::text_of(report.token)},
              {"generation", report.generation},
              {"shown", report.shown},
              {"number", report.number},
              {"bytes", report.bytes},
              {"problem", report.problem},
              {"code", report.code}}
      .dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string Records::text_of(const Present& present) {
  return json{{"id", present.id},
              {"address", present.address},
              {"rack", present.rack},
              {"protocols", {present.lowest, present.highest}}}
      .dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string Records::text_of_group(const std::string& id) {
  return json{{"id", id}, {"protocol", kGroupProtocol}}.dump();
}

void Records::add_to(View& view, const KeyValue& one) const {
  const std::string key = one.key.substr(prefix_.size());
  const std::size_t slash = key.find('/');
  const std::string kind = key.substr(0, slash),
                    name = slash == std::string::npos ? "" : key.substr(slash + 1);
  const auto has_code = [&](const Current& numbers, const std::string& place) {
    const auto found =
        read_record(one.value, [](const json& r) { return r.at("code").get<std::string>(); });
    for (const Bytes& secret : keys_) {
      const std::string wanted = code(secret, view.id, kind.c_str(), name, numbers, place);
      if (!found || !equal_in_constant_time(bytes_of(*found), bytes_of(wanted))) continue;
      if (kind == "current" && &secret != keys_.data()) view.outdated.push_back(name);
      return true;
    }
    view.problems.push_back(fmt::format("{} was not written with this group's key", one.key));
    return false;
  };
  if (kind == "current") {
    const auto current = read_record(one.value, current_in).value_or(Current{});
    if (has_code(current, "")) view.current[name] = {current, one.changed};
  } else if (kind == "stage") {
    const auto stage = read_record(one.value, stage_in).value_or(Stage{});
    if (has_code(numbers_of(stage), place_of(stage))) view.stages[name] = {stage, one.changed};
  } else if (kind == "hosts") {
    const auto read = [](const json& r) {
      const json& protocols = r.at("protocols");
      return Present{r.at("id"), r.at("address"), r.at("rack"), protocols.at(0), protocols.at(1)};
    };
    if (auto host = read_record(one.value, read)) view.hosts[name] = {*std::move(host), one.changed};
  } else if (kind == "members") {
    view.members[name] = one.value;
  }
}

Records::View Records::view(Directory& directory, const std::string& object) const {
  std::vector<Keys> wanted{watched()};
  if (!object.empty()) wanted.push_back(keys_of_reports(object));
  const std::vector<KeyValue> all = directory.read(wanted);
  View view;
  if (!object.empty()) view.reports = reports_in(all, object);
  for (const KeyValue& one : all)
    if (one.key == group()) {
      const auto read = [](const json& r) {
        return std::pair(r.at("id").get<std::string>(), r.at("protocol").get<unsigned>());
      };
      const auto found = read_record(one.value, read);
      if (!found || found->second != kGroupProtocol)
        throw_error(ErrorCode::version_mismatch,
                    "{} in etcd is of another version of onecopy than this one, which has "
                    "protocol {}: {}",
                    one.key, kGroupProtocol, one.value);
      view.id = found->first;
    }
  for (const KeyValue& one : all) add_to(view, one);
  return view;
}

std::map<std::string, Keyed<Report>> Records::reports_in(const std::vector<KeyValue>& all,
                                                         const std::string& name) const {
  const std::string from = whole(name, "");
  std::map<std::string, Keyed<Report>> found;
  for (const KeyValue& one : all) {
    if (!one.key.starts_with(from)) continue;
    const std::string host = one.key.substr(from.size());
    if (host.find('/') != std::string::npos) continue;  // of another object, "NAME//..."
    if (auto report = read_record(one.value, report_in)) found[host] = {*std::move(report), one.changed};
  }
  return found;
}

}  // namespace onecopy::store::group
