// SPDX-License-Identifier: Apache-2.0
#include "onecopy/store/group.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "core/throw_error.h"
#include "onecopy/core/error.h"
#include "os/log.h"
#include "store/client/group_mark.h"
#include "store/client/state.h"
#include "store/ferry/host_key.h"
#include "store/ferry/pull.h"
#include "store/group/config.h"
#include "store/group/remembered.h"
#include "store/group/rules.h"
#include "store/group/waiting.h"

namespace onecopy::store {

using namespace std::chrono_literals;
using group::Attempt;
using group::Config;
using group::Publication;
using group::Records;

/// A way to the directory of this host's group.
struct Group::Link {
  std::string home;
  Config config;
  Records records = config.records();
  group::Etcd etcd{config.etcd};
};

namespace {

constexpr std::chrono::milliseconds kPause{20};
constexpr std::chrono::seconds kShown{10};

std::string home_of(Client& client) { return client.home(Deadline::after(kKeeperPatience)); }

/// Returns whether etcd was reached and gives no answer yet, as while its members elect a leader.
bool is_undecided(const Error& error) noexcept { return error.code() == ErrorCode::timeout; }

/// Waits until the publication has the right to publish, and returns the group at that moment.
Records::View begin_turn(Publication& publication, group::Etcd& etcd, const Records& records,
                         const std::string& name, Deadline until) {
  for (;;) {
    Records::View view;
    const auto try_begin = [&] { return publication.try_begin(view = records.view(etcd)); };
    if (group::ask_until(until, try_begin, &is_undecided)) return view;
    if (until.has_passed()) {
      const auto holder = view.stages.find(name);
      throw_error(ErrorCode::timeout, "another process publishes \"{}\"{}", name,
                  holder == view.stages.end() ? "" : " on " + holder->second.value.host);
    }
    std::this_thread::sleep_for(until.left(kPause));
  }
}

/// Waits a while until this host shows the version, which is current in the group, also if the keeper ends meanwhile.
void wait_until_shown(Client& client, const std::string& name, const Token& token,
                      Deadline until) noexcept {
  const Deadline end = std::min(until, Deadline::after(kShown));
  try {
    const ferry::Origins origins(home_of(client), name);
    const auto is_shown = [&] {
      const auto local = ferry::token_of(client, name, 0);
      return local ? origins.origin_of(*local) == token : token == Token{};
    };
    while (!is_shown() && !end.has_passed()) std::this_thread::sleep_for(5ms);
  } catch (const std::exception& error) {
    log_debug(error.what());
  }
}

/// Waits until no other process of this host pulls the object, and keeps the turn of the publication meanwhile.
ferry::Pull begin_pull(const Config& config, const Client& client, const std::string& name,
                       Publication& publication, Deadline until) {
  ferry::PullOptions options;
  options.name = name;
  options.keys = ferry::keys_in(config.key_file);
  options.keeper.autostart = false;
  options.directories = client.directories();
  options.lock_until = until;
  options.between_chunks = [&publication] { publication.tend(); };
  try {
    return ferry::Pull(std::move(options));
  } catch (const Error& error) {
    if (error.code() != ErrorCode::invalid_argument) throw;
    throw_error(ErrorCode::timeout,
                "version {} does not become current, because it is not on all hosts in time: {}",
                publication.stage().number, error.what());
  }
}

}  // namespace

Group::Link Group::link(bool changes) {
  const std::string home = home_of(store_.client());
  auto config = Config::find(home);
  if (!config)
    throw Error(
        ErrorCode::invalid_argument,
        "this host belongs to no group: run `onecopy store serve --group NAME --etcd URL` on each host");
  if (changes && !config->problem.empty() && !config->problem.starts_with(group::Etcd::kNoAnswer))
    throw Error(ErrorCode::closed, "this host changes nothing in its group: " + config->problem);
  return {home, *std::move(config)};
}

std::optional<std::string> Group::name() {
  const auto config = Config::find(home_of(store_.client()));
  return config ? std::optional(config->group) : std::nullopt;
}

bool Group::has(const std::string& object) { return is_of_group(store_.client(), object); }

std::uint64_t Group::publish(Draft draft, const Everywhere& everywhere) {
  const Deadline until = Deadline::after(everywhere.timeout);
  auto& s = draft.state();
  if (s.memory->device() != kCpu)
    throw Error(ErrorCode::unsupported,
                "only versions in memory of the host go to other hosts: use device=\"cpu\"");
  Link link = this->link(true);
  Client& client = store_.client();
  const std::string name = s.version.name;
  draft.seal();
  ExportedMemory exported = s.memory->export_chunks();
  describe(exported, s.table);
  Fd memory = exported.fds.empty() ? Fd() : std::move(exported.fds.front());
  Publication publication(link.etcd, link.records, name,
                          {0, 0, s.version.token, link.config.host, link.config.address, 0});
  const Records::View view = begin_turn(publication, link.etcd, link.records, name, until);
  group::Waiting waiting(publication, everywhere.hosts, view.members, until);
  std::optional<ferry::Pull> pull(begin_pull(link.config, client, name, publication, until));
  static_cast<void>(pull->shown());  // throws for an object that was published here alone
  ferry::Arrival arrival = pull->stage({s.version.token, publication.stage().number}, s.version.keep,
                                       s.table, std::move(memory));
  pull.reset();  // the host's own process goes on
  try {
    waiting.run();
  } catch (const Error&) {
    if (!waiting.may_be_committed()) arrival.abort();
    throw;
  }
  wait_until_shown(client, name, s.version.token, until);
  return publication.stage().number;
}

std::uint64_t Group::publish(const std::string& object, std::span<const NamedTensor> tensors,
                             const PublishOptions& options, const Everywhere& everywhere) {
  if (options.place == Placement::as_is)
    throw Error(ErrorCode::unsupported, "a version that goes to other hosts is copied; leave out as_is");
  return publish(store_.filled_draft(object, tensors, options), everywhere);
}

/// Makes a version current, or none for the number 0.
void Group::change(const std::string& object, std::uint64_t number, std::chrono::nanoseconds timeout) {
  const Deadline until = Deadline::after(timeout);
  Link link = this->link(true);
  Client& client = store_.client();
  Token token{};
  if (number != 0) {
    const auto local = ferry::token_of(client, object, number);
    if (!local)
      throw_error(ErrorCode::stale_handle,
                  "this host has no version {} of \"{}\": roll back on a host that has", number, object);
    token = ferry::Origins(link.home, object).origin_of(*local);
  }
  const Records::View view = group::ask_until(
      until, [&] { return link.records.view(link.etcd); }, &is_undecided);
  const auto now = view.current.find(object);
  if (now == view.current.end())
    throw_error(ErrorCode::stale_handle, "the group has no object \"{}\"", object);
  const Attempt attempt = group::rollback_of(link.records, view, object, number, token);
  if (now->second.value.number != number) {
    const auto outcome = attempt.carry_out(link.etcd, link.records, until);
    if (outcome == Attempt::Outcome::refused)
      throw_error(ErrorCode::superseded, "\"{}\" has changed meanwhile; it was at generation {}", object,
                  now->second.value.generation);
    if (outcome == Attempt::Outcome::unknown)
      throw Error(ErrorCode::timeout, "etcd has not answered: the change may be carried out yet");
  }
  wait_until_shown(client, object, token, until);
}

void Group::rollback(const std::string& object, std::uint64_t number, std::chrono::nanoseconds timeout) {
  if (number == 0) throw Error(ErrorCode::invalid_argument, "versions are numbered from 1");
  change(object, number, timeout);
}

void Group::remove(const std::string& object, std::chrono::nanoseconds timeout) {
  change(object, 0, timeout);
}

std::vector<GroupHost> Group::hosts(const std::string& object) {
  Link link = this->link(false);
  const Records::View view = link.records.view(link.etcd, object);
  std::map<std::string, GroupHost> hosts;
  for (const auto& [host, id] : view.members) hosts[host].is_member = true;
  for (const auto& [host, present] : view.hosts) {
    hosts[host].is_present = true;
    hosts[host].address = present.value.address;
  }
  for (const auto& [host, report] : view.reports) {
    GroupHost& one = hosts[host];
    one.problem = report.value.problem;
    one.version = one.problem.empty() ? report.value.number : 0;
    one.bytes = report.value.bytes;
    one.is_current = report.value.generation != 0;
  }
  std::vector<GroupHost> all;
  for (auto& [host, one] : hosts) {
    one.name = host;
    all.push_back(std::move(one));
  }
  return all;
}

std::optional<std::chrono::nanoseconds> Group::age() { return Config::since_answer(link(false).home); }

std::string Group::problem() {
  const auto config = Config::find(home_of(store_.client()));
  return config ? config->problem : std::string();
}

void Group::leave(const std::string& host) {
  Link link = this->link(false);
  const std::string& leaving = host.empty() ? link.config.host : host;
  const Records::View view = link.records.view(link.etcd);
  if (!view.members.contains(leaving)) {
    std::vector<std::string> members;
    for (const auto& [name, id] : view.members) members.push_back(name);
    throw_error(ErrorCode::invalid_argument, "{} is no member of the group {}, which has {}", leaving,
                link.config.group, fmt::join(members, ", "));
  }
  link.etcd.change({.when = {}, .put = {}, .remove = {link.records.member(leaving)}});
}

void Group::stop() {
  const bool is_of_group = name().has_value();
  try {
    if (is_of_group) leave();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::invalid_argument)  // of a host that has left already
      log_warning("publishers wait for this host until `onecopy store leave` takes it out: {}",
                  error.what());
  }
  store_.stop();
}

