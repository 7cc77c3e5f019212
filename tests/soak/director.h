// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "os/fd.h"
#include "os/unix_socket.h"
#include "soak/judge.h"
#include "soak/keeper.h"
#include "soak/model.h"
#include "soak/planner.h"

namespace onecopy::soak {

struct Options {
  std::uint64_t seed = 0;
  std::uint64_t steps = 0;  ///< 0: as many as the time allows
  double minutes = 0;       ///< 0: as long as the steps take
  std::size_t agents = 12;
  bool ends_at_fault = false;
  bool has_card = false;             ///< agents pin memory and read it through a card
  bool has_user_namespaces = false;  ///< each program has one of its own
};

/// Runs agents in rounds: a few of them get a batch each at the same time; some are stopped, killed, or end in it. In
/// between, all let go of everything, and must have nothing left. They also publish and open versions of a store of
/// their own, of whose keeper one half is killed now and then, and both between two rounds.
///
/// It uses nothing of the library but its sockets, so that its forks are plain.
/// Thread safety: used by one thread. REQUIRES: this process has no other children.
class Director {
 public:
  explicit Director(const Options& options);
  ~Director();
  Director(const Director&) = delete;
  Director& operator=(const Director&) = delete;

  /// Until the steps or the time are over, or an agent hangs.
  const Counters& run();

 private:
  struct Agent {
    UnixSocket socket;
    int pid = 0;
    Fd pidfd;
  };
  /// The part of an agent in a round.
  struct Part {
    Id agent = 0;
    Fate fate = Fate::live;
    std::vector<Planned> batch;
    std::chrono::microseconds strikes_after{0};  ///< SIGKILL or SIGSTOP
    std::chrono::microseconds stopped_for{0};
    std::optional<Answer> answer;
    std::optional<std::pair<Id, UnixSocket>> child;
    UnixSocket for_child;  ///< the end that is sent
  };
  using Parts = std::vector<Part>;

  bool is_over() const;
  void start_program();
  void enter(Id id, UnixSocket socket, int pid);

  // A round.
  void run_round();
  Parts choose_parts();
  Fate any_fate(std::size_t commands);
  void send(Part& part);
  void strike(Parts& parts);
  void collect(Part& part);
  void await_end(Part& part);
  void welcome_child(Part& part);
  void judge(const Part& part);
  void bury(const Part& part);
  std::optional<Answer> receive_answer(Part& part);
  void reap();
  void note_crash(const Crash& crash);
  void hang(Id agent, const std::string& what);

  // A census.
  void take_census();
  void run_in_all(const std::function<std::vector<Planned>(Id)>& plan,
                  const std::function<void(const Part&)>& judge);
  std::vector<Planned> empty_queues(Id agent);
  std::vector<Planned> let_go(Id agent);
  void end_all();
  void look_for_files();

  // The store.
  void kill_half(std::uint64_t choice);
  void replace_keeper();
  void look_for_versions();

  const Options options_;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  std::string folder_;  ///< for named files
  Counters counters_;
  Model model_;
  Random random_;
  Planner planner_{model_, random_};
  Judge judge_;
  std::optional<Keeper> keeper_;
  std::map<Id, Agent> agents_;
  std::set<Id> pinned_;   ///< owners of items of a putter that has died since
  std::set<int> struck_;  ///< pids that were killed here
  std::uint64_t rounds_ = 0;
  std::uint64_t next_census_ = 0;
  std::optional<std::uint64_t> strike_at_keeper_;  ///< in this round, at one of its halves
  bool is_hung_ = false;
};

}  // namespace onecopy::soak
