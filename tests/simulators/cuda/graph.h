// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <vector>

#include "extra_calls.h"
#include "stream.h"

namespace sim {

/// The effect of a kernel's parameters, and where they lie in them.
struct Kernel {
  struct Parameter {
    std::size_t offset;
    std::size_t bytes;
  };

  const char* name;
  std::vector<Parameter> parameters;
  void (*run)(const std::byte* bytes, std::array<unsigned, 3> grid, Context& context);
  /// Notes the addresses that it will use.
  void (*note)(const std::byte* bytes, std::array<unsigned, 3> grid, Stream& stream);
  Context* context = nullptr;

  std::size_t bytes() const { return parameters.back().offset + parameters.back().bytes; }
};

/// One node of a graph, which is also how work gets into a stream.
struct Node {
  std::function<CUresult(Stream&)> work;  ///< puts the work of a node without a kernel into a stream
  Kernel* kernel = nullptr;
  std::array<unsigned, 3> grid{};
  std::vector<std::byte> bytes;  ///< of the kernel's parameters

  /// Takes the parameters of a launch over. Returns an error for launches that the driver refuses.
  CUresult set(const CUDA_KERNEL_NODE_PARAMS& parameters);
  /// Puts its work into a stream.
  CUresult submit(Stream& stream) const;
};

/// Each node comes after the one before.
struct Graph {
  std::vector<std::shared_ptr<Node>> nodes;
};

struct Executable {
  std::vector<Node> nodes;
  std::vector<const Node*> origins;  ///< in its graph

  Node* find(CUgraphNode node);
};

/// Records the node where the stream is captured; else its work goes into the stream.
CUresult record_or_submit(Stream& stream, std::shared_ptr<Node> node);

}  // namespace sim
