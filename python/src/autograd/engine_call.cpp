// SPDX-License-Identifier: Apache-2.0
#include "autograd/engine_call.h"

#include "autograd/names.h"

namespace onecopy::python::autograd {

nb::object edge_to(nb::handle node, std::size_t input) {
  return call_python([&] { return nb::object(Names::get().gradient_edge(node, input)); });
}

void EngineCall::give(const nb::object& edge, const nb::object& gradient) {
  edges_.append(edge);
  gradients_.append(gradient);
}

void EngineCall::want(nb::handle node, std::size_t inputs) {
  for (std::size_t i = 0; i < inputs; ++i) wanted_.append(edge_to(node, i));
  counts_.push_back(inputs);
}

std::vector<std::vector<nb::object>> EngineCall::run(const nb::object& engine, bool keeps) const {
  constexpr bool kCreatesGraph = false, kAllowsUnreachable = true, kAccumulates = false;
  const nb::object caught = call_python([&] {
    return nb::object(engine(nb::tuple(edges_), nb::tuple(gradients_), keeps, kCreatesGraph,
                             nb::tuple(wanted_), kAllowsUnreachable, kAccumulates));
  });
  std::vector<std::vector<nb::object>> parts;
  Py_ssize_t at = 0;
  for (const std::size_t count : counts_) {
    std::vector<nb::object>& part = parts.emplace_back();
    for (std::size_t i = 0; i < count; ++i) part.push_back(item(caught, at++));
  }
  return parts;
}

}  // namespace onecopy::python::autograd
