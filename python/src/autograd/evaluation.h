// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "autograd/bits.h"
#include "autograd/structure.h"
#include "binding/module.h"
#include "os/mutex.h"

namespace onecopy::python::autograd {

class EngineCall;

/// A worker's part of one backward pass, but for its messages: the sources whose gradients have come, or never come, and
/// the outputs that have fired. An output fires once, with its complete gradient: when all sources that reach it have theirs,
/// or are known to get none. Gradients of leaves go into the context.
///
/// Thread safety: all members may be called concurrently, with the GIL held. A component has a lock, since torch's engine lets
/// go of the GIL; a thread never waits for it with the GIL. The sets of sources are read and changed with the GIL.
class Evaluation {
 public:
  /// The result of a step: the outputs that fired, as (ReceivedTensors, their gradients), and by how much the number of blocked
  /// components has grown.
  struct Step {
    nb::list fired;
    int change = 0;
  };

  /// `sent` is a list of SentTensors and `roots` of GradientEdge, a source of its own with the key None. `engine` is torch's
  /// run_backward(). Errors name the worker. REQUIRES: the SentTensors live as long: they may own nodes.
  Evaluation(nb::object context, std::size_t worker, nb::handle sent, nb::handle roots, nb::object engine,
             bool retain);
  Evaluation(const Evaluation&) = delete;
  Evaluation& operator=(const Evaluation&) = delete;

  /// Gradients have come: a list of (a source's key, its gradients). Throws RuntimeError for an unknown key, and with the worker
  /// for a failure in the graph.
  Step take(nb::handle arrived);
  /// Sources whose gradients have not come, and that are not marked, never get any.
  Step resolve();
  /// Marks a source: it will get something. The ReceivedTensors that will get something because of that. Throws KeyError.
  nb::list mark(nb::handle key);
  /// The ReceivedTensors that the blocked components will still send gradients for.
  nb::list owed();

  /// Visits the objects for the garbage collector. A cycle of references is broken at one of the Python objects that it goes through.
  int traverse(visitproc visit, void* arg) const;

 private:
  /// An edge into a node, and the gradient that waits there.
  struct Item {
    std::size_t node;
    nb::object edge, gradient;
  };
  /// Sources that are evaluated together. With `lock` held, but for reads with the GIL. Invariant: evaluating from `items` gives
  /// what its outputs that have not fired lack.
  struct Component {
    Bits sources;
    std::vector<Output> outputs;
    std::vector<Item> items{};
    bool is_blocked = false;
    Mutex lock{};
  };
  class Holding;
  using Outputs = std::vector<Output*>;
  using Gradients = std::vector<std::vector<nb::object>>;  ///< of each output
  /// A run of the engine.
  struct Stage {
    Outputs outputs;  ///< that fire
    Bits wanted;      ///< their numbers
    Bits remaining;   ///< of those that gradients reach, and that fire later
  };
  struct Caught {
    Gradients at_outputs;
    std::vector<Item> at_cut;
  };

  std::optional<std::size_t> find(nb::handle key) const;
  Component& component_of(std::size_t source) {
    return *components_[structure_->sources()[source].component];
  }
  const nb::object& end_of(const Output& output) const { return structure_->node(output.node).end; }
  bool is_received(const Output& output) const {
    return structure_->node(output.node).kind == Structure::Kind::received;
  }
  Bits here() const;
  Bits leads_from(const std::vector<Item>& items) const;

  void take_one(nb::handle key, nb::handle gradients, Step& step);
  void advance(Component& component, Step& step);
  bool is_blocked(const Component& component, const Bits& here) const;
  std::vector<const Output*> owed_by(const Component& component, const Bits& waiting) const;
  void fire_without_gradients(Component& component, const Bits& here, nb::list& fired) const;
  void evaluate(Component& component, const Bits& here, nb::list& fired);
  Stage next_stage(Component& component, const Bits& here) const;
  std::vector<Item> leading_to(const Component& component, const Bits& wanted) const;
  void keep_rest(Component& component, const Stage& stage, std::vector<Item> at_cut) const;
  Caught run(const std::vector<Item>& roots, const Outputs& outputs, const std::vector<std::size_t>& cut,
             bool keeps) const;
  Gradients run(const EngineCall& engine, bool keeps) const;
  /// Returns how many gradients an output takes.
  std::size_t count_of(const Output& output) const;
  void accumulate(const Outputs& outputs, const Gradients& gradients, const std::vector<Item>& roots) const;

  nb::object context_;
  std::size_t worker_;
  nb::object engine_;
  bool retains_;
  nb::dict sources_;  ///< number by key
  std::unique_ptr<Structure> structure_;
  std::vector<std::unique_ptr<Component>> components_;
  Bits arrived_, dead_, live_;  ///< sources
};

}  // namespace onecopy::python::autograd
