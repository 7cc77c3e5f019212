// SPDX-License-Identifier: Apache-2.0
#include "autograd/evaluation.h"

#include <algorithm>
#include <utility>

#include "autograd/engine_call.h"
#include "autograd/names.h"
#include "autograd/tensors.h"
#include "binding/gil.h"

namespace onecopy::python::autograd {

/// Holds a component's lock. Waits for the lock without the GIL, which the holder may need.
class Evaluation::Holding {
 public:
  explicit Holding(Component& component) NO_THREAD_SAFETY_ANALYSIS : lock_(component.lock) {
    if (!lock_.try_lock()) without_gil([this]() NO_THREAD_SAFETY_ANALYSIS { lock_.lock(); });
  }
  Holding& operator=(Holding&&) = delete;
  ~Holding() NO_THREAD_SAFETY_ANALYSIS { lock_.unlock(); }

 private:
  Mutex& lock_;
};

Evaluation::Evaluation(nb::object context, std::size_t worker, nb::handle sent, nb::handle roots,
                       nb::object engine, bool retain)
    : context_(std::move(context)), worker_(worker), engine_(std::move(engine)), retains_(retain) {
  std::vector<nb::object> edges;
  const auto add = [&](const nb::object& key, nb::object of_key) {
    sources_[key] = edges.size();
    edges.push_back(std::move(of_key));
  };
  if (nb::len(roots) > 0) add(nb::none(), nb::borrow(roots));
  for (const nb::handle one : nb::borrow<nb::list>(sent))
    add(get(one, Names::get().message_id), get(one, Names::get().edges));
  structure_ = std::make_unique<Structure>(edges);
  for (const Structure::Part& part : structure_->parts())
    components_.push_back(std::unique_ptr<Component>(new Component{part.sources, part.outputs}));
}

std::optional<std::size_t> Evaluation::find(nb::handle key) const {
  PyObject* const number = PyDict_GetItemWithError(sources_.ptr(), key.ptr());
  if (number) return nb::cast<std::size_t>(nb::handle(number));
  if (PyErr_Occurred()) throw nb::python_error();
  return std::nullopt;
}

Bits Evaluation::here() const {
  Bits here = arrived_;
  return here |= dead_;
}

Bits Evaluation::leads_from(const std::vector<Item>& items) const {
  Bits leads;
  for (const Item& item : items) leads |= structure_->node(item.node).leads;
  return leads;
}

// --- steps

Evaluation::Step Evaluation::take(nb::handle arrived) {
  Step step;
  for (const nb::handle pair : nb::borrow<nb::list>(arrived)) take_one(item(pair, 0), item(pair, 1), step);
  return step;
}

void Evaluation::take_one(nb::handle key, nb::handle gradients, Step& step) {
  const auto source = find(key);
  if (!source) {
    PyErr_Format(PyExc_RuntimeError,
                 "gradients came for message %S, which this worker has not sent in this pass", key.ptr());
    throw nb::python_error();
  }
  Component& component = component_of(*source);
  const Holding holding(component);
  arrived_.add(*source);
  Py_ssize_t at = 0;
  for (const SourceEdge& edge : structure_->sources()[*source].edges)
    if (nb::object gradient = item(gradients, at++); !gradient.is_none())
      component.items.push_back({edge.node, edge.edge, std::move(gradient)});
  advance(component, step);
}

Evaluation::Step Evaluation::resolve() {
  Bits dead;
  for (std::size_t i = 0; i < structure_->sources().size(); ++i)
    if (!arrived_.has(i) && !live_.has(i)) dead.add(i);
  dead_ = std::move(dead);
  Step step;
  for (const auto& component : components_) {
    const Holding holding(*component);
    advance(*component, step);
  }
  return step;
}

/// Fires the outputs that can fire. REQUIRES: the component's lock.
void Evaluation::advance(Component& component, Step& step) {
  const Bits here = this->here();
  if (!component.items.empty()) evaluate(component, here, step);
  fire_without_gradients(component, here, step.fired);
  const bool was_blocked = std::exchange(component.is_blocked, is_blocked(component, here));
  step.change += static_cast<int>(component.is_blocked) - static_cast<int>(was_blocked);
}

bool Evaluation::is_blocked(const Component& component, const Bits& here) const {
  Bits waiting = component.sources;
  waiting -= here;
  return !waiting.is_empty() && !owed_by(component, waiting).empty();
}

/// Returns the outputs that wait for more gradients: leaves that a gradient reaches, and all received tensors, since a
/// mark may have told their sender that gradients will come.
std::vector<const Output*> Evaluation::owed_by(const Component& component, const Bits& waiting) const {
  const Bits reached = leads_from(component.items);
  std::vector<const Output*> owed;
  for (const Output& output : component.outputs)
    if (!output.has_fired && output.need.meets(waiting) && output.need.meets(arrived_) &&
        (is_received(output) || reached.has(output.end)))
      owed.push_back(&output);
  return owed;
}

/// Fires received tensors that no gradient can reach any longer, so that their sender does not wait.
void Evaluation::fire_without_gradients(Component& component, const Bits& here, nb::list& fired) const {
  const Bits reached = leads_from(component.items);
  for (Output& output : component.outputs) {
    if (output.has_fired || !is_received(output) || !output.need.is_within(here) ||
        !output.need.meets(arrived_) || reached.has(output.end))
      continue;
    output.has_fired = true;
    nb::list nothing;
    for (std::size_t i = count_of(output); i > 0; --i) nothing.append(nb::none());
    fired.append(nb::make_tuple(end_of(output), nothing));
  }
}

// --- evaluation

void Evaluation::evaluate(Component& component, const Bits& here, Step& step) {
  const Stage stage = next_stage(component, here);
  if (stage.outputs.empty()) return;
  const std::vector<Item> roots = leading_to(component, stage.wanted);
  std::optional<std::vector<std::size_t>> cut{std::in_place};
  if (!stage.remaining.is_empty()) {
    std::vector<std::size_t> starts(roots.size());
    std::transform(roots.begin(), roots.end(), starts.begin(), [](const Item& root) { return root.node; });
    cut = structure_->find_cut(starts, stage.wanted, stage.remaining);
  }
  // Without a cut, the nodes run again in the later stage.
  const bool keeps = retains_ || !cut || !cut->empty();
  Caught caught = run(roots, stage.outputs, cut.value_or(std::vector<std::size_t>{}), keeps);
  if (cut) keep_rest(component, stage, std::move(caught.at_cut));
  accumulate(stage.outputs, caught.at_outputs, roots, step.hooked);
  for (std::size_t i = 0; i < stage.outputs.size(); ++i) {
    if (!is_received(*stage.outputs[i])) continue;
    nb::list gradients;
    for (const nb::object& gradient : caught.at_outputs[i]) gradients.append(row_major(gradient));
    step.fired.append(nb::make_tuple(end_of(*stage.outputs[i]), gradients));
  }
}

/// Returns the next stage, whose outputs are marked as fired.
Evaluation::Stage Evaluation::next_stage(Component& component, const Bits& here) const {
  const Bits reached = leads_from(component.items);
  Stage stage;
  for (Output& output : component.outputs) {
    if (output.has_fired || !reached.has(output.end)) continue;
    output.has_fired = output.need.is_within(here);
    (output.has_fired ? stage.wanted : stage.remaining).add(output.end);
    if (output.has_fired) stage.outputs.push_back(&output);
  }
  return stage;
}

std::vector<Evaluation::Item> Evaluation::leading_to(const Component& component, const Bits& wanted) const {
  std::vector<Item> found;
  for (const Item& item : component.items)
    if (structure_->node(item.node).leads.meets(wanted)) found.push_back(item);
  return found;
}

/// Stores the items from which the outputs of later stages are evaluated.
void Evaluation::keep_rest(Component& component, const Stage& stage, std::vector<Item> at_cut) const {
  std::vector<Item> rest;
  for (const Item& item : component.items) {
    const Bits& leads = structure_->node(item.node).leads;
    if (!leads.meets(stage.wanted) && leads.meets(stage.remaining)) rest.push_back(item);
  }
  for (Item& item : at_cut) rest.push_back(std::move(item));
  component.items.swap(rest);
}

Evaluation::Caught Evaluation::run(const std::vector<Item>& roots, const Outputs& outputs,
                                   const std::vector<std::size_t>& cut, bool keeps) const {
  EngineCall engine;
  for (const Item& root : roots) engine.give(root.edge, root.gradient);
  for (const Output* output : outputs) engine.want(structure_->node(output->node).node, count_of(*output));
  for (const std::size_t number : cut) {
    const nb::object& node = structure_->node(number).node;
    engine.want(node, nb::len(get(node, Names::get().input_metadata)));
  }
  Caught caught{run(engine, keeps), {}};
  for (std::size_t i = 0; i < cut.size(); ++i) {
    const std::vector<nb::object>& gradients = caught.at_outputs[outputs.size() + i];
    for (std::size_t input = 0; input < gradients.size(); ++input)
      if (!gradients[input].is_none())
        caught.at_cut.push_back({cut[i], edge_to(structure_->node(cut[i]).node, input), gradients[input]});
  }
  caught.at_outputs.resize(outputs.size());
  return caught;
}

Evaluation::Gradients Evaluation::run(const EngineCall& engine, bool keeps) const {
  try {
    return engine.run(engine_, keeps);
  } catch (nb::python_error& error) {
    if (!error.matches(PyExc_Exception)) throw;
    const nb::object cause = nb::borrow(error.value());
    nb::raise_from(error, PyExc_RuntimeError, "Error on Node %zu: %S", worker_, cause.ptr());
  }
}

std::size_t Evaluation::count_of(const Output& output) const {
  return is_received(output) ? nb::cast<std::size_t>(get(end_of(output), Names::get().count)) : 1;
}

/// Adds the gradients of leaves to the context, or to `hooked`.
void Evaluation::accumulate(const Outputs& outputs, const Gradients& gradients,
                            const std::vector<Item>& roots, nb::list& hooked) const {
  const auto is_of_leaf = [&](std::size_t i) {
    return !is_received(*outputs[i]) && !gradients[i][0].is_none();
  };
  bool has_leaf = false;
  for (std::size_t i = 0; i < outputs.size(); ++i) has_leaf = has_leaf || is_of_leaf(i);
  if (!has_leaf) return;
  MemoryUsers users;
  for (const auto& part : gradients)
    for (const nb::object& gradient : part) users.add(gradient);
  for (const Item& root : roots) users.add(root.gradient);
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (!is_of_leaf(i)) continue;
    const Structure::Node& node = structure_->node(outputs[i]->node);
    if (node.is_hooked) hooked.append(nb::make_tuple(node.end, gradients[i][0]));
    else call(context_, Names::get().accumulate, node.end, users.own(gradients[i][0]));
  }
}

