// SPDX-License-Identifier: Apache-2.0
#include "stream.h"

#include <algorithm>
#include <map>

#include "graph.h"

using namespace sim;

namespace sim {

namespace {

thread_local int capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

bool forbids(const Capture& capture) {
  if (capture.mode == CU_STREAM_CAPTURE_MODE_RELAXED) return false;
  const bool mine = capture.thread == std::this_thread::get_id();
  return mine ||
         (capture.mode == CU_STREAM_CAPTURE_MODE_GLOBAL && capture_mode == CU_STREAM_CAPTURE_MODE_GLOBAL);
}

}  // namespace

CUresult forbid_in_capture() {
  if (capture_mode == CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_SUCCESS;
  const std::lock_guard lock(state().mutex);
  CUresult result = CUDA_SUCCESS;
  for (Stream* stream : state().streams) {
    if (!stream->capture || !forbids(*stream->capture)) continue;
    stream->capture->invalid = true;
    result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return result;
}

/// REQUIRES: state().mutex.
Stream* Stream::make(Context& context, unsigned flags) {
  auto* stream = new Stream(context, flags);  // deletes itself, see StreamWork::end()
  WindowOrder::instance().begin(stream->line);
  state().streams.insert(stream);
  return stream;
}

/// Returns the thread's default stream in a context, which ends with the thread.
Stream* of_this_thread(Context& context) {
  struct Own {
    std::map<Context*, Stream*> streams;
    ~Own() {
      for (const auto& [of, stream_of_it] : streams) stream_of_it->destroy();
    }
  };
  thread_local Own own;
  Stream*& stream = own.streams[&context];
  if (stream) return stream;
  const std::lock_guard lock(state().mutex);
  return stream = Stream::make(context, 0);
}

Stream* Stream::find(CUstream handle) {
  const auto number = reinterpret_cast<std::uintptr_t>(handle);
  if (number == 2) return current() ? of_this_thread(*current()) : nullptr;
  if (number < 2) return current() ? current()->legacy : nullptr;  // default, legacy
  auto* stream = reinterpret_cast<Stream*>(handle);
  const std::lock_guard lock(state().mutex);
  return state().streams.contains(stream) ? stream : nullptr;
}

void Stream::synchronize_all(const Context& context) {
  std::vector<Reach> all;
  const Clock clock = clock_of_all(context);
  {
    const std::lock_guard lock(state().mutex);
    for (const Stream* stream : state().streams)
      if (stream->context == &context) all.push_back(stream->reach());
  }
  wait_for_all(all, clock);
}

Clock Stream::clock_of_all(const Context& context) {
  Clock clock;
  const std::lock_guard lock(state().mutex);
  for (const Stream* stream : state().streams)
    if (stream->context == &context) merge(clock, WindowOrder::instance().clock_of(stream->line));
  return clock;
}

/// Makes the operation wait for the pending work of the other streams, as the legacy stream and the blocking streams do
/// for each other. Adds the clocks of these streams to `before`.
Operation Stream::after_others(Operation operation, Clock& before) {
  if (flags & CU_STREAM_NON_BLOCKING) return operation;
  std::vector<Reach> others;
  const bool is_legacy = this == context->legacy;
  const std::lock_guard lock(state().mutex);
  for (Stream* other : state().streams) {
    if (other == this || other->context != context || (other->flags & CU_STREAM_NON_BLOCKING)) continue;
    if (!is_legacy && other != context->legacy) continue;
    merge(before, WindowOrder::instance().clock_of(other->line));
    if (const Reach reach = other->reach(); !reach.is_reached()) others.push_back(reach);
  }
  if (others.empty()) return operation;
  return [others = std::move(others), operation = std::move(operation)] {
    for (const Reach& reach : others) reach.wait();
    operation();
  };
}

/// Behaves as seen on an H100, in every mode, and whichever threads capture and call.
std::optional<std::vector<Reach>> Stream::reach_all(const Context& context) {
  std::vector<Reach> all;
  bool is_capturing = false;
  const std::lock_guard lock(state().mutex);
  for (Stream* stream : state().streams) {
    if (stream->context != &context) continue;
    if (stream->capture) stream->capture->invalid = is_capturing = true;
    if (const Reach reach = stream->reach(); !reach.is_reached()) all.push_back(reach);
  }
  if (is_capturing) return {};
  return all;
}

CUresult Stream::submit(Operation operation) {
  if (const CUresult failed = result_in(context)) return failed;
  if (capture) {
    if (capture->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    capture->nodes.push_back(host_node(std::move(operation)));
    return CUDA_SUCCESS;
  }
  if (this == context->legacy) {
    const std::lock_guard lock(state().mutex);
    for (Stream* other : state().streams)
      if (other->context == context && other->capture && !(other->flags & CU_STREAM_NON_BLOCKING)) {
        other->capture->invalid = true;
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
      }
  }
  Clock before;
  operation = after_others(std::move(operation), before);
  WindowOrder::instance().submit(line, before);
  add([context = context, operation = std::move(operation)] {
    if (result_in(context) == CUDA_SUCCESS) operation();
    return 0;
  });
  return CUDA_SUCCESS;
}

void note_use(Stream& stream, CUdeviceptr at, std::size_t bytes, bool writes) {
  constexpr std::size_t kUnit = std::size_t{2} << 20;
  const std::lock_guard lock(state().mutex);
  for (const CUdeviceptr end = at + bytes; at < end;) {
    const Range* range = state().find(at);
    if (!range) return;
    const CUdeviceptr last = std::min<CUdeviceptr>(end, range->base + range->size);
    for (std::uint64_t page = (at - range->base) / kUnit; page * kUnit < last - range->base; ++page)
      if (range->kind == RangeKind::vmm)
        WindowOrder::instance().use(stream.line, range->memory->id, page, range->base, writes);
    at = last;
  }
}

void Stream::destroy() {
  {
    const std::lock_guard lock(state().mutex);
    state().streams.erase(this);
  }
  end();
}

}  // namespace sim

namespace {

/// Returns whether a stream that waits for the context's legacy stream is being captured.
bool is_waited_for_in_capture(const Context& context) {
  const std::lock_guard lock(state().mutex);
  return std::any_of(state().streams.begin(), state().streams.end(), [&](const Stream* stream) {
    return stream->context == &context && stream->capture && !(stream->flags & CU_STREAM_NON_BLOCKING);
  });
}

bool is_own(CUstream handle) { return reinterpret_cast<std::uintptr_t>(handle) > 2; }

}  // namespace

SIM_CALL cuStreamCreate(CUstream* handle, unsigned flags) {
  SIM_ENTER(cuStreamCreate);
  if (!handle || (flags & ~CU_STREAM_NON_BLOCKING) != 0) return CUDA_ERROR_INVALID_VALUE;
  if (!current()) return CUDA_ERROR_INVALID_CONTEXT;
  const std::lock_guard lock(state().mutex);
  *handle = reinterpret_cast<CUstream>(Stream::make(*current(), flags));
  return CUDA_SUCCESS;
}

SIM_CALL cuStreamDestroy_v2(CUstream handle) {
  SIM_ENTER(cuStreamDestroy);
  Stream* stream = is_own(handle) ? Stream::find(handle) : nullptr;
  if (!stream) return CUDA_ERROR_INVALID_HANDLE;
  stream->destroy();
  return CUDA_SUCCESS;
}

/// A query of the legacy stream counts the work of the blocking streams, and not the other way round (seen on an H200).
static bool is_waited_for_by_idle(const Stream& legacy) {
  const std::lock_guard lock(state().mutex);
  return std::all_of(state().streams.begin(), state().streams.end(), [&](const Stream* other) {
    return other->context != legacy.context || (other->flags & CU_STREAM_NON_BLOCKING) || other->is_idle();
  });
}

SIM_CALL cuStreamQuery(CUstream handle) {
  SIM_ENTER(cuStreamQuery);
  const Stream* stream = Stream::find(handle);
  if (!stream) return CUDA_ERROR_INVALID_HANDLE;
  if (stream->capture) {
    stream->capture->invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  if (const CUresult refused = forbid_in_capture()) return refused;
  if (const CUresult failed = result_in(stream->context)) return failed;
  const bool is_idle =
      stream->is_idle() && (stream != stream->context->legacy || is_waited_for_by_idle(*stream));
  return is_idle ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

SIM_CALL cuStreamSynchronize(CUstream handle) {
  SIM_ENTER(cuStreamSynchronize);
  Stream* stream = Stream::find(handle);
  if (!stream) return CUDA_ERROR_INVALID_HANDLE;
  if (stream->capture) {
    stream->capture->invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  if (const CUresult refused = forbid_in_capture()) return refused;
  const Context* const context = stream->context;
  stream->synchronize();
  return result_in(context);
}

SIM_CALL cuStreamGetCtx(CUstream handle, CUcontext* context) {
  SIM_ENTER(cuStreamGetCtx);
  const Stream* stream = Stream::find(handle);
  if (!stream || !context) return CUDA_ERROR_INVALID_HANDLE;
  *context = handle_of(stream->context);
  return CUDA_SUCCESS;
}

/// A question that ends the capture in any mode (seen on an H100).
SIM_CALL cuStreamGetFlags(CUstream handle, unsigned* flags) {
  SIM_ENTER(cuStreamGetFlags);
  const Stream* stream = Stream::find(handle);
  if (!stream || !flags) return CUDA_ERROR_INVALID_HANDLE;
  if (stream->capture) {
    stream->capture->invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  *flags = stream->flags;
  return CUDA_SUCCESS;
}

SIM_CALL cuLaunchHostFunc(CUstream handle, CUhostFn function, void* argument) {
  SIM_ENTER(cuLaunchHostFunc);
  Stream* stream = Stream::find(handle);
  if (!stream) return CUDA_ERROR_INVALID_HANDLE;
  if (!function) return CUDA_ERROR_INVALID_VALUE;
  return stream->submit([function, argument] { function(argument); });
}

// ---- capture

SIM_CALL cuStreamBeginCapture_v2(CUstream handle, int mode) {
  SIM_ENTER(cuStreamBeginCapture);
  if (!is_own(handle)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  Stream* stream = Stream::find(handle);
  if (!stream) return CUDA_ERROR_INVALID_HANDLE;
  if (mode < 0 || mode > 2) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard lock(state().mutex);
  constexpr CUresult kIllegalState = 401;
  if (stream->capture) return kIllegalState;
  stream->capture = std::make_unique<Capture>(Capture{mode, std::this_thread::get_id(), false, {}});
  return CUDA_SUCCESS;
}

SIM_CALL cuStreamEndCapture(CUstream handle, CUgraph* graph) {
  SIM_ENTER(cuStreamEndCapture);
  Stream* stream = Stream::find(handle);
  if (!stream) return CUDA_ERROR_INVALID_HANDLE;
  if (!graph) return CUDA_ERROR_INVALID_VALUE;
  *graph = nullptr;
  const std::lock_guard lock(state().mutex);
  if (!stream->capture) return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
  if (stream->capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED &&
      stream->capture->thread != std::this_thread::get_id())
    return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
  const std::unique_ptr<Capture> capture = std::move(stream->capture);
  if (capture->invalid) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  *graph = reinterpret_cast<CUgraph>(new Graph{std::move(capture->nodes)});
  return CUDA_SUCCESS;
}

SIM_CALL cuStreamGetId(CUstream handle, unsigned long long* id) {
  SIM_ENTER(cuStreamGetId);
  const Stream* stream = Stream::find(handle);
  if (!stream || !id) return CUDA_ERROR_INVALID_HANDLE;
  *id = stream->id;
  return CUDA_SUCCESS;
}

SIM_CALL cuStreamIsCapturing(CUstream handle, int* status) {
  SIM_ENTER(cuStreamIsCapturing);
  const Stream* stream = Stream::find(handle);
  if (!stream || !status) return CUDA_ERROR_INVALID_HANDLE;
  if (stream == stream->context->legacy && is_waited_for_in_capture(*stream->context))
    return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  const std::lock_guard lock(state().mutex);  // another thread may end it
  *status = !stream->capture           ? CU_STREAM_CAPTURE_STATUS_NONE
            : stream->capture->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                       : CU_STREAM_CAPTURE_STATUS_ACTIVE;
  return CUDA_SUCCESS;
}

SIM_CALL cuThreadExchangeStreamCaptureMode(int* mode) {
  SIM_ENTER(cuThreadExchangeStreamCaptureMode);
  if (!mode || *mode < 0 || *mode > 2) return CUDA_ERROR_INVALID_VALUE;
  std::swap(*mode, capture_mode);
  return CUDA_SUCCESS;
}
