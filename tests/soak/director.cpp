// SPDX-License-Identifier: Apache-2.0
#include "soak/director.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <thread>

#include "device/janitor.h"
#include "onecopy/core/error.h"
#include "os/process.h"
#include "support/proc_entries.h"
#include "support/user_namespace.h"

namespace onecopy::soak {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr milliseconds kDeadline{120'000};  ///< of any batch; a longer one hangs
constexpr uid_t kUserOfAgents = 165534;     ///< in their user namespaces; any number that no user has
constexpr std::size_t kMaxAtOnce = 6;       ///< agents in a round
constexpr int kMaxForks = 8;                ///< from a program: inherited resources add up
constexpr std::size_t kStepsForADeath = 24;
constexpr std::uint64_t kStepsForACensus = 20'000;
constexpr std::uint32_t kSettlesIn = 30'000;
constexpr std::size_t kKeptBlocks = 60;
constexpr std::uint64_t kRoundsForAHalf = 12, kRoundsForBothHalves = 100;

std::string make_folder() {
  std::string folder = "/dev/shm/onecopy-soak-XXXXXX";
  if (!::mkdtemp(folder.data())) throw_errno("mkdtemp in /dev/shm", errno);
  ::chmod(folder.c_str(), 0777);  // agents may be another user's
  ::setenv("ONECOPY_SHM_DIR", folder.c_str(), 1);
  return folder;
}

/// By its descriptor, so that never another process of that number is meant.
void send_signal(const Fd& pidfd, int number) noexcept {
  ::syscall(SYS_pidfd_send_signal, pidfd.get(), number, nullptr, 0);
}

}  // namespace

Director::Director(const Options& options)
    : options_(options), folder_(make_folder()), judge_(model_, counters_, options.seed) {
  if (options.has_card) planner_.use_card(), judge_.use_card();
  if (!options.has_card && !options.has_user_namespaces) keeper_.emplace(folder_ + ".store");
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  next_census_ = kStepsForACensus;
  if (keeper_) planner_.use_store(), keeper_->start();
}

Director::~Director() {
  for (const auto& [id, agent] : agents_) send_signal(agent.pidfd, SIGKILL);
  keeper_.reset();
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

bool Director::is_over() const {
  if (is_hung_ || (options_.ends_at_fault && counters_.faults() != 0)) return true;
  if (options_.steps != 0 && counters_.steps >= options_.steps) return true;
  const std::chrono::duration<double, std::ratio<60>> took = Clock::now() - begin_;
  return options_.minutes != 0 && took.count() >= options_.minutes;
}

const Counters& Director::run() {
  while (!is_over()) {
    run_round();
    if (counters_.steps >= next_census_ && !is_hung_) take_census();
  }
  if (!is_hung_) take_census();
  end_all();
  look_for_files();
  return counters_;
}

void Director::start_program() {
  auto [ours, theirs] = UnixSocket::pair();
  const int pid = ::fork();
  if (pid < 0) throw_errno("fork", errno);
  if (pid == 0) {
    if (options_.has_user_namespaces && !testing::try_become_nobody(kUserOfAgents).empty()) ::_exit(3);
    ::fcntl(theirs.fd(), F_SETFD, 0);
    std::string program = "/proc/self/exe", argument = "--agent=" + std::to_string(theirs.fd());
    char* const argv[] = {program.data(), argument.data(), nullptr};
    ::execv(program.c_str(), argv);
    ::_exit(3);
  }
  theirs = {};
  ours.receive(kDeadline);  // its hello
  const Id id = planner_.next_id();
  enter(id, std::move(ours), pid);
  model_.agents[id] = {};
  judge_.note(fmt::format("agent {}: a new program, pid {}", id, pid));
}

void Director::enter(Id id, UnixSocket socket, int pid) {
  ++counters_.processes;
  struck_.erase(pid);
  agents_[id] = {std::move(socket), pid, open_pidfd(pid)};
}

void Director::run_round() {
  random_.seed(options_.seed * 1'000'003 + ++rounds_);
  while (agents_.size() < 2) start_program();
  model_.forget_old_blocks(kKeptBlocks);
  planner_.begin_round();
  model_.begin_round();
  Parts parts = choose_parts();
  for (Part& part : parts) send(part);
  strike(parts);
  for (Part& part : parts) collect(part);
  for (Part& part : parts) await_end(part);
  for (Part& part : parts) welcome_child(part);
  if (is_hung_) return;
  for (const Part& part : parts) judge(part);
  for (const Part& part : parts) bury(part);
  reap();
  if (keeper_ && random_.one_in(kRoundsForBothHalves)) replace_keeper();
}

Director::Parts Director::choose_parts() {
  std::vector<Id> all;
  for (const auto& [id, agent] : agents_) all.push_back(id);
  Parts parts;
  const std::size_t most = 2 + random_.below(kMaxAtOnce - 1);
  while (!all.empty() && parts.size() < most) {
    const auto at = all.begin() + static_cast<std::ptrdiff_t>(random_.below(all.size()));
    Part part;
    part.agent = *at;
    all.erase(at);
    parts.push_back(std::move(part));
  }
  std::vector<std::size_t> counts;
  for (Part& part : parts) {
    counts.push_back(3 + random_.below(14));
    part.fate = any_fate(counts.back());
    model_.agents.at(part.agent).is_dying = is_death(part.fate);
    part.strikes_after = microseconds(random_.below(std::uint64_t{1} << (3 + random_.below(9))));
    part.stopped_for = microseconds(random_.one_in(200) ? 2'500'000 : random_.below(30'000));
  }
  strike_at_keeper_.reset();
  if (keeper_ && random_.one_in(kRoundsForAHalf)) strike_at_keeper_ = random_.below(1 << 13);
  std::size_t missing = options_.agents - std::min(options_.agents, agents_.size());
  for (std::size_t i = 0; i < parts.size(); ++i) {
    Part& part = parts[i];
    if (missing > 0 && model_.agents.at(part.agent).forks < kMaxForks) {
      --missing;
      auto [ours, theirs] = UnixSocket::pair();
      part.child.emplace(planner_.next_id(), std::move(ours));
      part.for_child = std::move(theirs);
    }
    part.batch = planner_.plan(part.agent, counts[i], part.fate,
                               part.child ? std::optional(part.child->first) : std::nullopt);
  }
  if (missing > parts.size() || (missing > 0 && random_.one_in(3))) start_program();
  return parts;
}

Fate Director::any_fate(std::size_t commands) {
  if (random_.below(kStepsForADeath) >= commands) return random_.one_in(30) ? Fate::stop : Fate::live;
  const std::uint64_t kind = random_.below(100);
  if (kind < 20) return Fate::kill;
  if (kind < 60) return Fate::cut;
  if (kind < 75) return Fate::exit;
  if (kind < 86) return Fate::leave;
  if (kind < 93) return Fate::exec;
  return kind < 98 ? Fate::stop_kill : Fate::linger;
}

void Director::send(Part& part) {
  std::vector<Command> batch;
  for (const Planned& planned : part.batch) batch.push_back(planned.command);
  const int fd = part.for_child.fd();
  try {
    agents_.at(part.agent).socket.send(encode(batch), std::span(&fd, part.child ? 1 : 0), kDeadline);
  } catch (const Error& error) {  // it has ended by itself: collect() says so
    if (error.code() != ErrorCode::peer_died) throw;
  }
  part.for_child = {};
}

/// All signals that come in the middle, in the order of their times.
void Director::strike(Parts& parts) {
  struct Signal {
    microseconds at;
    const Agent* agent;
    int number;
  };
  std::vector<Signal> signals;
  for (const Part& part : parts) {
    const Agent* const agent = &agents_.at(part.agent);
    const microseconds later = part.strikes_after + part.stopped_for;
    if (part.fate == Fate::cut) signals.push_back({part.strikes_after, agent, SIGKILL});
    if (part.fate != Fate::stop && part.fate != Fate::stop_kill) continue;
    ++counters_.stops;
    signals.push_back({part.strikes_after, agent, SIGSTOP});
    signals.push_back({later, agent, part.fate == Fate::stop ? SIGCONT : SIGKILL});
  }
  std::stable_sort(signals.begin(), signals.end(),
                   [](const auto& a, const auto& b) { return a.at < b.at; });
  const auto begin = Clock::now();
  if (strike_at_keeper_) {
    std::this_thread::sleep_until(begin + microseconds(*strike_at_keeper_ / 2));
    kill_half(*strike_at_keeper_);
  }
  for (const Signal& signal : signals) {
    std::this_thread::sleep_until(begin + signal.at);
    if (signal.number == SIGKILL) struck_.insert(signal.agent->pid);
    send_signal(signal.agent->pidfd, signal.number);
  }
}

std::optional<Answer> Director::receive_answer(Part& part) {
  try {
    return decode_answer(agents_.at(part.agent).socket.receive(kDeadline).bytes);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::timeout) hang(part.agent, "its batch");
    return {};
  }
}

void Director::collect(Part& part) {
  if (is_hung_) return;
  part.answer = receive_answer(part);
  if (is_hung_) return;
  const bool may_be_silent = part.fate == Fate::cut || part.fate == Fate::stop_kill;
  if (!part.answer && !may_be_silent) {
    for (const Planned& planned : part.batch) judge_.cut(part.agent, planned);
    judge_.fault(counters_.crashes, fmt::format("agent {} has ended by itself", part.agent),
                 {fmt::format("agent {}", part.agent)});
    part.fate = Fate::cut;
    model_.agents.at(part.agent).is_dying = true;
  }
  if (part.answer)
    for (const Crash& crash : part.answer->crashes) note_crash(crash);
}

/// Waits for agents that are to end.
void Director::await_end(Part& part) {
  if (is_hung_ || !is_death(part.fate) || part.fate == Fate::exec) return;
  const Agent& agent = agents_.at(part.agent);
  if (part.fate == Fate::kill) {
    struck_.insert(agent.pid);
    send_signal(agent.pidfd, SIGKILL);
  }
  pollfd ended{agent.pidfd.get(), POLLIN, 0};
  if (::poll(&ended, 1, static_cast<int>(kDeadline.count())) != 1) hang(part.agent, "its end");
}

/// A child that says hello lives; there is none when its parent was killed before.
void Director::welcome_child(Part& part) {
  if (is_hung_ || !part.child) return;
  auto& [id, socket] = *part.child;
  try {
    const Packet packet = socket.receive(kDeadline);
    Hello hello;
    std::memcpy(&hello, packet.bytes.data(), sizeof hello);
    enter(id, std::move(socket), hello.pid);
    judge_.note(fmt::format("agent {}: forked by agent {}, pid {}", id, part.agent, hello.pid));
    model_.fork(part.agent, id);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::timeout) return hang(part.agent, "its fork");
    if (part.answer)
      judge_.fault(counters_.crashes, fmt::format("the child of agent {} has ended by itself", part.agent),
                   {fmt::format("agent {}", part.agent)});
  }
}

void Director::judge(const Part& part) {
  for (std::size_t i = 0; i < part.batch.size(); ++i) {
    if (part.answer) judge_.answered(part.agent, part.batch[i], part.answer->results.at(i));
    else judge_.cut(part.agent, part.batch[i]);
  }
}

void Director::bury(const Part& part) {
  if (!is_death(part.fate)) return;
  ++counters_.deaths;
  constexpr const char* kWords[] = {"",
                                    "",
                                    "exited",
                                    "ended by _exit",
                                    "execs",
                                    "was killed",
                                    "was cut off",
                                    "was killed while it was stopped",
                                    "closed its sockets and lingered"};
  const char* const how = kWords[static_cast<std::size_t>(part.fate)];
  judge_.note(fmt::format("agent {}: {}", part.agent, how));
  pinned_.merge(model_.owners_that_wait_for(part.agent));
  model_.end(part.agent, how);
  Agent agent = std::move(agents_.at(part.agent));
  agents_.erase(part.agent);
  if (part.fate != Fate::exec) return;
  try {
    agent.socket.receive(kDeadline);  // hello
  } catch (const Error&) {
    return hang(part.agent, "its exec");
  }
  const Id id = planner_.next_id();
  enter(id, std::move(agent.socket), agent.pid);
  model_.agents[id] = {};
  judge_.note(fmt::format("agent {}: the new program of agent {}", id, part.agent));
}

/// Reaps children of this process, and orphans, whose parents have died.
void Director::reap() {
  int status = 0;
  for (int pid; (pid = ::waitpid(-1, &status, WNOHANG)) > 0;) {
    if (WIFSIGNALED(status)) note_crash({pid, WTERMSIG(status)});
    else if (WEXITSTATUS(status) != 0) note_crash({pid, -WEXITSTATUS(status)});
  }
}

void Director::note_crash(const Crash& crash) {
  if (crash.signal == SIGKILL && struck_.erase(crash.pid) != 0) return;
  judge_.fault(counters_.crashes,
               fmt::format("process {} ended with {} {}", crash.pid, crash.signal < 0 ? "status" : "signal",
                           std::abs(crash.signal)),
               {fmt::format("pid {}", crash.pid)});
}

void Director::hang(Id agent, const std::string& what) {
  is_hung_ = true;
  judge_.fault(counters_.hangs, fmt::format("agent {} does not come to the end of {}", agent, what),
               {fmt::format("agent {}", agent)});
  const int pid = agents_.contains(agent) ? agents_.at(agent).pid : 0;
  for (const auto& task : testing::proc_entries(fmt::format("/proc/{}/task", pid)))
    for (const char* file : {"comm", "wchan", "syscall"}) {
      char text[256] = {};
      if (std::FILE* in = std::fopen((task / file).c_str(), "r")) {
        if (!std::fgets(text, sizeof text, in)) text[0] = 0;
        std::fclose(in);
      }
      std::printf("    %s/%s: %s\n", task.c_str(), file, text);
    }
}

/// All agents work at once, and none dies.
void Director::run_in_all(const std::function<std::vector<Planned>(Id)>& plan,
                          const std::function<void(const Part&)>& judge) {
  Parts parts;
  for (const auto& [id, agent] : agents_) {
    Part part;
    part.agent = id;
    part.batch = plan(id);
    parts.push_back(std::move(part));
  }
  for (Part& part : parts) send(part);
  for (Part& part : parts) collect(part);
  if (is_hung_) return;
  for (const Part& part : parts)
    if (part.answer) judge(part);
  for (const Part& part : parts) bury(part);
}

void Director::take_census() {
  next_census_ = counters_.steps + kStepsForACensus;
  const auto as_usual = [this](const Part& part) { this->judge(part); };
  run_in_all([this](Id agent) { return empty_queues(agent); }, as_usual);
  if (is_hung_) return;
  run_in_all([this](Id agent) { return let_go(agent); }, as_usual);
  if (is_hung_) return;
  std::erase_if(model_.queues, [](const auto& queue) { return queue.second.users.empty(); });
  const std::size_t others = agents_.size() - 1;
  Command settle;
  settle.op = Op::settle;
  settle.wait_ms = kSettlesIn;
  settle.size = others;
  run_in_all(
      [&](Id) {
        return std::vector<Planned>{{settle, true}};
      },
      [&](const Part& part) {
        this->judge(part);
        if (part.answer->results[0].kind == Result::Kind::done)
          judge_.settled(part.agent, part.answer->results[0], others, pinned_.contains(part.agent));
      });
  if (keeper_) look_for_versions();
  std::erase_if(pinned_, [this](Id owner) { return !agents_.contains(owner); });
}

/// The first user of each queue takes out its items.
std::vector<Planned> Director::empty_queues(Id agent) {
  std::vector<Planned> batch;
  for (const auto& [id, queue] : model_.queues) {
    if (queue.users.begin()->first != agent) continue;
    for (std::size_t i = 0; i <= queue.items.size(); ++i) {
      Command get;
      get.op = Op::get;
      get.queue = id;
      get.ref = planner_.next_id();
      for (int n = 0; n < 16; ++n) planner_.next_id();
      const bool is_certain = i < queue.items.size() && !queue.items[i].is_perhaps;
      get.wait_ms = is_certain && i == 0 ? 30'000 : 0;
      batch.push_back({get, false});
    }
  }
  return batch;
}

std::vector<Planned> Director::let_go(Id agent) {
  std::vector<Planned> batch;
  for (const auto& [id, queue] : model_.queues) {
    if (!queue.users.contains(agent)) continue;
    Command leave;
    leave.op = Op::leave;
    leave.queue = id;
    batch.push_back({leave, true});
  }
  for (const auto& [ref, holding] : model_.agents.at(agent).holds) {
    Command drop;
    drop.op = Op::drop;
    drop.ref = ref;
    drop.block = holding.block;
    batch.push_back({drop, true});
  }
  return batch;
}

/// Half of them politely; and no process must be left.
void Director::end_all() {
  if (is_hung_) {
    for (const auto& [id, agent] : agents_) send_signal(agent.pidfd, SIGKILL);
    if (keeper_) keeper_->kill_both();
    while (::waitpid(-1, nullptr, 0) > 0) {
    }
    return agents_.clear();
  }
  std::map<Id, int> pids;
  for (auto& [id, agent] : agents_) {
    Part part;
    part.agent = id;
    part.fate = id % 2 == 0 ? Fate::exit : Fate::kill;
    if (part.fate == Fate::exit) {
      Command exit;
      exit.op = Op::exit;
      part.batch = {{exit, true}};
      send(part);
      collect(part);
    }
    await_end(part);
    ++counters_.deaths;
  }
  agents_.clear();
  if (keeper_ && !keeper_->end()) judge_.fault(counters_.left_behind, "the keeper does not end", {});
  const auto end = Clock::now() + kDeadline;
  int status = 0;
  for (int pid; (pid = ::waitpid(-1, &status, WNOHANG)) >= 0 && Clock::now() < end;) {
    if (pid == 0) std::this_thread::sleep_for(milliseconds(1));
    else if (WIFSIGNALED(status)) note_crash({pid, WTERMSIG(status)});
    else if (WEXITSTATUS(status) != 0) note_crash({pid, -WEXITSTATUS(status)});
  }
  if (errno != ECHILD) judge_.fault(counters_.left_behind, "a process that nobody knows is left", {});
}

/// The other half replaces it, while agents publish and open versions.
void Director::kill_half(std::uint64_t choice) {
  const std::optional<int> pid = keeper_->kill_half(choice);
  if (!pid) return;
  judge_.note(fmt::format("pid {} of the keeper is killed", *pid));
  struck_.insert(*pid);
  ++counters_.keeper_deaths;
}

/// Only processes that hold versions have their memory afterwards.
void Director::replace_keeper() {
  judge_.note("both halves of the keeper are killed");
  for (const int pid : keeper_->kill_both()) struck_.insert(pid), ++counters_.keeper_deaths;
  reap();
  model_.lose_store();
  keeper_->start();
}

/// Nobody holds a tensor of a version now, so each half has the current versions alone, and those that agents map: a
/// forked agent maps what its parent sent, if the parent has ended first, until the agent ends as well.
void Director::look_for_versions() {
  const auto unread = [this] {
    std::vector<int> pids;
    for (const auto& [id, agent] : agents_) pids.push_back(agent.pid);
    return keeper_->count_unread(pids);
  };
  const auto end = Clock::now() + milliseconds(kSettlesIn);
  while (unread() > model_.objects.size() && Clock::now() < end)
    std::this_thread::sleep_for(milliseconds(5));
  if (const std::size_t left = unread(); left > model_.objects.size())
    judge_.fault(counters_.left_behind,
                 fmt::format("the keeper has {} versions that nobody reads, of {} objects", left,
                             model_.objects.size()),
                 {});
}

/// The next start of any process of the user removes the files of killed processes.
void Director::look_for_files() {
  const int pid = ::fork();
  if (pid == 0) {
    if (options_.has_user_namespaces) testing::try_become_nobody(kUserOfAgents);
    remove_abandoned_files();
    ::_exit(0);
  }
  ::waitpid(pid, nullptr, 0);
  std::error_code absent;
  for (const auto& entry : std::filesystem::directory_iterator(folder_, absent))
    judge_.fault(counters_.left_behind, fmt::format("a file is left: {}", entry.path().string()), {});
}

}  // namespace onecopy::soak
