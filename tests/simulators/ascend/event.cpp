// SPDX-License-Identifier: Apache-2.0
// Events: two counters, which for events between processes are in memory that a number names.
#include <sys/mman.h>

#include <chrono>
#include <cstring>

#include "stream.h"

using namespace sim;

namespace {

constexpr std::uint32_t kAllFlags = 0x7b;

struct Counters {
  std::atomic<std::uint64_t> recorded;
  std::atomic<std::uint64_t> completed;
};

/// Keeps the counters for the operations that still use them. They lie at the beginning of memory as the
/// simulator hands it out, which other processes find by its number.
struct Cell {
  std::shared_ptr<Memory> memory;

  Counters& counters() const { return *reinterpret_cast<Counters*>(memory->bytes); }
  void wait(std::uint64_t ticket) const {
    while (counters().completed < ticket) std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
  void complete(std::uint64_t ticket) const {
    std::uint64_t before = counters().completed;
    while (before < ticket && !counters().completed.compare_exchange_weak(before, ticket)) {
    }
  }
};

struct Event {
  std::uint32_t flags = 0;
  bool exporter = true;
  std::shared_ptr<Cell> cell;
  Clock clock{};  ///< the operations before it

  bool is_ipc() const { return flags == ACL_EVENT_IPC; }
  bool is_done() const { return cell->counters().completed >= cell->counters().recorded; }
};

Event* find(aclrtEvent handle) {
  const std::lock_guard lock(state().mutex);
  return state().events.contains(handle) ? static_cast<Event*>(handle) : nullptr;
}

aclError add(aclrtEvent* handle, std::uint32_t flags, bool exporter, std::shared_ptr<Memory> memory) {
  if (!memory) return ACL_ERROR_RT_MEMORY_ALLOCATION;
  *handle = new Event{flags, exporter, std::make_shared<Cell>(Cell{std::move(memory)})};
  const std::lock_guard lock(state().mutex);
  state().events.insert(*handle);
  return ACL_SUCCESS;
}

/// Returns the error for events between processes in captures, and for unknown events and streams.
aclError check(const Event* event, Stream* stream) {
  if (!event) return ACL_ERROR_INVALID_PARAM;
  if (!stream) return no_stream();
  if (!stream->capture || !event->is_ipc()) return ACL_SUCCESS;
  stream->capture->invalid = true;
  return ACL_ERROR_RT_CAPTURE_MODE_NOT_SUPPORT;
}

}  // namespace

SIM_CALL aclrtCreateEventExWithFlag(aclrtEvent* handle, std::uint32_t flags) {
  SIM_ENTER(aclrtCreateEventExWithFlag);
  if (!handle || (flags & ~kAllFlags) != 0) return ACL_ERROR_INVALID_PARAM;
  if (!current()) return ACL_ERROR_RT_CONTEXT_NULL;
  if ((flags & ACL_EVENT_IPC) != 0) {
    if (flags != ACL_EVENT_IPC) return ACL_ERROR_INVALID_PARAM;
    if (!settings().ipc_events) return ACL_ERROR_RT_FEATURE_NOT_SUPPORT;
  }
  return add(handle, flags, true, Memory::create(current()->device, kPage));
}

SIM_CALL aclrtDestroyEvent(aclrtEvent handle) {
  SIM_ENTER(aclrtDestroyEvent);
  const Event* event = find(handle);
  if (!event) return ACL_ERROR_INVALID_PARAM;
  {
    const std::lock_guard lock(state().mutex);
    state().events.erase(handle);
  }
  delete event;
  return ACL_SUCCESS;
}

SIM_CALL aclrtRecordEvent(aclrtEvent handle, aclrtStream stream_handle) {
  SIM_ENTER(aclrtRecordEvent);
  Event* event = find(handle);
  Stream* stream = Stream::find(stream_handle);
  if (const aclError refused = check(event, stream)) return refused;
  const std::uint64_t ticket = ++event->cell->counters().recorded;
  const aclError result = stream->submit([cell = event->cell, ticket] {
    cell->complete(ticket);
    return ACL_SUCCESS;
  });
  WindowOrder::instance().record(stream->line, event->clock);
  return result;
}

SIM_CALL aclrtStreamWaitEvent(aclrtStream stream_handle, aclrtEvent handle) {
  SIM_ENTER(aclrtStreamWaitEvent);
  const Event* event = find(handle);
  Stream* stream = Stream::find(stream_handle);
  if (const aclError refused = check(event, stream)) return refused;
  const std::uint64_t ticket = event->cell->counters().recorded;
  if (!stream->capture) WindowOrder::instance().let_wait(stream->line, event->clock);
  return stream->submit([cell = event->cell, ticket] {
    cell->wait(ticket);
    return ACL_SUCCESS;
  });
}

SIM_CALL aclrtSynchronizeEvent(aclrtEvent handle) {
  SIM_ENTER(aclrtSynchronizeEvent);
  const Event* event = find(handle);
  if (!event) return ACL_ERROR_INVALID_PARAM;
  const auto cell = event->cell;
  const Clock clock = WindowOrder::instance().copy_of(event->clock);
  cell->wait(cell->counters().recorded);
  WindowOrder::instance().host_waited(clock);
  return ACL_SUCCESS;
}

SIM_CALL aclrtQueryEventStatus(aclrtEvent handle, int* status) {
  SIM_ENTER(aclrtQueryEventStatus);
  const Event* event = find(handle);
  if (!event || !status) return ACL_ERROR_INVALID_PARAM;
  const bool is_done = event->is_done();
  if (is_done) WindowOrder::instance().host_waited(event->clock);
  *status = is_done ? ACL_EVENT_RECORDED_STATUS_COMPLETE : ACL_EVENT_RECORDED_STATUS_NOT_READY;
  return ACL_SUCCESS;
}

/// Returns the opposite numbers, as the older query does.
SIM_CALL aclrtQueryEvent(aclrtEvent handle, int* status) {
  SIM_ENTER(aclrtQueryEvent);
  const Event* event = find(handle);
  if (!event || !status || event->is_ipc()) return ACL_ERROR_INVALID_PARAM;
  const bool is_done = event->is_done();
  if (is_done) WindowOrder::instance().host_waited(event->clock);
  *status = is_done ? ACL_EVENT_STATUS_COMPLETE : ACL_EVENT_STATUS_NOT_READY;
  return ACL_SUCCESS;
}

SIM_CALL aclrtResetEvent(aclrtEvent handle, aclrtStream stream) {
  SIM_ENTER(aclrtResetEvent);
  const Event* event = find(handle);
  if (!event || !Stream::find(stream) || event->is_ipc()) return ACL_ERROR_INVALID_PARAM;
  return ACL_SUCCESS;
}

SIM_CALL aclrtEventElapsedTime(float* milliseconds, aclrtEvent start, aclrtEvent end) {
  SIM_ENTER(aclrtEventElapsedTime);
  const Event* first = find(start);
  const Event* last = find(end);
  if (!milliseconds || !first || !last || first->is_ipc() || last->is_ipc()) return ACL_ERROR_INVALID_PARAM;
  *milliseconds = 0;
  return ACL_SUCCESS;
}

/// Writes 8 of the 64 bytes.
SIM_CALL aclrtIpcGetEventHandle(aclrtEvent handle, aclrtIpcEventHandle* out) {
  SIM_ENTER(aclrtIpcGetEventHandle);
  const Event* event = find(handle);
  if (!event || !out || !event->is_ipc() || !event->exporter) return ACL_ERROR_INVALID_PARAM;
  *out = {};
  const std::uint64_t number = event->cell->memory->number();
  std::memcpy(out->reserved, &number, sizeof number);
  return ACL_SUCCESS;
}

SIM_CALL aclrtIpcOpenEventHandle(aclrtIpcEventHandle handle, aclrtEvent* event) {
  SIM_ENTER(aclrtIpcOpenEventHandle);
  if (!event) return ACL_ERROR_INVALID_PARAM;
  Context* context = current();
  if (!context) return ACL_ERROR_RT_CONTEXT_NULL;
  if (!settings().ipc_events) return ACL_ERROR_RT_FEATURE_NOT_SUPPORT;
  std::uint64_t number = 0;
  std::memcpy(&number, handle.reserved, sizeof number);
  auto memory = Memory::import(number);
  if (!memory) return ACL_ERROR_RT_DRV_INTERNAL_ERROR;
  if (memory->device != context->device) {  // opening it is enough for the card's memory, too
    const std::lock_guard lock(state().mutex);
    state().peers.insert({context->device, memory->device});
  }
  return add(event, ACL_EVENT_IPC, false, std::move(memory));
}
