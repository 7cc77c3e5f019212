// SPDX-License-Identifier: Apache-2.0
// Copies, memset, and stream memory operations.
#include <atomic>
#include <chrono>
#include <cstring>
#include <optional>

#include "graph.h"
#include "stream.h"

using namespace sim;

namespace {

/// One end of a copy, resolved and checked.
struct Side {
  std::shared_ptr<Memory> keep;
  std::byte* at = nullptr;
  bool pageable = false;
  std::shared_ptr<PinnedPages> pinned{};
  std::size_t offset = 0;  ///< in those
};

enum class Use { read, write };

bool may(const Range& range, Use use, int device) {
  if (range.kind != RangeKind::vmm) return true;
  const auto flags = range.access.find(device);
  if (flags == range.access.end()) return false;
  return use == Use::read ? flags->second != CU_MEM_ACCESS_FLAGS_PROT_NONE
                          : flags->second == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
}

/// A copy there faults once the driver has taken the pages from the card (seen on an H100), and all work of the process
/// with it. REQUIRES: the state is locked.
CUresult fail_in_leaving_range() {
  for (const auto& [number, context] : state().primary) of(context)->failed = CUDA_ERROR_LAUNCH_FAILED;
  return CUDA_SUCCESS;
}

/// A copy may span neighbouring mappings, as of an expandable segment; then it is done in pieces.
CUresult resolve(CUdeviceptr at, std::size_t bytes, Use use, int device, Side& side, std::size_t& here) {
  const std::lock_guard lock(state().mutex);
  const Range* range = state().find(at);
  here = bytes;
  if (!range) {
    side = {nullptr, reinterpret_cast<std::byte*>(at), true, nullptr, 0};
    return CUDA_SUCCESS;
  }
  if (!may(*range, use, device)) return CUDA_ERROR_INVALID_VALUE;
  if (range->is_leaving) return fail_in_leaving_range();
  here = std::min<std::size_t>(bytes, range->base + range->size - at);
  if (here < bytes && range->kind != RangeKind::vmm) return CUDA_ERROR_INVALID_VALUE;
  side = {range->memory, range->host(at), false, range->pinned, at - range->base};
  return CUDA_SUCCESS;
}

/// Whose access rights count at each end.
struct Devices {
  int to;
  int from;
};

CUresult copy_piece(Stream& stream, CUdeviceptr to, CUdeviceptr from, std::size_t& bytes, Devices devices) {
  Side target;
  Side source;
  std::size_t here = bytes;
  if (const CUresult result = resolve(to, bytes, Use::write, devices.to, target, here)) return result;
  bytes = here;
  if (const CUresult result = resolve(from, bytes, Use::read, devices.from, source, here)) return result;
  bytes = here;
  if (stream.capture && (target.pageable || source.pageable)) {
    stream.capture->invalid = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  const bool waits = target.pageable || source.pageable;  // as with memory that is not pinned
  if (!stream.capture) {
    note_use(stream, to, here, true);
    note_use(stream, from, here, false);
  }
  const CUresult result = stream.submit([target = std::move(target), source = std::move(source), here] {
    if (source.pinned) source.pinned->read(source.offset, target.at, here);
    else std::memmove(target.at, source.at, here);
  });
  if (result == CUDA_SUCCESS && waits) stream.synchronize();
  return result;
}

std::atomic<std::size_t> staged_copies{0};
std::atomic<std::size_t> batches{0};

bool reaches(const Context& card, const Range& range, Use use) {
  switch (range.kind) {
    case RangeKind::allocation: return range.device == card.device || card.peers.contains(range.device);
    case RangeKind::ipc: return range.device == card.device;
    default: return may(range, use, card.device);
  }
}

/// Memory that the card of the stream cannot reach comes and goes by way of the host, at a tenth of the speed.
bool reaches(const Context& card, CUdeviceptr at, std::size_t bytes, Use use) {
  const std::lock_guard lock(state().mutex);
  for (const CUdeviceptr end = at + bytes; at < end;) {
    const Range* range = state().find(at);
    if (!range) return true;  // pageable
    if (!reaches(card, *range, use)) return false;
    at = range->base + range->size;
  }
  return true;
}

CUresult copy(CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream handle,
              std::optional<Devices> devices = {}) {
  Stream* stream = Stream::find(handle);
  if (!stream) return current() ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_CONTEXT;
  const int own = stream->context->device;
  if (!reaches(*stream->context, from, bytes, Use::read) ||
      !reaches(*stream->context, to, bytes, Use::write))
    ++staged_copies;
  for (std::size_t done = 0; done < bytes;) {
    std::size_t piece = bytes - done;
    if (const CUresult result =
            copy_piece(*stream, to + done, from + done, piece, devices.value_or(Devices{own, own})))
      return result;
    done += piece;
  }
  return CUDA_SUCCESS;
}

CUresult copy_and_wait(CUdeviceptr to, CUdeviceptr from, std::size_t bytes) {
  if (const CUresult refused = forbid_in_capture()) return refused;
  if (const CUresult result = copy(to, from, bytes, nullptr)) return result;
  Stream::find(nullptr)->synchronize();
  return result_in(current());
}

CUdeviceptr address(const void* pointer) { return reinterpret_cast<CUdeviceptr>(pointer); }

CUresult fill(CUdeviceptr at, unsigned char value, std::size_t bytes, CUstream handle) {
  Stream* stream = Stream::find(handle);
  if (!stream) return current() ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_CONTEXT;
  while (bytes > 0) {
    Side target;
    std::size_t here = bytes;
    if (const CUresult result = resolve(at, bytes, Use::write, stream->context->device, target, here))
      return result;
    if (target.pageable) return CUDA_ERROR_INVALID_VALUE;
    if (!stream->capture) note_use(*stream, at, here, true);
    const CUresult result = stream->submit([target, value, here] { std::memset(target.at, value, here); });
    if (result != CUDA_SUCCESS) return result;
    at += here;
    bytes -= here;
  }
  return CUDA_SUCCESS;
}

}  // namespace

/// For tests in the same process: how many copies went by way of the host, because the card that made them could not
/// reach the other's memory. Found by dlsym.
extern "C" __attribute__((visibility("default"))) std::size_t sim_staged() { return staged_copies; }

/// For tests in the same process: how many batches of copies there were. Found by dlsym.
extern "C" __attribute__((visibility("default"))) std::size_t sim_batches() { return batches; }

SIM_CALL cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
  SIM_ENTER(cuMemcpyAsync);
  return copy(to, from, bytes, stream);
}

