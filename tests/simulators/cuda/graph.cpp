// SPDX-License-Identifier: Apache-2.0
// Captured graphs: their nodes, and the parameters of kernels, which can be set in executables.
#include "graph.h"

#include <algorithm>
#include <cstring>

using namespace sim;

namespace sim {

namespace {

Node* node_of(CUgraphNode handle) { return reinterpret_cast<Node*>(handle); }
CUgraphNode handle_of(const std::shared_ptr<Node>& node) {
  return reinterpret_cast<CUgraphNode>(node.get());
}

}  // namespace

CUresult Node::set(const CUDA_KERNEL_NODE_PARAMS& parameters) {
  if (!parameters.func) return CUDA_ERROR_INVALID_HANDLE;
  if (!parameters.kernelParams) return CUDA_ERROR_INVALID_VALUE;
  kernel = static_cast<Kernel*>(parameters.func);
  grid = {parameters.gridDimX, parameters.gridDimY, parameters.gridDimZ};
  bytes.assign(kernel->bytes(), std::byte{});
  for (std::size_t i = 0; i < kernel->parameters.size(); ++i) {
    const auto& [offset, size] = kernel->parameters[i];
    std::memcpy(bytes.data() + offset, parameters.kernelParams[i], size);
  }
  return CUDA_SUCCESS;
}

CUresult Node::submit(Stream& stream) const {
  if (!kernel) return work(stream);
  if (kernel->context != stream.context) return CUDA_ERROR_INVALID_HANDLE;
  kernel->note(bytes.data(), grid, stream);
  return stream.submit(
      [kernel = kernel, bytes = bytes, grid = grid] { kernel->run(bytes.data(), grid, *kernel->context); });
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
  node->work = [operation = std::move(operation)](Stream& stream) { return stream.submit(operation); };
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

SIM_CALL cuGraphExecKernelNodeSetParams_v2(CUgraphExec graph, CUgraphNode node,
                                           const CUDA_KERNEL_NODE_PARAMS* parameters) {
  SIM_ENTER(cuGraphExecKernelNodeSetParams);
  Node* const found = graph ? reinterpret_cast<Executable*>(graph)->find(node) : nullptr;
  if (!found || !parameters || !found->kernel) return CUDA_ERROR_INVALID_VALUE;
  return found->set(*parameters);
}