// --- marks

nb::list Evaluation::mark(nb::handle key) {
  const auto source = find(key);
  if (!source) {
    PyErr_SetObject(PyExc_KeyError, key.ptr());
    throw nb::python_error();
  }
  nb::list owed;
  if (live_.has(*source) || arrived_.has(*source)) return owed;
  live_.add(*source);
  Bits reached;
  for (const SourceEdge& edge : structure_->sources()[*source].edges)
    reached |= structure_->node(edge.node).leads;
  for (const Output& output : component_of(*source).outputs)
    if (is_received(output) && !output.has_fired && reached.has(output.end)) owed.append(end_of(output));
  return owed;
}

nb::list Evaluation::owed() {
  nb::list owed;
  for (const auto& component : components_) {
    const Holding holding(*component);
    if (!component->is_blocked) continue;
    Bits waiting = component->sources;
    waiting -= here();
    for (const Output* output : owed_by(*component, waiting))
      if (is_received(*output)) owed.append(end_of(*output));
  }
  return owed;
}

// --- the collector

int Evaluation::traverse(visitproc visit, void* arg) const {
  Py_VISIT(context_.ptr());
  Py_VISIT(engine_.ptr());
  Py_VISIT(sources_.ptr());
  if (structure_)
    if (const int result = structure_->traverse(visit, arg)) return result;
  for (const auto& component : components_)
    for (const Item& item : component->items) {
      Py_VISIT(item.edge.ptr());
      Py_VISIT(item.gradient.ptr());
    }
  return 0;
}

}  // namespace onecopy::python::autograd
