// SPDX-License-Identifier: Apache-2.0
// Events: two counters, which for events between processes are in a memfd.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "ipc.h"
#include "stream.h"

using namespace sim;

namespace {

struct Counters {
  std::atomic<std::uint64_t> recorded;
  std::atomic<std::uint64_t> completed;
  std::atomic<std::uint64_t> id;
};

/// Keeps the counters mapped for the operations that still use them.
class Cell {
 public:
  explicit Cell(int file) : fd(file) {
    void* at = ::mmap(nullptr, sizeof(Counters), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    counters = at == MAP_FAILED ? nullptr : static_cast<Counters*>(at);
  }
  ~Cell() {
    if (counters) ::munmap(counters, sizeof(Counters));
    ::close(fd);
  }
  Cell(const Cell&) = delete;
  Cell& operator=(const Cell&) = delete;

  /// Waits for the ticket, or until the context fails.
  void wait(std::uint64_t ticket, const Context* context) const {
    while (counters->completed < ticket && result_in(context) == CUDA_SUCCESS)
      std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
  void complete(std::uint64_t ticket) const {
    std::uint64_t before = counters->completed;
    while (before < ticket && !counters->completed.compare_exchange_weak(before, ticket)) {
    }
  }

  int fd;
  Counters* counters = nullptr;
};

struct Event {
  unsigned flags;
  bool exporter;
  std::shared_ptr<Cell> cell;
  bool captured = false;
  Clock clock{};                         ///< the operations before it
  const Context* recorded_in = nullptr;  ///< null if another process recorded it, or none
  std::vector<Reach> awaited{};          ///< if it was recorded in a whole context
};

bool has_come(const Event& event) {
  return std::all_of(event.awaited.begin(), event.awaited.end(),
                     [](const Reach& reach) { return reach.is_reached(); });
}

Event* find(CUevent handle) {
  const std::lock_guard lock(state().mutex);
  return state().events.contains(handle) ? reinterpret_cast<Event*>(handle) : nullptr;
}

CUresult add(CUevent* handle, unsigned flags, bool exporter, int fd) {
  auto cell = std::make_shared<Cell>(fd);
  if (!cell->counters) return CUDA_ERROR_OUT_OF_MEMORY;
  *handle = reinterpret_cast<CUevent>(new Event{flags, exporter, std::move(cell)});
  const std::lock_guard lock(state().mutex);
  state().events.insert(*handle);
  return CUDA_SUCCESS;
}

CUresult record(CUevent handle, CUstream stream_handle) {
  Event* event = find(handle);
  Stream* stream = Stream::find(stream_handle);
  if (!event || !stream) return CUDA_ERROR_INVALID_HANDLE;
  event->captured = stream->capture != nullptr;
  event->awaited.clear();
  if (event->captured) return stream->submit([] {});
  if (const CUresult failed = result_in(stream->context)) return failed;
  event->recorded_in = stream->context;
  const std::uint64_t ticket = ++event->cell->counters->recorded;
  const CUresult result = stream->submit([cell = event->cell, ticket] { cell->complete(ticket); });
  WindowOrder::instance().record(stream->line, event->clock);
  return result;
}

/// Records that the host has seen the event done.
CUresult seen(const Event& event, CUresult result) {
  if (result == CUDA_SUCCESS) WindowOrder::instance().host_waited(event.clock);
  return result;
}

}  // namespace

SIM_CALL cuEventCreate(CUevent* handle, unsigned flags) {
  SIM_ENTER(cuEventCreate);
  if (!handle || flags > 7) return CUDA_ERROR_INVALID_VALUE;
  if ((flags & CU_EVENT_INTERPROCESS) != 0 && (flags & CU_EVENT_DISABLE_TIMING) == 0)
    return CUDA_ERROR_INVALID_VALUE;
  if (!current()) return CUDA_ERROR_INVALID_CONTEXT;
  const int fd = ::memfd_create("simulated-cuda-event", MFD_CLOEXEC);
  if (fd < 0 || ::ftruncate(fd, 4096) != 0) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult result = add(handle, flags, true, fd);
  if (result == CUDA_SUCCESS)
    reinterpret_cast<Event*>(*handle)->cell->counters->id = reinterpret_cast<std::uintptr_t>(*handle);
  return result;
}

SIM_CALL cuEventDestroy_v2(CUevent handle) {
  SIM_ENTER(cuEventDestroy);
  Event* event = find(handle);
  if (!event) return CUDA_ERROR_INVALID_HANDLE;
  {
    const std::lock_guard lock(state().mutex);
    state().events.erase(handle);
  }
  delete event;
  return CUDA_SUCCESS;
}

SIM_CALL cuEventRecord(CUevent event, CUstream stream) {
  SIM_ENTER(cuEventRecord);
  return record(event, stream);
}

SIM_CALL cuCtxRecordEvent(CUcontext context, CUevent handle) {
  SIM_ENTER(cuCtxRecordEvent);
  Event* event = find(handle);
  if (!event || !context) return CUDA_ERROR_INVALID_HANDLE;
  if (const CUresult failed = result_in(of(context))) return failed;
  auto awaited = Stream::reach_all(*of(context));
  if (!awaited) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  event->captured = false;
  event->awaited = std::move(*awaited);
  WindowOrder::instance().record(Stream::clock_of_all(*of(context)), event->clock);
  event->recorded_in = of(context);
  return CUDA_SUCCESS;
}

SIM_CALL cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned) {
  SIM_ENTER(cuEventRecordWithFlags);
  return record(event, stream);
}

SIM_CALL cuEventQuery(CUevent handle) {
  SIM_ENTER(cuEventQuery);
  const Event* event = find(handle);
  if (!event) return CUDA_ERROR_INVALID_HANDLE;
  if (event->captured) return CUDA_ERROR_CAPTURED_EVENT;
  if (const CUresult refused = forbid_in_capture()) return refused;
  if (const CUresult failed = result_in(event->recorded_in)) return failed;
  if (!has_come(*event)) return CUDA_ERROR_NOT_READY;
  const Counters& counters = *event->cell->counters;
  return seen(*event, counters.completed >= counters.recorded ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY);
}

SIM_CALL cuEventSynchronize(CUevent handle) {
  SIM_ENTER(cuEventSynchronize);
  const Event* event = find(handle);
  if (!event) return CUDA_ERROR_INVALID_HANDLE;
  if (event->captured) return CUDA_ERROR_CAPTURED_EVENT;
  const auto cell = event->cell;
  const Clock clock = WindowOrder::instance().copy_of(event->clock);
  for (const Reach& reach : event->awaited) reach.wait();
  const Context* const context = event->recorded_in ? event->recorded_in : current();
  cell->wait(cell->counters->recorded, context);
  WindowOrder::instance().host_waited(clock);
  return result_in(context);
}

SIM_CALL cuStreamWaitEvent(CUstream handle, CUevent event_handle, unsigned flags) {
  SIM_ENTER(cuStreamWaitEvent);
  Stream* stream = Stream::find(handle);
  const Event* event = find(event_handle);
  if (!stream || !event) return CUDA_ERROR_INVALID_HANDLE;
  if (flags > 1) return CUDA_ERROR_INVALID_VALUE;
  if (event->captured) return stream->capture ? stream->submit([] {}) : CUDA_ERROR_CAPTURED_EVENT;
  const std::uint64_t ticket = event->cell->counters->recorded;
  WindowOrder::instance().let_wait(stream->line, event->clock);
  return stream->submit(
      [cell = event->cell, ticket, context = stream->context] { cell->wait(ticket, context); });
}

SIM_CALL cuIpcGetEventHandle(CUipcEventHandle* handle, CUevent event_handle) {
  SIM_ENTER(cuIpcGetEventHandle);
  const Event* event = find(event_handle);
  if (!handle || !event) return CUDA_ERROR_INVALID_HANDLE;
  if ((event->flags & CU_EVENT_INTERPROCESS) == 0 || !event->exporter) return CUDA_ERROR_INVALID_HANDLE;
  const IpcName name{IpcName::kEvent, ::getpid(), event->cell->fd, event->cell->counters->id};
  *handle = {};
  std::memcpy(handle->reserved, &name, sizeof name);
  return CUDA_SUCCESS;
}

SIM_CALL cuIpcOpenEventHandle(CUevent* event, CUipcEventHandle handle) {
  SIM_ENTER(cuIpcOpenEventHandle);
  if (!event) return CUDA_ERROR_INVALID_VALUE;
  if (!current()) return CUDA_ERROR_INVALID_CONTEXT;
  IpcName name;
  std::memcpy(&name, handle.reserved, sizeof name);
  if (name.what != IpcName::kEvent) return CUDA_ERROR_INVALID_HANDLE;
  if (name.pid == ::getpid()) return CUDA_ERROR_INVALID_CONTEXT;
  const int fd = open_in(name);
  if (fd < 0) return CUDA_ERROR_INVALID_HANDLE;
  return add(event, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING, false, fd);
}
