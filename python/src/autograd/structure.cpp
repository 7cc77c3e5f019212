// SPDX-License-Identifier: Apache-2.0
#include "autograd/structure.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "autograd/names.h"

namespace onecopy::python::autograd {
namespace {

/// A partition of numbers into sets; the first number of a set stands for the set.
class DisjointSets {
 public:
  explicit DisjointSets(std::size_t count) : parents_(count) {
    std::iota(parents_.begin(), parents_.end(), std::size_t{0});
  }
  std::size_t find(std::size_t number) noexcept {
    while (parents_[number] != number) number = parents_[number] = parents_[parents_[number]];
    return number;
  }
  void join(std::size_t a, std::size_t b) noexcept { parents_[find(b)] = find(a); }

 private:
  std::vector<std::size_t> parents_;
};

/// Returns whether the node is a leaf without hooks, whose gradient may arrive in parts.
bool is_plain_leaf(const Structure::Node& node) {
  return node.kind == Structure::Kind::leaf && !node.is_hooked &&
         !is_true(get(node.end, Names::get().backward_hooks));
}

}  // namespace

Structure::Structure(const std::vector<nb::object>& sources) {
  walk(sources);
  find_hooks();
  find_reach();
  find_components();
  find_outputs();
  numbers_ = {};
}

/// Returns the number of a node, which is added if new.
std::size_t Structure::number_of(nb::handle node) {
  const auto [at, is_new] = numbers_.emplace(node.ptr(), nodes_.size());
  if (is_new) {
    const Names& names = Names::get();
    Node made{nb::borrow(node), Kind::inner, {}, false, {}, {}, {}};
    if (Py_TYPE(node.ptr()) == names.leaf) made.kind = Kind::leaf;
    if (Py_TYPE(node.ptr()) == names.receive) made.kind = Kind::received;
    nodes_.push_back(std::move(made));
    is_walked_.push_back(false);
  }
  return at->second;
}

void Structure::walk(const std::vector<nb::object>& sources) {
  for (const nb::object& edges : sources) {
    Source& source = sources_.emplace_back();
    for (const nb::handle edge : nb::borrow<nb::list>(edges)) {
      const std::size_t node = number_of(item(edge, 0));
      source.edges.push_back({nb::borrow(edge), node});
      walk_from(node);
    }
  }
}

void Structure::walk_from(std::size_t start) {
  struct Step {
    std::size_t node, next;
  };
  std::vector<Step> steps;
  const auto enter = [&](std::size_t node) {
    if (is_walked_[node]) return;
    is_walked_[node] = true;
    std::vector<std::size_t> after = edges_of(node);
    nodes_[node].after = std::move(after);
    steps.push_back({node, 0});
  };
  enter(start);
  while (!steps.empty()) {
    Step& step = steps.back();
    if (step.next == nodes_[step.node].after.size()) {
      order_.push_back(step.node);
      steps.pop_back();
    } else {
      enter(nodes_[step.node].after[step.next++]);
    }
  }
}

std::vector<std::size_t> Structure::edges_of(std::size_t number) {
  const Names& names = Names::get();
  const nb::object node = nodes_[number].node;
  std::vector<std::size_t> after;
  if (nodes_[number].kind != Kind::inner) {
    const bool is_leaf = nodes_[number].kind == Kind::leaf;
    nb::object end = get(node, is_leaf ? names.variable : names.received);
    nodes_[number].end = std::move(end);
    return after;
  }
  const nb::object edges = get(node, names.next_functions);
  for (Py_ssize_t i = 0; i < PyTuple_Size(edges.ptr()); ++i)
    if (const nb::object target = item(item(edges, i), 0); !target.is_none())
      after.push_back(number_of(target));
  return after;
}

void Structure::find_hooks() {
  const nb::object has_hooks = call_python([] { return nb::object(Names::get().hook_finder()); });
  if (has_hooks.is_none()) return;
  for (Node& node : nodes_)
    if (node.kind == Kind::leaf)
      node.is_hooked = is_true(call_python([&] { return nb::object(has_hooks(node.node, node.end)); }));
}

void Structure::find_reach() {
  for (std::size_t i = 0; i < sources_.size(); ++i)
    for (const SourceEdge& edge : sources_[i].edges) nodes_[edge.node].reach.add(i);
  for (auto at = order_.rbegin(); at != order_.rend(); ++at)
    for (const std::size_t target : nodes_[*at].after) nodes_[target].reach |= nodes_[*at].reach;
}

void Structure::find_components() {
  DisjointSets sets(sources_.size());
  std::optional<std::size_t> hooked;  // a source that reaches a leaf whose node has hooks
  for (const std::size_t number : order_) {
    if (is_plain_leaf(nodes_[number])) continue;
    std::optional<std::size_t> first;
    if (nodes_[number].is_hooked) first = hooked;
    nodes_[number].reach.each([&](std::size_t source) {
      if (first) sets.join(*first, source);
      else first = source;
    });
    if (nodes_[number].is_hooked) hooked = first;
  }
  constexpr std::size_t kNone = ~std::size_t{0};
  std::vector<std::size_t> part_of(sources_.size(), kNone);  // indexed by the first source of a set
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    std::size_t& part = part_of[sets.find(i)];
    if (part == kNone) {
      part = parts_.size();
      parts_.emplace_back();
    }
    sources_[i].component = part;
    parts_[part].sources.add(i);
  }
}

