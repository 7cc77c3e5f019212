// SPDX-License-Identifier: Apache-2.0
// What a host of a group does about its objects.
#include <fmt/format.h>

#include <utility>

#include "core/throw_error.h"
#include "onecopy/core/error.h"
#include "os/log.h"
#include "store/client/group_mark.h"
#include "store/ferry/host_key.h"
#include "store/group/host.h"

namespace onecopy::store::group {
namespace {

constexpr std::chrono::milliseconds kPatience{2'000};
constexpr std::chrono::minutes kRenew{1};

/// Returns whether an error says that a version cannot be here, so that its publisher need not wait.
bool is_final(ErrorCode code) noexcept {
  return code == ErrorCode::out_of_memory || code == ErrorCode::out_of_descriptors ||
         code == ErrorCode::invalid_argument || code == ErrorCode::unsupported ||
         code == ErrorCode::bad_secret || code == ErrorCode::version_mismatch;
}

}  // namespace

void Host::report(const std::string& name, const Report& report) {
  const std::string text = Records::text_of(report);
  std::string& before = reported_[name];
  if (before == text || lease_.has_ended()) return;
  put(records_.whole(name, config_.host), text, lease_.id());
  before = text;
}

/// Returns what pulls an object from the hosts that are present; nothing if another process of this host does.
std::optional<ferry::Pull> Host::pull(const std::string& name, const std::string& publisher,
                                      std::function<void()> look) {
  ferry::PullOptions options;
  for (const std::string& host : sources_of(view_.hosts, publisher, config_.host))
    options.sources.emplace_back(view_.hosts.at(host).value.address);
  options.name = name;
  options.key = ferry::key_in(config_.key_file);
  options.keeper = keeper_;
  options.patience = kPatience;
  options.look = std::move(look);
  try {
    return std::optional<ferry::Pull>(std::in_place, std::move(options));
  } catch (const Error& error) {
    if (error.code() != ErrorCode::invalid_argument) throw;
    log_debug(error.what());
    is_soon_ = true;
    return {};
  }
}

/// Goes on with other objects. Throws stale_handle if the version is no longer wanted.
void Host::while_pulling(const std::string& name, const Token& version) {
  constexpr std::chrono::milliseconds kLook{250};
  if (!look_at_.has_passed()) return;
  look_at_ = Deadline::after(kLook);
  try {
    look(name);
  } catch (const Error& error) {
    log_debug(error.what());
  }
  const auto stage = view_.stages.find(name);
  const auto current = view_.current.find(name);
  if (stage != view_.stages.end() && stage->second.value.token == version) return;
  if (current != view_.current.end() && current->second.value.token == version) return;
  throw_error(ErrorCode::stale_handle, "the version of \"{}\" will not be current", name);
}

void Host::stage(const std::string& name, const Stage& stage) {
  const auto current = view_.current.find(name);
  const std::uint64_t generation = current == view_.current.end() ? 0 : current->second.value.generation;
  if (stage.generation != generation) return;
  mark_as_of_group(home_, name);
  auto pull =
      this->pull(name, stage.host, [this, name, token = stage.token] { while_pulling(name, token); });
  if (!pull) return;
  const Chosen chosen{stage.token, stage.number};
  Report report{stage.token, 0, stage.number, 0, {}, 0};
  try {
    auto bytes = pull->has(chosen);
    if (!bytes && staged_.contains(name) &&
        staged_[name] == stage.token) {  // both halves of the keeper were killed
      etcd_.change({.when = {}, .put = {}, .remove = {records_.whole(name, config_.host)}});
      reported_.erase(name);
      staged_.erase(name);
    }
    if (!bytes && stage.host == config_.host) {
      is_soon_ = true;
      return;
    }
    if (!bytes) bytes = pull->stage(chosen);
    if (renew_at_.has_passed()) {
      pull->renew(stage.token);
      renew_at_ = Deadline::after(kRenew);
    }
    staged_[name] = stage.token;
    report.bytes = *bytes;
  } catch (const Error& error) {
    log_info("version {} of \"{}\" is not here: {}", stage.number, name, error.what());
    is_soon_ = true;
    if (!is_final(error.code())) return;
    report.problem = error.what();
    report.code = static_cast<std::uint8_t>(error.code());
  }
  this->report(name, report);
}

/// Follows an object, whose problems keep no other object from being followed.
void Host::try_to_follow(const std::string& name, const Current& current, bool is_busy) {
  try {
    follow(name, current, is_busy);
  } catch (const Error& error) {
    const std::string problem =
        fmt::format("version {} of \"{}\" is current in the group, and not here: {}", current.number, name,
                    error.what());
    if (std::exchange(problems_[name], problem) != problem) fmt::print(stderr, "onecopy: {}\n", problem);
  }
}

void Host::follow(const std::string& name, const Current& current, bool is_busy) {
  mark_as_of_group(home_, name);
  auto pull = this->pull(name, {}, [this, name, token = current.token] { while_pulling(name, token); });
  if (!pull) return;
  const Chosen chosen{current.token, current.number};
  const auto shown = pull->shown();
  Local local{remembered_.of(name), current.number == 0 ? !shown : shown == current.token, false};
  if (!local.is_shown && current.number != 0) local.is_whole = pull->has(chosen).has_value();
  switch (step_for(current, local)) {
    case Step::stop: return;
    case Step::none: break;
    case Step::fetch:
      if (!is_busy) fetch(name, current, *pull);
      return;
    case Step::show: return show(name, current, *pull);
    case Step::remove:
      if (local.noted != current) remembered_.note(name, current);
      if (shown) client_->ask<Done>(Remove{name, 0});
      return;
  }
  if (view_.stages.contains(name) && staged_.contains(name)) return;  // what it says is about the stage
  const Report report{
      current.token, current.generation, current.number, pull->has(chosen).value_or(0), {}, 0};
  this->report(name, report);
}

/// Notes what is shown before anybody sees it, so that nothing older is shown afterwards.
void Host::show(const std::string& name, const Current& current, ferry::Pull& pull) {
  if (remembered_.of(name) != current) remembered_.note(name, current);
  if (!pull.show({current.token, current.number})) {
    is_soon_ = true;
    return;
  }
  staged_.erase(name);
  problems_.erase(name);
  this->report(name, {current.token,
                      current.generation,
                      current.number,
                      pull.has({current.token, current.number}).value_or(0),
                      {},
                      0});
}

void Host::fetch(const std::string& name, const Current& current, ferry::Pull& pull) {
  pull.stage({current.token, current.number});
  const auto now = view_.current.find(name);
  if (now != view_.current.end() && now->second.value == current) show(name, current, pull);
  else is_soon_ = true;
}

/// Drops versions whose publisher has ended or was superseded.
void Host::drop_stages() {
  for (auto one = staged_.begin(); one != staged_.end();) {
    const auto& [name, token] = *one;
    const auto stage = view_.stages.find(name);
    const auto current = view_.current.find(name);
    const bool is_wanted = (stage != view_.stages.end() && stage->second.value.token == token) ||
                           (current != view_.current.end() && current->second.value.token == token);
    auto pull = is_wanted ? std::nullopt : this->pull(name, {}, [] {});
    if (pull) pull->drop(token);
    one = pull ? staged_.erase(one) : std::next(one);
  }
}

}  // namespace onecopy::store::group
