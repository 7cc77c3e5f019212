// SPDX-License-Identifier: Apache-2.0
#include "graphs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "copy_kernel.h"
#include "devices.h"
#include "onecopy/core/error.h"
#include "os/mutex.h"

namespace onecopy::cuda {

namespace {

class CudaMark final : public StreamMark {
 public:
  explicit CudaMark(int ordinal) : ordinal_(ordinal), driver_(Driver::get()) {
    const UseContext use(ordinal_);
    driver_.cuEventCreate.must(&event_, CU_EVENT_DISABLE_TIMING);
  }
  ~CudaMark() override {
    try {
      const UseDevice use(ordinal_);
      driver_.cuEventDestroy(event_);
    } catch (const Error&) {  // a forked child has no events
    }
  }
  void record(Stream stream) override {
    const UseContext use(ordinal_);
    driver_.cuEventRecord.must(event_, static_cast<CUstream>(stream.native));
  }
  void let_wait(Stream stream) override {
    const UseContext use(ordinal_);
    driver_.cuStreamWaitEvent.must(static_cast<CUstream>(stream.native), event_, 0);
  }
  void wait() override {
    const UseDevice use(ordinal_);
    driver_.cuEventSynchronize.must(event_);
  }

 private:
  const int ordinal_;
  const Driver& driver_;
  CUevent event_ = nullptr;
};

template <class Value>
std::vector<std::byte> bytes_of(const Value& value) {
  const auto* begin = reinterpret_cast<const std::byte*>(&value);
  return {begin, begin + sizeof value};
}

/// The kernel's parameters if a launch has them in one buffer; empty otherwise.
std::span<const std::byte> packed_parameters(void** extra) {
  const void* buffer = nullptr;
  std::size_t bytes = 0;
  for (; extra && *extra != kLaunchParamEnd; extra += 2) {
    if (*extra == kLaunchParamBufferPointer) buffer = extra[1];
    if (*extra == kLaunchParamBufferSize) bytes = *static_cast<const std::size_t*>(extra[1]);
  }
  if (!buffer) return {};
  return {static_cast<const std::byte*>(buffer), bytes};
}

/// A kernel's function is one of two kinds of handles.
class KernelInfo {
 public:
  KernelInfo(const Driver& driver, const CUDA_KERNEL_NODE_PARAMS& node) : driver_(driver), node_(node) {}

  std::string name() const {
    const char* text = nullptr;
    const CUresult result =
        node_.func ? driver_.cuFuncGetName(&text, node_.func) : driver_.cuKernelGetName(&text, node_.kern);
    return result == CUDA_SUCCESS && text ? text : "";
  }
  std::vector<RecordedNode::Parameter> parameters() const {
    std::vector<RecordedNode::Parameter> all;
    RecordedNode::Parameter one;
    while (parameter(all.size(), one)) all.push_back(one);
    return all;
  }

 private:
  bool parameter(std::size_t at, RecordedNode::Parameter& one) const {
    const CUresult result = node_.func
                                ? driver_.cuFuncGetParamInfo(node_.func, at, &one.offset, &one.bytes)
                                : driver_.cuKernelGetParamInfo(node_.kern, at, &one.offset, &one.bytes);
    return result == CUDA_SUCCESS;
  }

