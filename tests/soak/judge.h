// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <string>
#include <vector>

#include "soak/model.h"
#include "soak/planner.h"

namespace onecopy::soak {

struct Counters {
  std::uint64_t steps = 0;
  std::uint64_t processes = 0;
  std::uint64_t deaths = 0;
  std::uint64_t stops = 0;
  std::uint64_t opens = 0;
  std::uint64_t puts = 0;
  std::uint64_t gets = 0;
  std::uint64_t versions = 0;       ///< that were published
  std::uint64_t sent_versions = 0;  ///< tensors of versions that were received
  std::uint64_t keeper_deaths = 0;  ///< of halves
  std::uint64_t card_reads = 0;
  std::uint64_t right_refusals = 0;
  std::uint64_t wrong_refusals = 0;
  std::uint64_t right_losses = 0;  ///< items that no live process kept
  std::uint64_t unasked_losses =
      0;  ///< of those, with another process that had the memory, and was not to be asked
  std::uint64_t wrong_losses = 0;
  std::uint64_t torn = 0;
  std::uint64_t left_behind = 0;
  std::uint64_t crashes = 0;
  std::uint64_t hangs = 0;
  std::uint64_t slowest_micros = 0;

  std::uint64_t faults() const {
    return wrong_refusals + wrong_losses + torn + left_behind + crashes + hangs;
  }
  std::string str() const;
};

/// Compares the answers of agents with the outcomes that the model allows, and tells the model the outcome. A
/// disagreement is printed with the commands that led to it.
///
/// Thread safety: used by one thread.
class Judge {
 public:
  Judge(Model& model, Counters& counters, std::uint64_t seed)
      : model_(model), counters_(counters), seed_(seed) {}

  /// Agents pin memory, and a driver is in their processes.
  void use_card() noexcept { has_card_ = true; }
  void note(std::string line);
  void answered(Id agent, const Planned& planned, const Result& result);
  /// Killed before it answered: each of these may have happened.
  void cut(Id agent, const Planned& planned);
  /// `others`: how many agents it may be connected to. A pinned one may keep memory for an item of a dead process.
  void settled(Id agent, const Result& result, std::size_t others, bool is_pinned);
  void fault(std::uint64_t& counter, const std::string& what, const std::vector<std::string>& about);

 private:
  void opened(Id agent, const Planned& planned, const Result& result);
  void published(Id agent, const Command& command, const Result& result);
  void opened_version(Id agent, const Command& command, const Result& result);
  void put(Id agent, const Command& command, const Result& result);
  void got(Id agent, const Planned& planned, const Result& result);
  void lost(Id agent, QueueModel& queue, const Planned& planned, const Result& result);
  void compare(Id agent, const Command& command, const Seen& seen, Id block);
  void refused(Id agent, const Planned& planned, const Result& result);
  Item item_of(Id agent, const Command& command) const;

  Model& model_;
  Counters& counters_;
  const std::uint64_t seed_;
  std::deque<std::string> history_;
  std::uint64_t printed_ = 0;
  bool has_card_ = false;
};

}  // namespace onecopy::soak