SIM_CALL cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, std::size_t bytes, CUstream stream) {
  SIM_ENTER(cuMemcpyHtoDAsync);
  return copy(to, address(from), bytes, stream);
}

SIM_CALL cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, std::size_t bytes, CUstream stream) {
  SIM_ENTER(cuMemcpyDtoHAsync);
  return copy(address(to), from, bytes, stream);
}

SIM_CALL cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream handle) {
  SIM_ENTER(cuMemcpyDtoDAsync);
  Stream* stream = Stream::find(handle);
  if (!stream || !stream->capture) return copy(to, from, bytes, handle);
  auto node = std::make_shared<Node>();
  node->work = [to, from, bytes](Stream& into) {
    return copy(to, from, bytes, reinterpret_cast<CUstream>(&into));
  };
  return record_or_submit(*stream, std::move(node));
}

SIM_CALL cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context,
                           std::size_t bytes, CUstream stream) {
  SIM_ENTER(cuMemcpyPeerAsync);
  if (!to_context || !from_context) return CUDA_ERROR_INVALID_CONTEXT;
  return copy(to, from, bytes, stream, Devices{of(to_context)->device, of(from_context)->device});
}

/// As the driver's, refuses the legacy stream, captures, and copies without an order.
SIM_CALL cuMemcpyBatchAsync_v2(CUdeviceptr* to, CUdeviceptr* from, std::size_t* bytes, std::size_t count,
                               CUmemcpyAttributes* attributes, std::size_t* firsts,
                               std::size_t attribute_count, CUstream handle) {
  SIM_ENTER(cuMemcpyBatchAsync);
  const auto number = reinterpret_cast<std::uintptr_t>(handle);
  const bool has_order = attribute_count == 1 && *firsts == 0 && attributes->srcAccessOrder >= 1 &&
                         attributes->srcAccessOrder <= 3;
  if (number <= 1 || count == 0 || !has_order) return CUDA_ERROR_INVALID_VALUE;
  if (const Stream* stream = Stream::find(handle); stream && stream->capture)
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  for (std::size_t i = 0; i < count; ++i)
    if (const CUresult result = copy(to[i], from[i], bytes[i], handle)) return result;
  ++batches;
  return CUDA_SUCCESS;
}

