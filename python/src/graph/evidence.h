// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "binding/module.h"
#include "device/graphs.h"
#include "graph/relocation.h"
#include "onecopy/core/device.h"

namespace onecopy::python {

/// A captured graph whose inputs in place may be elsewhere, by the proof that there is.
///
/// Thread safety: the caller serialises, with the arena's turn.
class MovableGraph {
 public:
  MovableGraph(Device device, Recording recording, graph::Relocation relocation);

  bool can_be_at(std::size_t region, std::uint64_t base) const {
    return relocation_.can_be_at(region, base);
  }
  /// Moves these regions of the graph, from its next launch on. Returns how many nodes were changed. If the proof
  /// does not hold, throws invalid_argument and changes nothing. Throws the driver's refusals; the executable is of
  /// no use then.
  std::size_t move(GraphExecutable executable,
                   const std::vector<std::pair<std::size_t, std::uint64_t>>& places);
  /// Why the graph has other addresses than two fresh captures at its present places; empty if it has the same.
  std::string difference(const Recording& fresh, const Recording& again) const {
    return relocation_.check(recording_, fresh, again);
  }
  std::size_t words() const noexcept { return relocation_.words().size(); }
  std::size_t noise() const noexcept { return relocation_.noise(); }

 private:
  const Device device_;
  Recording recording_;
  graph::Relocation relocation_;
};

void init_graph_evidence(nb::module_& m);

}  // namespace onecopy::python
