// SPDX-License-Identifier: Apache-2.0
#include "device/graphs.h"

#include <map>

#include "backend.h"
#include "copy_kernel.h"
#include "core/throw_error.h"
#include "devices.h"
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

class CudaGraphs final : public GraphDriver {
 public:
  void prepare(int ordinal) override;
  GraphNode copy(int ordinal, Stream stream, std::span<const CopyRange> ranges) override;
  void set_copy(int ordinal, GraphExecutable executable, GraphNode node,
                std::span<const CopyRange> ranges) override;
  void launch(int ordinal, GraphExecutable executable, Stream stream) override;
  std::unique_ptr<StreamMark> make_mark(int ordinal) override {
    return std::make_unique<CudaMark>(ordinal);
  }

 private:
  const CopyKernel& kernel(int ordinal);

  Mutex mutex_;
  std::map<int, std::unique_ptr<CopyKernel>> kernels_
      GUARDED_BY(mutex_);  ///< by device; entries are never removed
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
    throw_error(ErrorCode::invalid_argument, "nothing is ready for copies in graphs of cuda:{}", ordinal);
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

}  // namespace

/// Returns the driver, which is never destroyed: graphs are launched until the process ends.
GraphDriver* CudaBackend::graphs() {
  static CudaGraphs* const graphs = new CudaGraphs;
  return graphs;
}

}  // namespace onecopy::cuda
