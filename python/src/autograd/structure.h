// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <unordered_map>
#include <vector>

#include "autograd/bits.h"
#include "binding/module.h"

namespace onecopy::python::autograd {

/// An edge of torch's graph from tensors that were sent, or from the loss.
struct SourceEdge {
  nb::object edge;   ///< a GradientEdge
  std::size_t node;  ///< the number of the node that the edge leads to
};

/// A leaf or received tensors, where gradients of one component leave the graph.
struct Output {
  std::size_t node;  ///< the number of the node
  std::size_t end;   ///< the number among the outputs that nodes lead to
  Bits need;         ///< the sources of the component that reach the output
  bool has_fired = false;
};

/// The graph between the sources and the outputs of one worker.
///
/// Gradients enter the graph at a source, which is the loss or tensors that were sent, and leave the graph at an output,
/// which is a leaf or tensors that were received. Sources whose graphs share a node other than a plain leaf form a
/// component, whose gradients must be evaluated together. All leaves whose nodes have hooks are outputs of one component,
/// and need the same sources, since their hooks run together.
///
/// Thread safety: immutable; used with the GIL held.
class Structure {
 public:
  enum class Kind : std::uint8_t { inner, leaf, received };
  struct Node {
    nb::object node;
    Kind kind;
    nb::object end;                  ///< the leaf, or the ReceivedTensors
    bool is_hooked = false;          ///< whether the node is a leaf's and has hooks
    std::vector<std::size_t> after;  ///< the numbers of the nodes that the node's edges lead to
    Bits reach;                      ///< the sources that reach the node
    Bits leads;                      ///< the outputs that the node leads to, by `end`
  };
  struct Source {
    std::vector<SourceEdge> edges;
    std::size_t component;
  };
  struct Part {
    Bits sources;
    std::vector<Output> outputs;
  };

  /// `sources` holds a list of GradientEdge for each source.
  explicit Structure(const std::vector<nb::object>& sources);

  const Node& node(std::size_t number) const { return nodes_[number]; }
  const std::vector<Source>& sources() const noexcept { return sources_; }
  /// Returns the components in their initial state.
  const std::vector<Part>& parts() const noexcept { return parts_; }

  /// Returns the nodes that run when gradients go from `starts` to the outputs `wanted`, and have an edge to a node
  /// that runs later. The later stage, which goes to the outputs `remaining`, begins at the returned nodes. Returns
  /// nullopt if a returned node would lead to another through nodes that run in the first stage; the later stage then
  /// begins at `starts`.
  std::optional<std::vector<std::size_t>> find_cut(const std::vector<std::size_t>& starts,
                                                   const Bits& wanted, const Bits& remaining) const;

  int traverse(visitproc visit, void* arg) const;

 private:
  std::size_t number_of(nb::handle node);
  void walk(const std::vector<nb::object>& sources);
  void walk_from(std::size_t start);
  std::vector<std::size_t> edges_of(std::size_t number);
  void find_hooks();
  void find_reach();
  void find_components();
  void find_outputs();
  std::vector<bool> running(const std::vector<std::size_t>& starts, const Bits& wanted) const;
  bool leads_into(std::size_t from, const std::vector<bool>& targets,
                  const std::vector<bool>& running) const;

  std::vector<Node> nodes_;
  std::vector<bool> is_walked_;
  std::vector<std::size_t> order_;  ///< all nodes, each after the nodes that its edges lead to
  std::unordered_map<PyObject*, std::size_t> numbers_;  ///< the number of each node; cleared after the walk
  std::vector<Source> sources_;
  std::vector<Part> parts_;
};

}  // namespace onecopy::python::autograd
