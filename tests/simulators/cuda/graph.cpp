// SPDX-License-Identifier: Apache-2.0
// Captured graphs: their nodes, with parameters that can be asked for and set in executables.
#include "graph.h"

#include <algorithm>
#include <cstring>

using namespace sim;

namespace sim {

namespace {

constexpr int kHostNode = 3;

Node* node_of(CUgraphNode handle) { return reinterpret_cast<Node*>(handle); }
CUgraphNode handle_of(const std::shared_ptr<Node>& node) {
  return reinterpret_cast<CUgraphNode>(node.get());
}

/// The buffer that a launch has its parameters in; none when it has them one by one.
const void* packed(void** extra, std::size_t& bytes) {
  const void* buffer = nullptr;
  for (; extra && *extra != kLaunchParamEnd; extra += 2) {
    if (*extra == kLaunchParamBufferPointer) buffer = extra[1];
    if (*extra == kLaunchParamBufferSize) bytes = *static_cast<const std::size_t*>(extra[1]);
  }
  return buffer;
}

}  // namespace

CUresult Node::set(const CUDA_KERNEL_NODE_PARAMS& parameters) {
  if (!parameters.func) return CUDA_ERROR_INVALID_HANDLE;
  auto* const called = static_cast<Kernel*>(parameters.func);
  std::vector<std::byte> all(called->bytes());
  if (parameters.kernelParams) {
    for (std::size_t i = 0; i < called->parameters.size(); ++i) {
      const auto& [offset, size] = called->parameters[i];
      std::memcpy(all.data() + offset, parameters.kernelParams[i], size);
    }
  } else {
    std::size_t size = 0;
    const void* buffer = packed(parameters.extra, size);
    if (!buffer || size != all.size()) return CUDA_ERROR_INVALID_VALUE;
    std::memcpy(all.data(), buffer, size);
  }
  type = CU_GRAPH_NODE_TYPE_KERNEL;
  kernel = called;
  launch = parameters;
  bytes = std::move(all);
  pointers.clear();
  for (const Kernel::Parameter& parameter : called->parameters)
    pointers.push_back(bytes.data() + parameter.offset);
  launch.extra = nullptr;
  return CUDA_SUCCESS;
}

CUresult Node::submit(Stream& stream) const {
  switch (type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
      if (kernel->context != stream.context) return CUDA_ERROR_INVALID_HANDLE;
      kernel->note(bytes.data(), {launch.gridDimX, launch.gridDimY, launch.gridDimZ}, stream);
      return stream.submit([kernel = kernel, bytes = bytes,
                            grid = std::array{launch.gridDimX, launch.gridDimY, launch.gridDimZ}] {
        kernel->run(bytes.data(), grid, *kernel->context);
      });
    case CU_GRAPH_NODE_TYPE_MEMCPY: return submit_copy(stream, copy);
    case CU_GRAPH_NODE_TYPE_MEMSET: return submit_fill(stream, fill);
    default: return stream.submit(operation);
  }
}

Node* Executable::find(CUgraphNode node) {
  const auto found = std::find(origins.begin(), origins.end(), node_of(node));
  return found == origins.end() ? nullptr : &nodes[static_cast<std::size_t>(found - origins.begin())];
}

CUresult record_or_submit(Stream& stream, std::shared_ptr<Node> node) {
  if (!stream.capture) return node->submit(stream);
  if (stream.capture->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  stream.capture->nodes.push_back(std::move(node));
  return CUDA_SUCCESS;
}

std::shared_ptr<Node> host_node(Operation operation) {
  auto node = std::make_shared<Node>();
  node->type = kHostNode;
  node->operation = std::move(operation);
  return node;
}

}  // namespace sim

SIM_CALL cuStreamGetCaptureInfo_v3(CUstream handle, int* status, unsigned long long* id, CUgraph* graph,
                                   const CUgraphNode** last, const CUgraphEdgeData** kinds,
                                   std::size_t* count) {
  SIM_ENTER(cuStreamGetCaptureInfo);
  const Stream* stream = Stream::find(handle);
  if (!stream || !status) return CUDA_ERROR_INVALID_HANDLE;
  thread_local CUgraphNode newest = nullptr;
  const Capture* const capture = stream->capture.get();
  *status = !capture           ? CU_STREAM_CAPTURE_STATUS_NONE
            : capture->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                               : CU_STREAM_CAPTURE_STATUS_ACTIVE;
  if (*status != CU_STREAM_CAPTURE_STATUS_ACTIVE) return CUDA_SUCCESS;
  if (id) *id = reinterpret_cast<std::uintptr_t>(capture);
  if (graph) *graph = nullptr;  // nothing here needs it before the capture ends
  if (!capture->nodes.empty()) newest = handle_of(capture->nodes.back());
  if (last) *last = &newest;
  if (kinds) *kinds = nullptr;
  if (count) *count = capture->nodes.empty() ? 0 : 1;
  return CUDA_SUCCESS;
}

SIM_CALL cuGraphInstantiateWithFlags(CUgraphExec* made, CUgraph handle, unsigned long long) {
  SIM_ENTER(cuGraphInstantiateWithFlags);
  if (!made || !handle) return CUDA_ERROR_INVALID_VALUE;
  auto* executable = new Executable;
  for (const auto& node : reinterpret_cast<Graph*>(handle)->nodes) {
    executable->nodes.push_back(*node);
    executable->origins.push_back(node.get());
  }
  *made = reinterpret_cast<CUgraphExec>(executable);
  return CUDA_SUCCESS;
}

SIM_CALL cuGraphLaunch(CUgraphExec graph, CUstream handle) {
  SIM_ENTER(cuGraphLaunch);
  Stream* stream = Stream::find(handle);
  if (!stream) return CUDA_ERROR_INVALID_HANDLE;
  if (!graph) return CUDA_ERROR_INVALID_VALUE;
  for (const Node& node : reinterpret_cast<Executable*>(graph)->nodes)
    if (const CUresult result = record_or_submit(*stream, std::make_shared<Node>(node))) return result;
  return CUDA_SUCCESS;
}

SIM_CALL cuGraphDestroy(CUgraph graph) {
  SIM_ENTER(cuGraphDestroy);
  delete reinterpret_cast<Graph*>(graph);
  return CUDA_SUCCESS;
}

SIM_CALL cuGraphExecDestroy(CUgraphExec graph) {
  SIM_ENTER(cuGraphExecDestroy);
  delete reinterpret_cast<Executable*>(graph);
  return CUDA_SUCCESS;
}

SIM_CALL cuGraphGetNodes(CUgraph handle, CUgraphNode* nodes, std::size_t* count) {
  SIM_ENTER(cuGraphGetNodes);
  if (!handle || !count) return CUDA_ERROR_INVALID_VALUE;
  const auto& all = reinterpret_cast<Graph*>(handle)->nodes;
  if (nodes)
    for (std::size_t i = 0; i < std::min(*count, all.size()); ++i) nodes[i] = handle_of(all[i]);
  *count = all.size();
  return CUDA_SUCCESS;
}

SIM_CALL cuGraphGetEdges_v2(CUgraph handle, CUgraphNode* from, CUgraphNode* to, CUgraphEdgeData* kinds,
                            std::size_t* count) {
  SIM_ENTER(cuGraphGetEdges);
  if (!handle || !count) return CUDA_ERROR_INVALID_VALUE;
  const auto& all = reinterpret_cast<Graph*>(handle)->nodes;
  const std::size_t edges = all.empty() ? 0 : all.size() - 1;
  for (std::size_t i = 0; from && to && i < std::min(*count, edges); ++i) {
    from[i] = handle_of(all[i]);
    to[i] = handle_of(all[i + 1]);
    if (kinds) kinds[i] = {};
  }
  *count = edges;
  return CUDA_SUCCESS;
}

SIM_CALL cuGraphNodeGetType(CUgraphNode node, int* type) {
  SIM_ENTER(cuGraphNodeGetType);
  if (!node || !type) return CUDA_ERROR_INVALID_VALUE;
  *type = node_of(node)->type;
  return CUDA_SUCCESS;
}

SIM_CALL cuGraphKernelNodeGetParams_v2(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS* parameters) {
  SIM_ENTER(cuGraphKernelNodeGetParams);
  if (!node || !parameters || node_of(node)->type != CU_GRAPH_NODE_TYPE_KERNEL)
    return CUDA_ERROR_INVALID_VALUE;
  *parameters = node_of(node)->launch;
  parameters->kernelParams = node_of(node)->pointers.data();
  return CUDA_SUCCESS;
}

SIM_CALL cuGraphExecKernelNodeSetParams_v2(CUgraphExec graph, CUgraphNode node,
                                           const CUDA_KERNEL_NODE_PARAMS* parameters) {
  SIM_ENTER(cuGraphExecKernelNodeSetParams);
  Node* const found = graph ? reinterpret_cast<Executable*>(graph)->find(node) : nullptr;
  if (!found || !parameters || found->type != CU_GRAPH_NODE_TYPE_KERNEL) return CUDA_ERROR_INVALID_VALUE;
  return found->set(*parameters);
}

SIM_CALL cuGraphMemcpyNodeGetParams(CUgraphNode node, CUDA_MEMCPY3D* parameters) {
  SIM_ENTER(cuGraphMemcpyNodeGetParams);
  if (!node || !parameters || node_of(node)->type != CU_GRAPH_NODE_TYPE_MEMCPY)
    return CUDA_ERROR_INVALID_VALUE;
  *parameters = node_of(node)->copy;
  return CUDA_SUCCESS;
}

SIM_CALL cuGraphExecMemcpyNodeSetParams(CUgraphExec graph, CUgraphNode node,
                                        const CUDA_MEMCPY3D* parameters, CUcontext) {
  SIM_ENTER(cuGraphExecMemcpyNodeSetParams);
  Node* const found = graph ? reinterpret_cast<Executable*>(graph)->find(node) : nullptr;
  if (!found || !parameters || found->type != CU_GRAPH_NODE_TYPE_MEMCPY) return CUDA_ERROR_INVALID_VALUE;
  found->copy = *parameters;
  return CUDA_SUCCESS;
}

SIM_CALL cuGraphMemsetNodeGetParams(CUgraphNode node, CUDA_MEMSET_NODE_PARAMS* parameters) {
  SIM_ENTER(cuGraphMemsetNodeGetParams);
  if (!node || !parameters || node_of(node)->type != CU_GRAPH_NODE_TYPE_MEMSET)
    return CUDA_ERROR_INVALID_VALUE;
  *parameters = node_of(node)->fill;
  return CUDA_SUCCESS;
}

SIM_CALL cuGraphExecMemsetNodeSetParams(CUgraphExec graph, CUgraphNode node,
                                        const CUDA_MEMSET_NODE_PARAMS* parameters, CUcontext) {
  SIM_ENTER(cuGraphExecMemsetNodeSetParams);
  Node* const found = graph ? reinterpret_cast<Executable*>(graph)->find(node) : nullptr;
  if (!found || !parameters || found->type != CU_GRAPH_NODE_TYPE_MEMSET) return CUDA_ERROR_INVALID_VALUE;
  found->fill = *parameters;
  return CUDA_SUCCESS;
}

SIM_CALL cuFuncGetName(const char** name, void* function) {
  SIM_ENTER(cuFuncGetName);
  if (!name || !function) return CUDA_ERROR_INVALID_VALUE;
  *name = static_cast<Kernel*>(function)->name;
  return CUDA_SUCCESS;
}

SIM_CALL cuFuncGetParamInfo(void* function, std::size_t index, std::size_t* offset, std::size_t* bytes) {
  SIM_ENTER(cuFuncGetParamInfo);
  if (!function || !offset || !bytes) return CUDA_ERROR_INVALID_VALUE;
  const auto& parameters = static_cast<Kernel*>(function)->parameters;
  if (index >= parameters.size()) return CUDA_ERROR_INVALID_VALUE;
  *offset = parameters[index].offset;
  *bytes = parameters[index].bytes;
  return CUDA_SUCCESS;
}

/// Kernels here are all functions.
SIM_CALL cuKernelGetName(const char**, void*) {
  SIM_ENTER(cuKernelGetName);
  return CUDA_ERROR_INVALID_HANDLE;
}

SIM_CALL cuKernelGetParamInfo(void*, std::size_t, std::size_t*, std::size_t*) {
  SIM_ENTER(cuKernelGetParamInfo);
  return CUDA_ERROR_INVALID_HANDLE;
}
