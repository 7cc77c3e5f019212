// SPDX-License-Identifier: Apache-2.0
#include "store/group/rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "core/throw_error.h"
#include "onecopy/core/error.h"
#include "os/log.h"

namespace onecopy::store::group {
namespace {

Keyed<Current> current_of(const Records::View& view, const std::string& name) {
  const auto at = view.current.find(name);
  return at == view.current.end() ? Keyed<Current>{} : at->second;
}

}  // namespace

bool is_without_answer(const Error& error) noexcept {
  return error.code() == ErrorCode::peer_died || error.code() == ErrorCode::timeout ||
         error.code() == ErrorCode::protocol;
}

Step step_for(const Current& current, const Local& local) noexcept {
  const Current& noted = local.noted;
  if (current.generation < noted.generation) return Step::stop;
  if (current.generation == noted.generation && current.generation != 0 && current != noted)
    return Step::stop;
  if (local.is_shown && current == noted) return Step::none;
  if (current.number == 0) return Step::remove;
  return local.is_whole ? Step::show : Step::fetch;
}

Attempt::Outcome Attempt::carry_out(Directory& directory, const Records& records, Deadline until) const {
  constexpr std::chrono::milliseconds kPause{100};
  bool was_unanswered = false, is_refused = false;
  for (;;) {
    try {
      if (was_unanswered) {
        const Current now = current_of(records.view(directory), name).value;
        if (now == wanted) return Outcome::committed;
        if (now.generation > wanted.generation) return Outcome::unknown;
        if (is_refused || now.generation == wanted.generation) return Outcome::refused;
      }
      if (directory.change(change)) return Outcome::committed;
      if (!was_unanswered) return Outcome::refused;
      is_refused = true;  // for ever, as the conditions do not hold; it may have been carried out before
      continue;
    } catch (const Error& error) {
      if (!is_without_answer(error)) throw;
      log_debug(fmt::format("no answer about \"{}\": {}", name, error.what()));
      was_unanswered = true;
    }
    if (until.has_passed()) return Outcome::unknown;
    std::this_thread::sleep_for(kPause);
  }
}

Attempt rollback_of(const Records& records, const Records::View& view, const std::string& name,
                    std::uint64_t number, const Token& token) {
  const Keyed<Current> now = current_of(view, name);
  Attempt attempt{name, {number, now.value.newest, now.value.generation + 1, token}, {}};
  attempt.change.when = {{records.current(name), now.changed}};
  attempt.change.put = {{records.current(name), records.text_of(view.id, name, attempt.wanted), 0}};
  return attempt;
}

void Lease::begin() {
  end();
  const TimePoint asked = std::chrono::steady_clock::now();
  id_ = directory_.grant(kTime);
  renewed_until_ = Deadline(asked + kTime / 2);
  renew_at_ = Deadline(asked + kTime / 4);
}

void Lease::tend() {
  if (id_ == 0 || !renew_at_.has_passed()) return;
  const TimePoint asked = std::chrono::steady_clock::now();
  if (has_ended() || !directory_.renew(id_)) return end();
  renewed_until_ = Deadline(asked + kTime / 2);
  renew_at_ = Deadline(asked + kTime / 4);
}

void Lease::end() noexcept {
  const std::int64_t before = std::exchange(id_, 0);
  try {
    if (before != 0) directory_.revoke(before);
  } catch (const std::exception& error) {
    log_debug(fmt::format("a lease ends by itself: {}", error.what()));
  }
}

Publication::Publication(Directory& directory, const Records& records, std::string name, Stage stage)
    : directory_(directory),
      records_(records),
      name_(std::move(name)),
      stage_(std::move(stage)),
      lease_(directory) {}

Publication::~Publication() { lease_.end(); }

bool Publication::try_begin(const Records::View& view) {
  const auto there = view.stages.find(name_);
  if (there != view.stages.end()) {
    if (there->second.value.token != stage_.token) return false;
    staged_ = there->second.changed;  // the answer was lost
    return true;
  }
  if (lease_.has_ended()) lease_.begin();
  const Keyed<Current> now = current_of(view, name_);
  id_ = view.id;
  seen_ = now.changed;
  stage_.number = now.value.newest + 1;
  stage_.generation = now.value.generation;
  stage_.protocol = protocol_of(view.hosts);
  const std::string key = records_.stage(name_);
  const bool has_begun =
      directory_.change({.when = {{key, 0}, {records_.current(name_), seen_}},
                         .put = {{key, records_.text_of(id_, name_, stage_), lease_.id()}},
                         .remove = {}});
  if (!has_begun) return false;
  const auto written = directory_.read({{key}});
  if (written.empty() || written.front().value != records_.text_of(id_, name_, stage_)) return false;
  staged_ = written.front().changed;
  return true;
}

void Publication::tend() {
  lease_.tend();
  if (lease_.has_ended())
    throw_error(ErrorCode::superseded,
                "version {} of \"{}\" has lost its turn: this process has not reached etcd for {} s",
                stage_.number, name_, Lease::kTime.count() / 2);
}

Publication::Progress Publication::progress() {
  Progress progress{{}, {}, records_.view(directory_, name_)};
  for (const auto& [host, report] : progress.view.reports) {
    if (report.value.token != stage_.token) continue;
    if (report.value.problem.empty()) progress.whole[host] = report.changed;
    else
      progress.problems[host] = {static_cast<ErrorCode>(std::min<std::uint8_t>(
                                     report.value.code, static_cast<std::uint8_t>(kLastErrorCode))),
                                 report.value.problem};
  }
  return progress;
}

bool Publication::is_shown(const std::map<std::string, std::int64_t>& hosts) {
  const auto reports = records_.reports(directory_, name_);
  return std::ranges::all_of(hosts, [&](const auto& host) {
    const auto report = reports.find(host.first);
    return report != reports.end() && report->second.value.shown > stage_.generation;
  });
}

Attempt Publication::attempt(const std::map<std::string, std::int64_t>& hosts) const {
  Attempt attempt{name_, {stage_.number, stage_.number, stage_.generation + 1, stage_.token}, {}};
  attempt.change.when = {{records_.stage(name_), staged_}, {records_.current(name_), seen_}};
  for (const auto& [host, changed] : hosts)
    attempt.change.when.push_back({records_.whole(name_, host), changed});
  attempt.change.put = {{records_.current(name_), records_.text_of(id_, name_, attempt.wanted), 0}};
  attempt.change.remove = {records_.stage(name_)};
  return attempt;
}

Attempt::Outcome Publication::try_commit(const std::map<std::string, std::int64_t>& hosts, Deadline until) {
  const Attempt attempt = this->attempt(hosts);
  const Attempt::Outcome outcome = attempt.carry_out(directory_, records_, until);
  if (outcome == Attempt::Outcome::refused)
    check_turn(ask_until(until, [this] { return records_.view(directory_); }));
  return outcome;
}

void Publication::check_turn(const Records::View& view) const {
  const Current now = current_of(view, name_).value;
  const auto stage = view.stages.find(name_);
  if (now.generation != stage_.generation)
    throw_error(ErrorCode::superseded,
                "version {} of \"{}\" is not current: it was made after generation {}, and the group is at "
                "generation {} by now, with version {}",
                stage_.number, name_, stage_.generation, now.generation, now.number);
  if (stage == view.stages.end() || stage->second.changed != staged_)
    throw_error(ErrorCode::superseded, "version {} of \"{}\" is not current: its turn has ended",
                stage_.number, name_);
}

std::string what_is_lost(const Records::View& view, const std::string& group_id,
                         const std::map<std::string, Current>& noted) {
  constexpr const char* kWhatToDo =
      "this host goes on with the versions that it has, and changes nothing until `onecopy store group "
      "restore` has run on one host";
  if (group_id.empty()) return {};
  if (view.id != group_id)
    return fmt::format(
        "etcd has {} of this name and not the one that this host belongs to: it has lost its data, "
        "or is another cluster; {}",
        view.id.empty() ? "no group" : "another group", kWhatToDo);
  for (const auto& [name, shown] : noted) {
    const Current now = current_of(view, name).value;
    if (step_for(now, {shown, false, false}) == Step::stop)
      return fmt::format(
          "etcd is at generation {} of \"{}\", and this host has shown generation {}, version {}: "
          "etcd has lost changes; {}",
          now.generation, name, shown.generation, shown.number, kWhatToDo);
  }
  return {};
}

unsigned protocol_of(const std::map<std::string, Keyed<Present>>& hosts) {
  const auto by = [](auto field) { return [field](const auto& host) { return host.second.value.*field; }; };
  const auto oldest = std::ranges::min_element(hosts, {}, by(&Present::highest));
  const auto newest = std::ranges::max_element(hosts, {}, by(&Present::lowest));
  if (oldest == hosts.end()) return kGroupProtocol;
  const Present &old = oldest->second.value, &fresh = newest->second.value;
  if (old.highest < fresh.lowest)
    throw_error(
        ErrorCode::version_mismatch,
        "host {} speaks protocol {} of groups at most, and {} speaks {} at least: install a version of "
        "onecopy that both can speak with",
        oldest->first, old.highest, newest->first, fresh.lowest);
  return old.highest;
}

std::vector<std::string> sources_of(const std::map<std::string, Keyed<Present>>& hosts,
                                    const std::string& publisher, const std::string& self) {
  std::vector<std::pair<std::string, std::string>> ring;  // a rack and a host
  ring.reserve(hosts.size());
  for (const auto& [host, present] : hosts) ring.emplace_back(present.value.rack, host);
  std::ranges::sort(ring);
  const auto host_of = &std::pair<std::string, std::string>::second;
  if (const auto first = std::ranges::find(ring, publisher, host_of); first != ring.end())
    std::rotate(ring.begin(), first, ring.end());
  const auto here = std::ranges::find(ring, self, host_of);
  std::vector<std::string> sources;
  sources.reserve(ring.size());
  for (auto at = here; at != ring.begin();) sources.push_back((--at)->second);
  for (auto at = here; at != ring.end(); ++at)
    if (at != here) sources.push_back(at->second);
  return sources;
}

}  // namespace onecopy::store::group
