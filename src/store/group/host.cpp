// SPDX-License-Identifier: Apache-2.0
#include "store/group/host.h"

#include <fmt/format.h>

#include <utility>

#include "core/throw_error.h"
#include "onecopy/core/error.h"
#include "os/log.h"

namespace onecopy::store::group {
namespace {

using namespace std::chrono_literals;

constexpr std::chrono::milliseconds kIdle{2'000}, kReleasing{250}, kSoon{50}, kAway{500};

}  // namespace

Host::Host(Config config, ConnectOptions keeper, bool joins)
    : config_(std::move(config)),
      keeper_(std::move(keeper)),
      records_(config_.records()),
      etcd_(config_.etcd),
      remembered_(config_.memory),
      lease_(etcd_),
      client_(std::make_shared<Client>(StoreDirectories::of_this_user(), keeper_)),
      joins_(joins) {}

Host::~Host() { lease_.end(); }

void Host::run(const std::function<bool()>& is_over) {
  doorbell_.emplace(config_.etcd, records_.watched());
  while (!is_over()) {
    is_soon_ = false;
    std::chrono::milliseconds pause = kIdle;
    try {
      poll();
      failed_.clear();
      if (!earlier_.empty()) pause = kReleasing;
    } catch (const Error& error) {
      if (failed_ == error.what()) say(failed_);  // and not of a keeper that is about to start
      failed_ = error.what();
      pause = kAway;
    }
    doorbell_->wait(is_soon_ ? kSoon : pause);
  }
}

/// Reads the group's keys, and does what they ask for.
void Host::poll() {
  home_ = client_->home(Deadline::after(kKeeperPatience));
  joins_ = joins_ || !Config::is_in(home_);
  lease_.tend();
  view_ = records_.view(etcd_);
  note_answer();
  for (const std::string& problem : view_.problems)
    if (problems_.emplace(problem, problem).second) log_warning(problem);
  check_group();
  if (const std::string lost = what_is_lost(view_, remembered_.group_id(), remembered_.all());
      !lost.empty())
    return stop(lost);
  told_.clear();
  be_member();
  be_present();
  if (!has_signed_) sign();
  release_earlier();
  end_fetches();
  for (const auto& [name, current] : view_.current)  // before stages: what is current is shown first
    if (!fetches_.is_under_way(name)) try_to_follow(name, current.value);
  for (const auto& [name, stage] : view_.stages)
    if (!fetches_.is_under_way(name)) this->stage(name, stage.value);
  drop_stages();
  if (!is_soon_) say({});
}

/// Lets other processes know how old the versions here are. A host that cannot do so goes on.
void Host::note_answer() {
  std::string problem;
  try {
    Config::note_answer(home_);
  } catch (const Error& error) {
    problem = error.what();
  }
  if (std::exchange(unnoted_, problem) != problem && !problem.empty()) log_warning(problem);
}

/// Signs what is current with the first key, so that hosts may forget the other key. Once after the
/// start, since hosts may have the keys in another order meanwhile.
void Host::sign() {
  has_signed_ = true;
  for (const std::string& name : view_.outdated) {
    const Keyed<Current>& now = view_.current.at(name);
    const std::string key = records_.current(name), text = records_.text_of(view_.id, name, now.value);
    has_signed_ = etcd_.change({.when = {{key, now.changed}, {records_.stage(name), 0}},
                                .put = {{key, text, 0}},
                                .remove = {}}) &&
                  has_signed_;
  }
}

void Host::put(const std::string& key, const std::string& value, std::int64_t lease) {
  etcd_.change({.when = {}, .put = {{key, value, lease}}, .remove = {}});
}

/// Makes the group if this is its first host, and enters it.
void Host::check_group() {
  if (!remembered_.group_id().empty()) return;
  if (view_.id.empty()) {
    etcd_.change({.when = {{records_.group(), 0}},
                  .put = {{records_.group(), Records::text_of_group(random_id()), 0}},
                  .remove = {}});
    view_ = records_.view(etcd_);
  }
  if (!view_.id.empty()) remembered_.join(view_.id);
}

/// Says what this host remembers, so that the group can be restored.
void Host::stop(const std::string& problem) {
  const std::string text = remembered_.text();
  if (told_ != text) put(records_.told(config_.host), text);
  told_ = text;
  joins_ = true;  // once the group is restored
  say(problem);
}

void Host::be_member() {
  const auto there = view_.hosts.find(config_.host);
  if (there != view_.hosts.end() && there->second.value.id != remembered_.host_id())
    throw_error(ErrorCode::invalid_argument,
                "the group has another host {} already, at {}: choose another name by --name", config_.host,
                there->second.value.address);
  const auto member = view_.members.find(config_.host);
  const bool is_member = member != view_.members.end() && member->second == remembered_.host_id();
  if (!is_member && !joins_)
    throw_error(ErrorCode::closed,
                "host {} has left the group {}; start `onecopy store serve` again to join it", config_.host,
                config_.group);
  if (!is_member) put(records_.member(config_.host), remembered_.host_id());
  if (joins_) config_.save(home_);
  joins_ = false;
}

/// Begins a lease if there is none, and with it all that the host says.
void Host::be_present() {
  const bool is_present = view_.hosts.contains(config_.host);
  if (is_present && !lease_.has_ended()) return;
  lease_.begin();
  reported_.clear();
  put(records_.host(config_.host),
      Records::text_of(Present{remembered_.host_id(), config_.address, config_.rack}), lease_.id());
  is_soon_ = true;
}

/// Tells the user and other processes what keeps this host from changing anything; nothing if that is over.
void Host::say(const std::string& problem) {
  if (problem == said_) return;
  said_ = problem;
  if (problem.empty()) log_info("the group goes on");
  else fmt::print(stderr, "onecopy: {}\n", problem);
  try {
    config_.problem = problem;
    if (!home_.empty()) config_.save(home_);
  } catch (const Error& error) {
    log_warning(error.what());
  }
}

}  // namespace onecopy::store::group