SIM_CALL cuMemcpy(CUdeviceptr to, CUdeviceptr from, std::size_t bytes) {
  SIM_ENTER(cuMemcpy);
  return copy_and_wait(to, from, bytes);
}

SIM_CALL cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, std::size_t bytes) {
  SIM_ENTER(cuMemcpyHtoD);
  return copy_and_wait(to, address(from), bytes);
}

SIM_CALL cuMemcpyDtoH_v2(void* to, CUdeviceptr from, std::size_t bytes) {
  SIM_ENTER(cuMemcpyDtoH);
  return copy_and_wait(address(to), from, bytes);
}

SIM_CALL cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, std::size_t bytes) {
  SIM_ENTER(cuMemcpyDtoD);
  return copy_and_wait(to, from, bytes);
}

SIM_CALL cuMemsetD8Async(CUdeviceptr at, unsigned char value, std::size_t bytes, CUstream stream) {
  SIM_ENTER(cuMemsetD8Async);
  Stream* found = Stream::find(stream);
  if (!found || !found->capture) return fill(at, value, bytes, stream);
  auto node = std::make_shared<Node>();
  node->work = [at, value, bytes](Stream& into) {
    return fill(at, value, bytes, reinterpret_cast<CUstream>(&into));
  };
  return record_or_submit(*found, std::move(node));
}

SIM_CALL cuMemsetD8_v2(CUdeviceptr at, unsigned char value, std::size_t bytes) {
  SIM_ENTER(cuMemsetD8);
  if (const CUresult result = fill(at, value, bytes, nullptr)) return result;
  Stream::find(nullptr)->synchronize();
  return result_in(current());
}

// ---- stream memory operations

namespace {

using Word = std::atomic<std::uint64_t>;

/// The word must be device memory, or host memory that was registered.
CUresult resolve_word(const Stream& stream, CUdeviceptr at, Use use, Side& side) {
  if (at % sizeof(Word) != 0) return CUDA_ERROR_INVALID_VALUE;
  std::size_t here = 0;
  const CUresult result = resolve(at, sizeof(Word), use, stream.context->device, side, here);
  return result == CUDA_SUCCESS && side.pageable ? CUDA_ERROR_INVALID_VALUE : result;
}

bool is_reached(std::uint64_t now, std::uint64_t value, unsigned how) {
  switch (how) {
    case CU_STREAM_WAIT_VALUE_GEQ: return static_cast<std::int64_t>(now - value) >= 0;
    case CU_STREAM_WAIT_VALUE_EQ: return now == value;
    case CU_STREAM_WAIT_VALUE_AND: return (now & value) != 0;
    default: return ~(now | value) != 0;
  }
}

}  // namespace

SIM_CALL cuStreamWriteValue64_v2(CUstream handle, CUdeviceptr at, std::uint64_t value, unsigned flags) {
  SIM_ENTER(cuStreamWriteValue64);
  Stream* stream = Stream::find(handle);
  if (!stream) return CUDA_ERROR_INVALID_HANDLE;
  if (flags > 1) return CUDA_ERROR_INVALID_VALUE;
  Side side;
  if (const CUresult result = resolve_word(*stream, at, Use::write, side)) return result;
  return stream->submit([side, value] { reinterpret_cast<Word*>(side.at)->store(value); });
}

SIM_CALL cuStreamWaitValue64_v2(CUstream handle, CUdeviceptr at, std::uint64_t value, unsigned flags) {
  SIM_ENTER(cuStreamWaitValue64);
  Stream* stream = Stream::find(handle);
  if (!stream) return CUDA_ERROR_INVALID_HANDLE;
  if (flags > 3) return CUDA_ERROR_INVALID_VALUE;
  Side side;
  if (const CUresult result = resolve_word(*stream, at, Use::read, side)) return result;
  WindowOrder::instance().let_wait(stream->line,
                                   Stream::clock_of_all(*stream->context));  // by any writer
  return stream->submit([side, value, flags, context = stream->context] {
    const auto* word = reinterpret_cast<const Word*>(side.at);
    while (!is_reached(word->load(), value, flags) && result_in(context) == CUDA_SUCCESS)
      std::this_thread::sleep_for(std::chrono::microseconds(20));
  });
}
