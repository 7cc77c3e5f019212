// SPDX-License-Identifier: Apache-2.0
#include "stream.h"

using namespace sim;

namespace sim {

namespace {

constexpr int kGlobal = 0;
constexpr int kRelaxed = 2;

}  // namespace

aclError forbid_in_capture() {
  const std::lock_guard lock(state().mutex);
  aclError result = ACL_SUCCESS;
  for (Stream* stream : state().streams) {
    Capture* capture = stream->capture.get();
    if (!capture || capture->mode == kRelaxed) continue;
    if (capture->mode != kGlobal && capture->thread != std::this_thread::get_id()) continue;
    capture->invalid = true;
    result = ACL_ERROR_RT_CAPTURE_MODE_NOT_SUPPORT;
  }
  return result;
}

/// REQUIRES: state().mutex.
Stream* Stream::make(Context& context) {
  auto* stream = new Stream(context);  // deletes itself, see StreamWork::end()
  WindowOrder::instance().begin(stream->line);
  state().streams.insert(stream);
  return stream;
}

Stream* Stream::find(aclrtStream handle) {
  if (!current()) return nullptr;
  if (!handle) return current()->stream;
  auto* stream = static_cast<Stream*>(handle);
  const std::lock_guard lock(state().mutex);
  return state().streams.contains(stream) && stream->context == current() ? stream : nullptr;
}

aclError Stream::synchronize_all(const Context& context) {
  std::vector<Reach> all;
  Clock clock;
  {
    const std::lock_guard lock(state().mutex);
    for (Stream* stream : state().streams) {
      if (stream->context != &context) continue;
      all.push_back(stream->reach());
      merge(clock, WindowOrder::instance().clock_of(stream->line));
    }
  }
  return wait_for_all(all, clock);
}

aclError Stream::submit(Operation operation, std::vector<Use> uses) {
  if (capture) {
    capture->operations.push_back({std::move(operation), std::move(uses)});
    return ACL_SUCCESS;
  }
  WindowOrder& order = WindowOrder::instance();
  for (const Use& use : uses) order.use(line, use.memory, use.page, use.window, use.writes);
  order.submit(line);
  add(std::move(operation));
  return ACL_SUCCESS;
}

aclError Stream::spoil() {
  capture->invalid = true;
  return ACL_ERROR_RT_CAPTURE_MODE_NOT_SUPPORT;
}

void Stream::destroy() {
  {
    const std::lock_guard lock(state().mutex);
    state().streams.erase(this);
  }
  end();
}

}  // namespace sim

SIM_CALL aclrtCreateStream(aclrtStream* handle) {
  SIM_ENTER(aclrtCreateStream);
  if (!handle) return ACL_ERROR_INVALID_PARAM;
  if (!current()) return ACL_ERROR_RT_CONTEXT_NULL;
  const std::lock_guard lock(state().mutex);
  *handle = Stream::make(*current());
  return ACL_SUCCESS;
}

SIM_CALL aclrtDestroyStream(aclrtStream handle) {
  SIM_ENTER(aclrtDestroyStream);
  Stream* stream = handle ? Stream::find(handle) : nullptr;
  if (!stream || stream == current()->stream) return no_stream();
  stream->destroy();
  return ACL_SUCCESS;
}

SIM_CALL aclrtStreamQuery(aclrtStream handle, int* status) {
  SIM_ENTER(aclrtStreamQuery);
  Stream* stream = Stream::find(handle);
  if (!stream) return no_stream();
  if (!status) return ACL_ERROR_INVALID_PARAM;
  if (stream->capture) return stream->spoil();
  *status = stream->is_idle() ? ACL_STREAM_STATUS_COMPLETE : ACL_STREAM_STATUS_NOT_READY;
  return ACL_SUCCESS;
}

SIM_CALL aclrtSynchronizeStream(aclrtStream handle) {
  SIM_ENTER(aclrtSynchronizeStream);
  Stream* stream = Stream::find(handle);
  if (!stream) return no_stream();
  if (stream->capture) return stream->spoil();
  return stream->synchronize();
}