void Structure::find_outputs() {
  std::size_t ends = 0;
  for (const std::size_t number : order_) {
    Node& node = nodes_[number];
    for (const std::size_t target : node.after) node.leads |= nodes_[target].leads;
    if (node.kind == Kind::inner) continue;
    const std::size_t end = ends++;
    node.leads.add(end);
    node.reach.each([&](std::size_t source) {
      std::vector<Output>& outputs = parts_[sources_[source].component].outputs;
      if (outputs.empty() || outputs.back().node != number) outputs.push_back({number, end, {}});
      outputs.back().need.add(source);
    });
  }
  Bits hooked;  // the sources that reach leaves whose nodes have hooks
  for (const Node& node : nodes_)
    if (node.is_hooked) hooked |= node.reach;
  for (Part& part : parts_)
    for (Output& output : part.outputs)
      if (nodes_[output.node].is_hooked) output.need = hooked;
}

// --- where a later stage begins

std::optional<std::vector<std::size_t>> Structure::find_cut(const std::vector<std::size_t>& starts,
                                                            const Bits& wanted,
                                                            const Bits& remaining) const {
  const std::vector<bool> now = running(starts, wanted);
  std::vector<bool> is_cut(nodes_.size());
  std::vector<std::size_t> cut;
  for (const std::size_t number : order_) {
    const std::vector<std::size_t>& after = nodes_[number].after;
    is_cut[number] = now[number] && std::any_of(after.begin(), after.end(), [&](std::size_t target) {
                       return !now[target] && nodes_[target].leads.meets(remaining);
                     });
    if (is_cut[number]) cut.push_back(number);
  }
  for (const std::size_t number : cut)
    if (leads_into(number, is_cut, now)) return std::nullopt;
  return cut;
}

/// Returns, for each node, whether gradients pass through it on the way from `starts` to `wanted`.
std::vector<bool> Structure::running(const std::vector<std::size_t>& starts, const Bits& wanted) const {
  std::vector<bool> found(nodes_.size());
  std::vector<std::size_t> stack = starts;
  while (!stack.empty()) {
    const std::size_t number = stack.back();
    const Node& node = nodes_[number];
    stack.pop_back();
    if (found[number] || node.after.empty() || !node.leads.meets(wanted)) continue;
    found[number] = true;
    stack.insert(stack.end(), node.after.begin(), node.after.end());
  }
  return found;
}

bool Structure::leads_into(std::size_t from, const std::vector<bool>& targets,
                           const std::vector<bool>& running) const {
  std::vector<bool> seen(nodes_.size());
  std::vector<std::size_t> stack = nodes_[from].after;
  while (!stack.empty()) {
    const std::size_t number = stack.back();
    stack.pop_back();
    if (!running[number] || seen[number]) continue;
    if (targets[number]) return true;
    seen[number] = true;
    stack.insert(stack.end(), nodes_[number].after.begin(), nodes_[number].after.end());
  }
  return false;
}

int Structure::traverse(visitproc visit, void* arg) const {
  for (const Node& node : nodes_) {
    Py_VISIT(node.node.ptr());
    Py_VISIT(node.end.ptr());
  }
  for (const Source& source : sources_)
    for (const SourceEdge& edge : source.edges) Py_VISIT(edge.edge.ptr());
  return 0;
}

}  // namespace onecopy::python::autograd
