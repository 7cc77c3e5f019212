// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/throw_error.h"
#include "onecopy/core/error.h"
#include "os/deadline.h"
#include "os/log.h"
#include "store/group/rules.h"

namespace onecopy::store::group {

/// The wait of a publisher for the hosts of its group. Thread safety: none.
class Waiting {
 public:
  static constexpr std::size_t kMaxHosts = 100;  ///< of which one change of etcd can ask

  /// `hosts`: how many of the members must have the version, or 0 for all. Throws invalid_argument if there are not so many.
  Waiting(Publication& publication, std::size_t hosts, std::map<std::string, std::string> members,
          Deadline until)
      : publication_(publication), hosts_(hosts), members_(std::move(members)), until_(until) {
    if (hosts_ > members_.size() || members_.empty())
      throw_error(ErrorCode::invalid_argument, "the version is to be on {} hosts, and the group has {}",
                  hosts_, members_.size());
    if ((hosts_ == 0 ? members_.size() : hosts_) > kMaxHosts)
      throw_error(ErrorCode::unsupported,
                  "a publish waits for {} hosts at most: give their number by everywhere=", kMaxHosts);
  }

  /// Returns whether the version may become current although run() has thrown.
  bool may_be_committed() const noexcept { return may_be_committed_; }
  /// Returns once the version is current, and shown on the hosts that were waited for if they show it soon.
  void run() {
    constexpr std::chrono::milliseconds kMaxPause{200};
    std::chrono::milliseconds pause{20};
    for (;;) {
      const auto progress = ask_until(until_, [this] {
        publication_.tend();
        return publication_.progress();
      });
      check_problems(progress);
      if (const auto chosen = enough(progress); !chosen.empty() && is_committed(chosen))
        return wait_for_readers(chosen);
      publication_.check_turn(progress.view);
      if (until_.has_passed()) give_up(progress);
      std::this_thread::sleep_for(until_.left(pause));
      pause = std::min(pause + std::chrono::milliseconds(1), kMaxPause);
    }
  }

 private:
  /// Returns the hosts that are asked for in the change; none while there are too few.
  std::map<std::string, std::int64_t> enough(const Publication::Progress& progress) const {
    std::map<std::string, std::int64_t> chosen;
    const std::size_t wanted = hosts_ == 0 ? members_.size() : hosts_;
    for (const auto& one : progress.whole)
      if (members_.contains(one.first) && chosen.size() < wanted) chosen.insert(one);
    return chosen.size() == wanted ? chosen : std::map<std::string, std::int64_t>{};
  }

  bool is_committed(const std::map<std::string, std::int64_t>& chosen) {
    may_be_committed_ = true;
    const auto outcome = publication_.try_commit(chosen, until_);
    may_be_committed_ = outcome == Attempt::Outcome::unknown;
    if (outcome != Attempt::Outcome::unknown) return outcome == Attempt::Outcome::committed;
    throw_error(ErrorCode::timeout, "etcd has not answered: version {} may become current",
                publication_.stage().number);
  }

  void wait_for_readers(const std::map<std::string, std::int64_t>& chosen) const noexcept {
    constexpr std::chrono::milliseconds kMaxWait{10'000}, kPause{5};
    const Deadline end = std::min(until_, Deadline::after(kMaxWait));
    try {
      const auto is_shown = [&] { return publication_.is_shown(chosen); };
      while (!ask_until(end, is_shown) && !end.has_passed()) std::this_thread::sleep_for(kPause);
    } catch (const std::exception& error) {
      log_debug(error.what());  // what is current stays current
    }
  }

  void check_problems(const Publication::Progress& progress) const {
    std::size_t able = members_.size();
    for (const auto& [host, problem] : progress.problems)
      if (members_.contains(host)) --able;
    if (able >= (hosts_ == 0 ? members_.size() : hosts_)) return;
    std::vector<std::string> lines;
    ErrorCode code = ErrorCode::system;
    for (const auto& [host, problem] : progress.problems) {
      lines.push_back(fmt::format("{}: {}", host, problem.second));
      code = problem.first;
    }
    throw_error(code, "hosts of the group cannot have the version: {}", fmt::join(lines, "; "));
  }

  /// Returns the members that have not got the version, and what is known of them.
  std::vector<std::string> missing(const Publication::Progress& progress) const {
    std::vector<std::string> hosts;
    for (const auto& [host, id] : members_) {
      if (progress.whole.contains(host)) continue;
      hosts.push_back(host + (progress.view.hosts.contains(host)
                                  ? " has not got all of it yet"
                                  : " does not reach etcd (`onecopy store leave` takes it out)"));
    }
    return hosts;
  }

  [[noreturn]] void give_up(const Publication::Progress& progress) const {
    throw_error(ErrorCode::timeout,
                "version {} does not become current, because it is not on all hosts in time: {}",
                publication_.stage().number, fmt::join(missing(progress), "; "));
  }

  Publication& publication_;
  const std::size_t hosts_;
  const std::map<std::string, std::string> members_;
  const Deadline until_;
  bool may_be_committed_ = false;
};

}  // namespace onecopy::store::group