SIM_CALL aclrtSynchronizeStreamWithTimeout(aclrtStream handle, std::int32_t milliseconds) {
  SIM_ENTER(aclrtSynchronizeStreamWithTimeout);
  Stream* stream = Stream::find(handle);
  if (!stream) return no_stream();
  if (milliseconds < 0) return aclrtSynchronizeStream(handle);
  return stream->synchronize_for(milliseconds) ? ACL_SUCCESS : ACL_ERROR_RT_STREAM_SYNC_TIMEOUT;
}

SIM_CALL aclrtLaunchHostFunc(aclrtStream handle, aclrtHostFunc function, void* argument) {
  SIM_ENTER(aclrtLaunchHostFunc);
  Stream* stream = Stream::find(handle);
  if (!stream) return no_stream();
  if (!function) return ACL_ERROR_INVALID_PARAM;
  return stream->submit([function, argument] {
    function(argument);
    return ACL_SUCCESS;
  });
}

// ---- capture

SIM_CALL aclmdlRICaptureBegin(aclrtStream handle, int mode) {
  SIM_ENTER(aclmdlRICaptureBegin);
  Stream* stream = handle ? Stream::find(handle) : nullptr;
  if (!stream || stream == current()->stream) return no_stream();
  if (mode < 0 || mode > 2) return ACL_ERROR_INVALID_PARAM;
  constexpr aclError kStreamCaptured = 107027;
  const std::lock_guard lock(state().mutex);
  if (stream->capture) return kStreamCaptured;
  stream->capture = std::make_unique<Capture>(Capture{mode, std::this_thread::get_id(), false, {}});
  return ACL_SUCCESS;
}

SIM_CALL aclmdlRICaptureEnd(aclrtStream handle, void** model) {
  SIM_ENTER(aclmdlRICaptureEnd);
  constexpr aclError kNotCaptured = 107029;
  constexpr aclError kWrongThread = 107038;
  constexpr aclError kInvalidated = 507903;
  Stream* stream = Stream::find(handle);
  if (!stream) return no_stream();
  if (!model) return ACL_ERROR_INVALID_PARAM;
  const std::lock_guard lock(state().mutex);
  if (!stream->capture) return kNotCaptured;
  if (stream->capture->mode != kRelaxed && stream->capture->thread != std::this_thread::get_id())
    return kWrongThread;
  const std::unique_ptr<Capture> capture = std::move(stream->capture);
  if (capture->invalid) return kInvalidated;
  *model = new std::vector<Recorded>(std::move(capture->operations));
  return ACL_SUCCESS;
}

SIM_CALL aclmdlRICaptureGetInfo(aclrtStream handle, int* status, void** model) {
  SIM_ENTER(aclmdlRICaptureGetInfo);
  const Stream* stream = Stream::find(handle);
  if (!stream) return no_stream();
  if (!status) return ACL_ERROR_INVALID_PARAM;
  const std::lock_guard lock(state().mutex);  // another thread may end it
  *status = !stream->capture ? 0 : stream->capture->invalid ? 2 : 1;
  if (model) *model = nullptr;
  return ACL_SUCCESS;
}

SIM_CALL aclmdlRIExecuteAsync(void* model, aclrtStream handle) {
  SIM_ENTER(aclmdlRIExecuteAsync);
  Stream* stream = Stream::find(handle);
  if (!stream) return no_stream();
  if (!model) return ACL_ERROR_INVALID_PARAM;
  for (const Recorded& one : *static_cast<std::vector<Recorded>*>(model))
    stream->submit(one.operation, one.uses);
  return ACL_SUCCESS;
}

SIM_CALL aclmdlRIDestroy(void* model) {
  SIM_ENTER(aclmdlRIDestroy);
  if (!model) return ACL_ERROR_INVALID_PARAM;
  delete static_cast<std::vector<Recorded>*>(model);
  return ACL_SUCCESS;
}