  const Driver& driver_;
  const CUDA_KERNEL_NODE_PARAMS& node_;
};

void read_kernel(const Driver& driver, RecordedNode& out) {
  CUDA_KERNEL_NODE_PARAMS node{};
  driver.cuGraphKernelNodeGetParams.must(static_cast<CUgraphNode>(out.node), &node);
  const KernelInfo info(driver, node);
  out.kind = RecordedNode::Kind::kernel;
  out.name = info.name();
  out.shape = {node.gridDimX,  node.gridDimY,  node.gridDimZ,      node.blockDimX,
               node.blockDimY, node.blockDimZ, node.sharedMemBytes};
  if (!node.kernelParams) {
    const auto packed = packed_parameters(node.extra);
    out.bytes.assign(packed.begin(), packed.end());
    return;
  }
  out.parameters = info.parameters();
  if (out.parameters.empty()) {  // none, or the driver does not tell
    out.kind = RecordedNode::Kind::other;
    out.name = fmt::format("a kernel ({}) of which the driver tells no parameters", out.name);
    return;
  }
  for (std::size_t i = 0; i < out.parameters.size(); ++i) {
    const auto& [offset, bytes] = out.parameters[i];
    if (out.bytes.size() < offset + bytes) out.bytes.resize(offset + bytes);
    std::memcpy(&out.bytes[offset], node.kernelParams[i], bytes);
  }
}

void read_copy(const Driver& driver, RecordedNode& out) {
  CUDA_MEMCPY3D node{};
  driver.cuGraphMemcpyNodeGetParams.must(static_cast<CUgraphNode>(out.node), &node);
  const auto is_on_device = [](unsigned type) {
    return type != CU_MEMORYTYPE_HOST && type != CU_MEMORYTYPE_ARRAY;
  };
  out.name = "a copy with memory of the host";
  if (!is_on_device(node.srcMemoryType) || !is_on_device(node.dstMemoryType)) return;
  out.kind = RecordedNode::Kind::copy;
  out.name = "copy";
  out.bytes = bytes_of(node);
}

void read_fill(const Driver& driver, RecordedNode& out) {
  CUDA_MEMSET_NODE_PARAMS node{};
  driver.cuGraphMemsetNodeGetParams.must(static_cast<CUgraphNode>(out.node), &node);
  out.kind = RecordedNode::Kind::fill;
  out.name = "fill";
  out.bytes = bytes_of(node);
}

RecordedNode read_node(const Driver& driver, CUgraphNode node) {
  RecordedNode out;
  out.node = node;
  int type = 0;
  driver.cuGraphNodeGetType.must(node, &type);
  switch (type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: read_kernel(driver, out); break;
    case CU_GRAPH_NODE_TYPE_MEMCPY: read_copy(driver, out); break;
    case CU_GRAPH_NODE_TYPE_MEMSET: read_fill(driver, out); break;
    case CU_GRAPH_NODE_TYPE_EMPTY: out.kind = RecordedNode::Kind::empty; break;
    default: out.name = fmt::format("a node of type {}", type);
  }
  return out;
}

std::vector<RecordedEdge> read_edges(const Driver& driver, CUgraph graph,
                                     std::span<const CUgraphNode> nodes) {
  std::map<CUgraphNode, std::uint32_t> places;
  for (const CUgraphNode node : nodes) places.emplace(node, static_cast<std::uint32_t>(places.size()));
  std::size_t count = 0;
  driver.cuGraphGetEdges.must(graph, nullptr, nullptr, nullptr, &count);
  std::vector<CUgraphNode> from(count), to(count);
  std::vector<CUgraphEdgeData> kinds(count);
  if (count > 0) driver.cuGraphGetEdges.must(graph, from.data(), to.data(), kinds.data(), &count);
  std::vector<RecordedEdge> edges(count);
  for (std::size_t i = 0; i < count; ++i) {
    edges[i] = {places.at(from[i]), places.at(to[i])};
    static_assert(sizeof kinds[i] == sizeof edges[i].kind);
    std::memcpy(&edges[i].kind, &kinds[i], sizeof kinds[i]);
  }
  std::sort(edges.begin(), edges.end());
  return edges;
}

void set_kernel(const Driver& driver, CUgraphExec executable, const RecordedNode& node) {
  CUDA_KERNEL_NODE_PARAMS parameters{};
  driver.cuGraphKernelNodeGetParams.must(static_cast<CUgraphNode>(node.node), &parameters);
  auto* const bytes = const_cast<std::byte*>(node.bytes.data());
  std::size_t size = node.bytes.size();
  std::vector<void*> each;
  for (const auto& parameter : node.parameters) each.push_back(bytes + parameter.offset);
  void* packed[] = {kLaunchParamBufferPointer, bytes, kLaunchParamBufferSize, &size, kLaunchParamEnd};
  parameters.kernelParams = each.empty() ? nullptr : each.data();
  parameters.extra = each.empty() ? packed : nullptr;
  driver.cuGraphExecKernelNodeSetParams.must(executable, static_cast<CUgraphNode>(node.node), &parameters);
}

template <class Value>
Value value_of(const RecordedNode& node) {
  Value value{};
  std::memcpy(&value, node.bytes.data(), std::min(sizeof value, node.bytes.size()));
  return value;
}

class CudaGraphs final : public GraphDriver {
 public:
  void prepare(int ordinal) override;
  GraphNode copy(int ordinal, Stream stream, std::span<const CopyRange> ranges) override;
  void set_copy(int ordinal, GraphExecutable executable, GraphNode node,
                std::span<const CopyRange> ranges) override;
  void launch(int ordinal, GraphExecutable executable, Stream stream) override;
  void require_read() override;
  Recording read(int ordinal, void* graph) override;
  void set(int ordinal, GraphExecutable executable, const RecordedNode& node) override;
  std::unique_ptr<StreamMark> make_mark(int ordinal) override {
    return std::make_unique<CudaMark>(ordinal);
  }

 private:
  const CopyKernel& kernel(int ordinal);

