// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <unordered_map>
#include <vector>

#include "autograd/bits.h"
#include "binding/module.h"

namespace onecopy::python::autograd {

/// An edge of torch's graph out of tensors that were sent, or of the loss.
struct SourceEdge {
  nb::object edge;   ///< a GradientEdge
  std::size_t node;  ///< its node's number
};

/// A leaf or received tensors, where gradients leave the graph, as one component's gradients reach it.
struct Output {
  std::size_t node;  ///< its number
  std::size_t end;   ///< its number among the outputs that nodes lead to
  Bits need;         ///< the sources of the component that reach it
  bool has_fired = false;
};

/// The graph between the sources and the outputs of one worker.
///
/// A source is where gradients come in: the loss, or tensors that were sent. An output is where they leave: a leaf, or
/// tensors that were received. Sources whose graphs have a node other than a plain leaf in common make one component, whose
/// gradients have to be evaluated together.
///
/// Thread safety: never changes once made; used with the GIL held.
class Structure {
 public:
  enum class Kind : std::uint8_t { inner, leaf, received };
  struct Node {
    nb::object node;
    Kind kind;
    nb::object end;                  ///< the leaf, or the ReceivedTensors
    std::vector<std::size_t> after;  ///< numbers of the nodes that its edges go to
    Bits reach;                      ///< the sources that reach it
    Bits leads;                      ///< the outputs that it leads to, by `end`
  };
  struct Source {
    std::vector<SourceEdge> edges;
    std::size_t component;
  };
  struct Part {
    Bits sources;
    std::vector<Output> outputs;
  };

  /// `sources` are lists of GradientEdge.
  explicit Structure(const std::vector<nb::object>& sources);

  const Node& node(std::size_t number) const { return nodes_[number]; }
  const std::vector<Source>& sources() const noexcept { return sources_; }
  /// Returns the components, none of which has begun.
  const std::vector<Part>& parts() const noexcept { return parts_; }

  /// The nodes that run when gradients go from `starts` to the outputs `wanted`, and have an edge to a node that runs later,
  /// if the later stage, which goes to the outputs `remaining`, can begin at them. That is so if none of them leads to another
  /// through nodes that run now. Else empty, and the nodes above run again.
  std::optional<std::vector<std::size_t>> find_cut(const std::vector<std::size_t>& starts,
                                                   const Bits& wanted, const Bits& remaining) const;

  int traverse(visitproc visit, void* arg) const;

 private:
  std::size_t number_of(nb::handle node);
  void walk(const std::vector<nb::object>& sources);
  void walk_from(std::size_t start);
  std::vector<std::size_t> edges_of(std::size_t number);
  void find_reach();
  void find_components();
  void find_outputs();
  std::vector<bool> running(const std::vector<std::size_t>& starts, const Bits& wanted) const;
  bool leads_into(std::size_t from, const std::vector<bool>& targets,
                  const std::vector<bool>& running) const;

  std::vector<Node> nodes_;
  std::vector<bool> is_walked_;
  std::vector<std::size_t> order_;  ///< all nodes, each behind those that it has edges to
  std::unordered_map<PyObject*, std::size_t> numbers_;  ///< of nodes, until all are walked
  std::vector<Source> sources_;
  std::vector<Part> parts_;
};

}  // namespace onecopy::python::autograd
