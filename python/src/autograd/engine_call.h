// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include "binding/module.h"

namespace onecopy::python::autograd {

/// Returns torch's GradientEdge of an input of a node.
nb::object edge_to(nb::handle node, std::size_t input);

/// A run of torch's engine: edges where gradients go in, and nodes where gradients are caught.
/// Thread safety: used with the GIL held, which the engine releases while it runs.
class EngineCall {
 public:
  void give(const nb::object& edge, const nb::object& gradient);
  /// Lets the engine catch the gradients of a node's first `inputs` inputs. Catching does not make the node run.
  void want(nb::handle node, std::size_t inputs);

  /// Runs the engine and returns the gradients, or None, of each want(). `engine` is torch's run_backward(). Without
  /// `keeps` the part of the graph that ran cannot run again.
  std::vector<std::vector<nb::object>> run(const nb::object& engine, bool keeps) const;

 private:
  nb::list edges_, gradients_, wanted_;
  std::vector<std::size_t> counts_;
};

}  // namespace onecopy::python::autograd
