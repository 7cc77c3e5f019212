// SPDX-License-Identifier: Apache-2.0
#include "stream.h"

#include <chrono>

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

void Progress::advance(aclError result) {
  const std::lock_guard lock(mutex_);
  if (failure_ == ACL_SUCCESS) failure_ = result;
  ++completed_;
  changed_.notify_all();
}

aclError Progress::wait(std::uint64_t ticket) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return completed_ >= ticket; });
  return failure_;
}

bool Progress::wait_for(std::uint64_t ticket, int milliseconds) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, std::chrono::milliseconds(milliseconds),
                           [&] { return completed_ >= ticket; });
}

/// REQUIRES: state().mutex.
Stream* Stream::make(Context& context) {
  auto* stream = new Stream;  // ends itself, see run()
  stream->context = &context;
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
  std::vector<std::pair<std::shared_ptr<Progress>, std::uint64_t>> waits;
  Clock clock;
  {
    const std::lock_guard lock(state().mutex);
    for (Stream* stream : state().streams) {
      const std::lock_guard inner(stream->mutex_);
      if (stream->context != &context) continue;
      waits.emplace_back(stream->progress_, stream->submitted_);
      merge(clock, WindowOrder::instance().clock_of(stream->line));
    }
  }
  aclError result = ACL_SUCCESS;
  for (const auto& [progress, ticket] : waits)
    if (const aclError failure = progress->wait(ticket)) result = failure;
  WindowOrder::instance().host_waited(clock);
  return result;
}

aclError Stream::submit(Operation operation, std::vector<Use> uses) {
  if (capture) {
    capture->operations.push_back({std::move(operation), std::move(uses)});
    return ACL_SUCCESS;
  }
  WindowOrder& order = WindowOrder::instance();
  for (const Use& use : uses) order.use(line, use.memory, use.page, use.window, use.writes);
  order.submit(line);
  const std::lock_guard lock(mutex_);
  queue_.push_back(std::move(operation));
  ++submitted_;
  if (!has_thread_) std::thread([this] { run(); }).detach();
  has_thread_ = true;
  changed_.notify_one();
  return ACL_SUCCESS;
}

void Stream::run() {
  for (;;) {
    Operation next;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return !queue_.empty() || ending_; });
      if (queue_.empty()) break;
      next = std::move(queue_.front());
      queue_.pop_front();
    }
    if (settings().delay_us > 0)
      std::this_thread::sleep_for(std::chrono::microseconds(settings().delay_us));
    const aclError result = next();
    next = nullptr;  // its objects are given back before a caller can know that it is done
    progress_->advance(result);
  }
  delete this;
}

aclError Stream::synchronize() {
  std::uint64_t ticket = 0;
  Clock clock;
  {
    const std::lock_guard lock(mutex_);
    ticket = submitted_;
    clock = WindowOrder::instance().clock_of(line);
  }
  const std::shared_ptr<Progress> progress = progress_;
  const aclError result = progress->wait(ticket);
  WindowOrder::instance().host_waited(clock);
  return result;
}

bool Stream::synchronize_for(int milliseconds) {
  std::uint64_t ticket = 0;
  Clock clock;
  {
    const std::lock_guard lock(mutex_);
    ticket = submitted_;
    clock = WindowOrder::instance().clock_of(line);
  }
  if (!progress_->wait_for(ticket, milliseconds)) return false;
  WindowOrder::instance().host_waited(clock);
  return true;
}

bool Stream::is_idle() const {
  const std::lock_guard lock(mutex_);
  if (!progress_->has_reached(submitted_)) return false;
  WindowOrder::instance().host_waited(WindowOrder::instance().clock_of(line));
  return true;
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
  std::unique_lock lock(mutex_);
  ending_ = true;
  if (has_thread_) {
    changed_.notify_one();
    return;
  }
  lock.unlock();
  delete this;
}

}  // namespace sim

extern "C" __attribute__((visibility("default"))) std::size_t sim_unordered() {
  return WindowOrder::instance().count();
}

extern "C" __attribute__((visibility("default"))) const char* sim_first_unordered() {
  return WindowOrder::instance().first();
}

namespace {

/// Why a handle is no stream.
aclError no_stream() { return current() ? ACL_ERROR_RT_STREAM_CONTEXT : ACL_ERROR_RT_CONTEXT_NULL; }

}  // namespace

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
