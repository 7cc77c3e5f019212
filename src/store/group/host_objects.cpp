// SPDX-License-Identifier: Apache-2.0
// What a host of a group does about its objects.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/throw_error.h"
#include "onecopy/core/error.h"
#include "os/log.h"
#include "store/client/group_mark.h"
#include "store/ferry/host_key.h"
#include "store/group/host.h"

namespace onecopy::store::group {
namespace {

constexpr std::chrono::milliseconds kPatience{2'000}, kRetryStage{50}, kRetry{1'000};
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
                                      std::function<void()> between_chunks) {
  ferry::PullOptions options;
  for (const std::string& host : sources_of(view_.hosts, publisher, config_.host))
    options.sources.emplace_back(view_.hosts.at(host).value.address);
  options.name = name;
  options.keys = ferry::keys_in(config_.key_file);
  options.keeper = keeper_;
  options.patience = kPatience;
  options.between_chunks = std::move(between_chunks);
  try {
    return std::optional<ferry::Pull>(std::in_place, std::move(options));
  } catch (const Error& error) {
    if (error.code() != ErrorCode::invalid_argument) throw;
    log_debug(error.what());
    is_soon_ = true;
    return {};
  }
}

bool Host::is_staged(const std::string& name, const Token& version) const {
  const auto stage = view_.stages.find(name);
  return stage != view_.stages.end() && stage->second.value.token == version;
}

bool Host::is_wanted(const Records::View& view, const std::string& name, const Token& version) {
  const auto stage = view.stages.find(name);
  const auto current = view.current.find(name);
  return (stage != view.stages.end() && stage->second.value.token == version) ||
         (current != view.current.end() && current->second.value.token == version);
}

/// Lets a thread bring a version, unless enough are under way, or an attempt has just failed.
void Host::fetch(const std::string& name, const Chosen& chosen, const std::string& publisher) {
  if (const auto at = retry_at_.find(name); at != retry_at_.end() && !at->second.has_passed()) {
    is_soon_ = is_soon_ || is_staged(name, chosen.version);
    return;
  }
  auto fetch = std::make_shared<Fetch>(chosen.version);  // shared with its thread
  auto pull = this->pull(name, publisher, [fetch] { fetch->check_wanted(); });
  if (pull) {
    // A publisher of this host, which has its turn in etcd first, may have begun with a version since this host looked.
    pull->drop_arriving_unless([&](const Token& version) {
      return is_wanted(view_, name, version) || is_wanted(records_.view(etcd_), name, version);
    });
    fetches_.try_begin(name, fetch, *std::move(pull), chosen);
  }
}

/// Ends the fetches of versions that are no longer wanted, and says why others have failed. What has come is found in the keeper.
void Host::end_fetches() {
  fetches_.keep(
      [this](const std::string& name, const Token& version) { return is_wanted(view_, name, version); });
  for (const auto& [name, fetch] : fetches_.take_ended()) {
    Config::add_pulled(home_, fetch->bytes);
    if (!is_wanted(view_, name, fetch->version))
      staged_[name] = fetch->version;  // which drop_stages() drops
    if (!fetch->error || !is_wanted(view_, name, fetch->version)) continue;
    const bool is_staged = this->is_staged(name, fetch->version);
    retry_at_.insert_or_assign(name, Deadline::after(is_staged ? kRetryStage : kRetry));
    if (is_staged) refuse(name, view_.stages.at(name).value, *fetch->error);
    else complain(name, *fetch->error);
  }
}

/// Tells the publisher of a version why it is not here, if it need not wait for it.
void Host::refuse(const std::string& name, const Stage& stage, const Error& error) {
  log_info("version {} of \"{}\" is not here: {}", stage.number, name, error.what());
  is_soon_ = true;
  if (!is_final(error.code())) return;
  report(name, {stage.token, 0, shown_[name], stage.number, 0, error.what(),
                static_cast<std::uint8_t>(error.code())});
}

/// Tells the user once why the group's version of an object is not shown here.
void Host::complain(const std::string& name, const Error& error) {
  const std::string problem = fmt::format("version {} of \"{}\" is current in the group, and not here: {}",
                                          view_.current.at(name).value.number, name, error.what());
  if (std::exchange(problems_[name], problem) != problem) fmt::print(stderr, "onecopy: {}\n", problem);
}

void Host::stage(const std::string& name, const Stage& stage) {
  const auto current = view_.current.find(name);
  const std::uint64_t generation = current == view_.current.end() ? 0 : current->second.value.generation;
  if (stage.generation != generation) return;
  if (stage.protocol < kLowestGroupProtocol || stage.protocol > kGroupProtocol)
    return refuse(name, stage,
                  Error(ErrorCode::version_mismatch,
                        fmt::format("this host does not speak protocol {} of groups", stage.protocol)));
  const Chosen chosen{stage.token, stage.number};
  try {
    mark_as_of_group(home_, name);
    auto pull = this->pull(name, stage.host);
    if (!pull) return;
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
    if (!bytes) {
      pull.reset();
      return fetch(name, chosen, stage.host);
    }
    if (renew_at_.has_passed()) {
      pull->renew(stage.token);
      renew_at_ = Deadline::after(kRenew);
    }
    staged_[name] = stage.token;
    report(name, {stage.token, 0, shown_[name], stage.number, *bytes, {}, 0});
  } catch (const Error& error) {
    refuse(name, stage, error);
  }
}

/// Follows an object, whose problems keep no other object from being followed.
void Host::try_to_follow(const std::string& name, const Current& current) {
  try {
    follow(name, current);
  } catch (const Error& error) {
    complain(name, error);
  }
}

void Host::follow(const std::string& name, const Current& current) {
  mark_as_of_group(home_, name);
  auto pull = this->pull(name, {});
  if (!pull) return;
  const Chosen chosen{current.token, current.number};
  const auto shown = pull->shown();
  Local local{remembered_.of(name), current.number == 0 ? !shown : shown == current.token, false};
  if (!local.is_shown && current.number != 0) local.is_whole = pull->has(chosen).has_value();
  switch (step_for(current, local)) {
    case Step::stop: return;
    case Step::none: break;
    case Step::fetch: pull.reset(); return fetch(name, chosen, {});
    case Step::show:
      if (!show(name, current, *pull)) return;
      break;
    case Step::remove:
      if (local.noted != current) remembered_.note(name, current);
      if (shown) client_->ask<Done>(Remove{name, 0});
      shown_[name] = current.generation;
      return;
  }
  shown_[name] = current.generation;
  if (view_.stages.contains(name) && staged_.contains(name)) return;  // what it says is about the stage
  report_shown(name, current, *pull);
}

/// Notes what is shown before anybody sees it, so that nothing older is shown afterwards. Returns whether it is shown.
bool Host::show(const std::string& name, const Current& current, ferry::Pull& pull) {
  if (remembered_.of(name) != current) {
    keep_shown(name);
    remembered_.note(name, current);
  }
  if (!pull.show({current.token, current.number})) {
    is_soon_ = true;
    return false;
  }
  if (const auto stage = staged_.find(name); stage != staged_.end() && stage->second == current.token)
    staged_.erase(stage);
  problems_.erase(name);
  return true;
}

void Host::report_shown(const std::string& name, const Current& current, ferry::Pull& pull) {
  report(name, {current.token,
                current.generation,
                current.generation,
                current.number,
                pull.has({current.token, current.number}).value_or(0),
                {},
                0});
}

/// Keeps the version that is shown here until all members that are present have gone on from it.
void Host::keep_shown(const std::string& name) {
  try {
    auto reading = client_->open(name, 0, nullptr, Deadline::after(kKeeperPatience));
    earlier_.emplace(name, EarlierVersion{remembered_.of(name).generation, *std::move(reading)});
  } catch (const Error& error) {
    if (error.code() != ErrorCode::stale_handle) throw;
  }
}

void Host::release_earlier() {
  std::map<std::string, Keyed<Report>> reports;
  std::string name_of_reports;
  std::erase_if(earlier_, [&](const auto& earlier) {
    if (std::exchange(name_of_reports, earlier.first) != earlier.first)
      reports = records_.reports(etcd_, earlier.first);
    return std::ranges::all_of(view_.members, [&](const auto& member) {
      const auto report = reports.find(member.first);
      return !view_.hosts.contains(member.first) ||
             (report != reports.end() && report->second.value.shown > earlier.second.generation);
    });
  });
}

/// Drops versions whose publisher has ended or was superseded.
void Host::drop_stages() {
  for (auto one = staged_.begin(); one != staged_.end();) {
    const auto& [name, token] = *one;
    auto pull =
        is_wanted(view_, name, token) || fetches_.is_under_way(name) ? std::nullopt : this->pull(name, {});
    if (pull) pull->drop(token);
    one = pull ? staged_.erase(one) : std::next(one);
  }
}

}  // namespace onecopy::store::group