std::vector<std::string> Group::restore() {
  Link link = this->link(false);
  group::Remembered merged(link.config.memory);
  std::map<std::string, group::Current> newest = merged.all();
  std::vector<std::string> heard{link.config.host};
  const std::string from = link.records.told("");
  std::string to = from;
  ++to.back();
  for (const group::KeyValue& one : link.etcd.read({{from, to}})) {
    const auto told = group::Remembered::from_text(one.value);
    const std::string host = one.key.substr(from.size());
    if (told.group_id() != merged.group_id())
      throw_error(ErrorCode::invalid_argument,
                  "{} belongs to another group of this name: start it anew, without {}", host,
                  link.config.memory);
    if (host != link.config.host) heard.push_back(host);
    for (const auto& [name, current] : told.all()) {
      group::Current& best = newest[name];
      if (best.generation == current.generation && best != current)
        throw_error(ErrorCode::invalid_argument, "hosts have shown two versions of generation {} of \"{}\"",
                    current.generation, name);
      if (best.generation < current.generation) best = current;
    }
  }
  const std::string& id = merged.group_id();
  for (const auto& [name, current] : newest)
    link.etcd.change({.when = {},
                      .put = {{link.records.current(name), link.records.text_of(id, name, current), 0}},
                      .remove = {}});
  group::Change last{
      .when = {}, .put = {{link.records.group(), Records::text_of_group(id), 0}}, .remove = {}};
  for (const std::string& host : heard) last.remove.push_back(link.records.told(host));
  link.etcd.change(last);
  return heard;
}

}  // namespace onecopy::store
