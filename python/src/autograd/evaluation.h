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

/// A worker's part of one backward pass, without the messages: tracks which sources have got their gradients or never
/// will, and which outputs have fired. An output fires once, with its complete gradient, when each source that reaches
/// the output has its gradients or is known to get none. Gradients of leaves go into the context, unless the nodes of
/// the leaves have hooks, which the caller runs.
///
/// Thread safety: all members may be called concurrently, with the GIL held. Each component has a lock, since torch's
/// engine releases the GIL; a thread releases the GIL before it waits for the lock. The GIL guards the sets of sources.
class Evaluation {
 public:
  /// The result of a step: the received tensors that fired, as (ReceivedTensors, gradients), the change of the number of
  /// blocked components, and the leaves that fired and whose nodes have hooks, as (leaf, gradient).
  struct Step {
    nb::list fired;
    int change = 0;
    nb::list hooked{};
  };

  /// `sent` is a list of SentTensors. `roots` is a list of GradientEdge, which make one source with the key None.
  /// `engine` is torch's run_backward(). `worker` appears in errors. REQUIRES: the SentTensors, which may own nodes,
  /// outlive the Evaluation.
  Evaluation(nb::object context, std::size_t worker, nb::handle sent, nb::handle roots, nb::object engine,
             bool retain);
  Evaluation& operator=(Evaluation&&) = delete;

  /// Takes received gradients, a list of (key of a source, its gradients), and evaluates what they make ready. Throws
  /// RuntimeError for an unknown key, and for a failure in the graph an error that names the worker.
  Step take(nb::handle arrived);
  /// Declares that sources which have neither gradients nor a mark never get any, and evaluates what becomes ready.
  Step resolve();
  /// Marks a source that will get gradients. Returns the ReceivedTensors that will get gradients as a result. Throws
  /// KeyError for an unknown key.
  nb::list mark(nb::handle key);
  /// Returns the ReceivedTensors for which the blocked components will still send gradients.
  nb::list owed();

  /// Visits the objects for the garbage collector, which breaks a cycle of references at one of the Python objects in
  /// the cycle.
  int traverse(visitproc visit, void* arg) const;

 private:
  /// An edge into a node, and the gradient that waits at the edge.
  struct Item {
    std::size_t node;
    nb::object edge, gradient;
  };
  /// Sources that are evaluated together. `lock` guards changes; the GIL suffices for reads. Invariant: an evaluation
  /// from `items` yields what the outputs that have not fired lack.
  struct Component {
    Bits sources;
    std::vector<Output> outputs;
    std::vector<Item> items{};
    bool is_blocked = false;
    Mutex lock{};
  };
  class Holding;
  using Outputs = std::vector<Output*>;
  using Gradients = std::vector<std::vector<nb::object>>;  ///< the gradients of each output
  /// A run of the engine.
  struct Stage {
    Outputs outputs;  ///< the outputs that fire
    Bits wanted;      ///< the numbers of `outputs`
    Bits remaining;   ///< the numbers of outputs that gradients reach and that fire later
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
  void evaluate(Component& component, const Bits& here, Step& step);
  Stage next_stage(Component& component, const Bits& here) const;
  std::vector<Item> leading_to(const Component& component, const Bits& wanted) const;
  void keep_rest(Component& component, const Stage& stage, std::vector<Item> at_cut) const;
  Caught run(const std::vector<Item>& roots, const Outputs& outputs, const std::vector<std::size_t>& cut,
             bool keeps) const;
  Gradients run(const EngineCall& engine, bool keeps) const;
  /// Returns how many gradients an output takes.
  std::size_t count_of(const Output& output) const;
  void accumulate(const Outputs& outputs, const Gradients& gradients, const std::vector<Item>& roots,
                  nb::list& hooked) const;

  nb::object context_;
  std::size_t worker_;
  nb::object engine_;
  bool retains_;
  nb::dict sources_;  ///< the number of each source by its key
  std::unique_ptr<Structure> structure_;
  std::vector<std::unique_ptr<Component>> components_;
  Bits arrived_, dead_, live_;  ///< sources
};

}  // namespace onecopy::python::autograd
