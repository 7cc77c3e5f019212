// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <optional>
#include <random>
#include <set>
#include <vector>

#include "soak/model.h"

namespace onecopy::soak {

/// The ways in which an agent's part in a round ends.
enum class Fate : std::uint8_t {
  live,
  stop,       ///< SIGSTOP in the middle of its batch, and SIGCONT
  exit,       ///< exit(0)
  leave,      ///< _exit(0)
  exec,       ///< another program in its process
  kill,       ///< SIGKILL once it has answered
  cut,        ///< SIGKILL in the middle of its batch
  stop_kill,  ///< SIGSTOP in the middle, and SIGKILL
  linger,     ///< its sockets are closed long before its process ends
};
bool is_death(Fate fate) noexcept;

/// A command, and the model's outcomes for it.
struct Planned {
  Command command;
  bool must = false;  ///< it may not be refused
};

/// Numbers below a bound, by a seed.
class Random {
 public:
  void seed(std::uint64_t seed) { engine_.seed(seed); }
  std::uint64_t below(std::uint64_t bound) { return engine_() % bound; }
  bool one_in(std::uint64_t bound) { return below(bound) == 0; }
  template <class Container>
  const auto& pick(const Container& from) {
    return *std::next(from.begin(), static_cast<std::ptrdiff_t>(below(from.size())));
  }

 private:
  std::mt19937_64 engine_;
};

/// Chooses the batches of a round, whose agents run at once. No outcome depends on the order of two agents: only one
/// agent uses a queue, and no other agent touches a block that this agent changes or drops. Only outcomes that depend on
/// deaths may go either way.
///
/// Thread safety: used by one thread.
class Planner {
 public:
  Planner(const Model& model, Random& random) : model_(model), random_(random) {}

  /// Agents pin memory and read it through a card, too. The plans of seeds without that do not change.
  void use_card() noexcept { has_card_ = true; }
  /// Agents publish and open versions of the store, too.
  void use_store() noexcept { has_store_ = true; }

  void begin_round();
  std::vector<Planned> plan(Id agent, std::size_t count, Fate fate, std::optional<Id> child);
  Id next_id() { return ++last_id_; }

 private:
  struct Touch {
    Id agent = 0;
    bool is_shared = false;
    bool is_exclusive = false;
  };
  struct Turn;

  void plan_one(Turn& turn);
  void plan_allocate(Turn& turn);
  void plan_share(Turn& turn);
  void plan_open(Turn& turn);
  void plan_check(Turn& turn);
  void plan_card(Turn& turn);
  void plan_store(Turn& turn);
  void plan_write(Turn& turn);
  void plan_drop(Turn& turn);
  void plan_queue(Turn& turn);
  void plan_connect(Turn& turn);
  void plan_put(Turn& turn);
  void plan_get(Turn& turn);
  void plan_leave(Turn& turn);

  std::optional<Id> any_ref(const Turn& turn, bool with_handles);
  std::optional<Id> any_queue(const Turn& turn);
  bool may_read(Id agent, Id block) const;
  bool may_change(Id agent, Id block) const;
  void touch(Id agent, Id block, bool exclusively);
  std::uint64_t any_size();

  const Model& model_;
  Random& random_;
  bool has_card_ = false;
  bool has_store_ = false;
  std::map<Id, Touch> touched_;
  std::map<Id, Id> queues_in_use_;
  std::size_t planned_bytes_ = 0;
  std::size_t new_queues_ = 0;
  Id last_id_ = 0;
};

}  // namespace onecopy::soak