  Mutex mutex_;
  std::map<int, std::unique_ptr<CopyKernel>> kernels_ GUARDED_BY(mutex_);  ///< by device; none goes
};

void CudaGraphs::prepare(int ordinal) {
  const Driver& driver = Driver::get();
  if (!driver.cuStreamGetCaptureInfo)
    Vendor::throw_missing(driver.cuStreamGetCaptureInfo.name(), driver.cuStreamGetCaptureInfo.since());
  const UseDevice use(ordinal);
  const LockGuard lock(mutex_);
  auto& kernel = kernels_[ordinal];
  if (!kernel) kernel = std::make_unique<CopyKernel>(driver);
}

const CopyKernel& CudaGraphs::kernel(int ordinal) {
  const LockGuard lock(mutex_);
  const auto found = kernels_.find(ordinal);
  if (found == kernels_.end() || !found->second)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("nothing is ready for copies in graphs of cuda:{}", ordinal));
  return *found->second;
}

GraphNode CudaGraphs::copy(int ordinal, Stream stream, std::span<const CopyRange> ranges) {
  const Driver& driver = Driver::get();
  const UseContext use(ordinal);
  const CopyLaunch launch(kernel(ordinal), ranges);
  const CUDA_KERNEL_NODE_PARAMS& p = launch.parameters();
  auto* const native = static_cast<CUstream>(stream.native);
  driver.cuLaunchKernel.must(p.func, p.gridDimX, p.gridDimY, p.gridDimZ, p.blockDimX, p.blockDimY,
                             p.blockDimZ, p.sharedMemBytes, native, p.kernelParams, nullptr);
  int status = CU_STREAM_CAPTURE_STATUS_NONE;
  unsigned long long id = 0;
  CUgraph graph = nullptr;
  const CUgraphNode* last = nullptr;
  std::size_t count = 0;
  const CUgraphEdgeData* kinds = nullptr;
  driver.cuStreamGetCaptureInfo.must(native, &status, &id, &graph, &last, &kinds, &count);
  if (status != CU_STREAM_CAPTURE_STATUS_ACTIVE || count != 1) return nullptr;
  return last[0];
}

void CudaGraphs::set_copy(int ordinal, GraphExecutable executable, GraphNode node,
                          std::span<const CopyRange> ranges) {
  const Driver& driver = Driver::get();
  const UseContext use(ordinal);
  const CopyLaunch launch(kernel(ordinal), ranges);
  driver.cuGraphExecKernelNodeSetParams.must(static_cast<CUgraphExec>(executable),
                                             static_cast<CUgraphNode>(node), &launch.parameters());
}

void CudaGraphs::launch(int ordinal, GraphExecutable executable, Stream stream) {
  const Driver& driver = Driver::get();
  const UseContext use(ordinal);
  driver.cuGraphLaunch.must(static_cast<CUgraphExec>(executable), static_cast<CUstream>(stream.native));
}

void CudaGraphs::require_read() {
  const Driver& driver = Driver::get();
  if (!driver.cuFuncGetParamInfo || !driver.cuKernelGetParamInfo)
    Vendor::throw_missing(driver.cuFuncGetParamInfo.name(), driver.cuFuncGetParamInfo.since());
}

Recording CudaGraphs::read(int ordinal, void* graph) {
  require_read();
  const Driver& driver = Driver::get();
  const UseContext use(ordinal);
  std::size_t count = 0;
  auto* const native = static_cast<CUgraph>(graph);
  driver.cuGraphGetNodes.must(native, nullptr, &count);
  std::vector<CUgraphNode> nodes(count);
  if (count > 0) driver.cuGraphGetNodes.must(native, nodes.data(), &count);
  Recording recording;
  recording.nodes.reserve(count);
  for (const CUgraphNode node : nodes) recording.nodes.push_back(read_node(driver, node));
  recording.edges = read_edges(driver, native, nodes);
  return recording;
}

void CudaGraphs::set(int ordinal, GraphExecutable executable, const RecordedNode& node) {
  const Driver& driver = Driver::get();
  const UseContext use(ordinal);
  auto* const native = static_cast<CUgraphExec>(executable);
  auto* const handle = static_cast<CUgraphNode>(node.node);
  CUcontext context = Devices::get().context(ordinal);
  switch (node.kind) {
    case RecordedNode::Kind::kernel: set_kernel(driver, native, node); return;
    case RecordedNode::Kind::copy: {
      const auto parameters = value_of<CUDA_MEMCPY3D>(node);
      driver.cuGraphExecMemcpyNodeSetParams.must(native, handle, &parameters, context);
      return;
    }
    case RecordedNode::Kind::fill: {
      const auto parameters = value_of<CUDA_MEMSET_NODE_PARAMS>(node);
      driver.cuGraphExecMemsetNodeSetParams.must(native, handle, &parameters, context);
      return;
    }
    default: throw Error(ErrorCode::unsupported, fmt::format("{} has no parameters to set", node.name));
  }
}

}  // namespace

/// Never destroyed: graphs are launched until the process ends.
GraphDriver* graph_driver() {
  static CudaGraphs* const graphs = new CudaGraphs;
  return graphs;
}

}  // namespace onecopy::cuda
