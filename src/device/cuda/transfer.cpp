// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <memory>

#include "backend.h"
#include "detours.h"
#include "device/copy_counts.h"
#include "devices.h"
#include "onecopy/core/error.h"
#include "peers.h"

namespace onecopy::cuda {

namespace {

CUdeviceptr address(const void* pointer) { return reinterpret_cast<CUdeviceptr>(pointer); }

/// Starts a copy in which the destination card reads the other's memory directly, if it may. The driver's own call for
/// two cards goes through the host for all memory that was mapped for its own card alone: 38 GB/s instead of 391 (seen
/// on two H200).
CUresult start_between_cards(const Driver& driver, const Transfer& t, CUstream stream) {
  const bool direct = let_read(t.to_device.index, t.from_device.index, address(t.from), t.bytes);
  ++(direct ? copy_counts.direct : copy_counts.staged);
  if (direct) return driver.cuMemcpyDtoDAsync(address(t.to), address(t.from), t.bytes, stream);
  copy_counts.staged_bytes += t.bytes;
  Devices& devices = Devices::get();
  return driver.cuMemcpyPeerAsync(address(t.to), devices.context(t.to_device.index), address(t.from),
                                  devices.context(t.from_device.index), t.bytes, stream);
}

CUresult start(const Driver& driver, const Transfer& t, CUstream stream) {
  const bool from_host = t.from_device.type == DeviceType::cpu;
  const bool to_host = t.to_device.type == DeviceType::cpu;
  if (from_host) return driver.cuMemcpyHtoDAsync(address(t.to), t.from, t.bytes, stream);
  if (to_host) return driver.cuMemcpyDtoHAsync(t.to, address(t.from), t.bytes, stream);
  if (t.from_device == t.to_device)
    return driver.cuMemcpyDtoDAsync(address(t.to), address(t.from), t.bytes, stream);
  return start_between_cards(driver, t, stream);
}

}  // namespace

void CudaBackend::copy(const Transfer& transfer, Stream stream) {
  if (transfer.bytes == 0) return;
  const Device at = transfer.to_device.type == DeviceType::cpu ? transfer.from_device : transfer.to_device;
  const Driver& driver = Driver::get();
  const UseDevice use(at.index);
  const CUresult result = start(driver, transfer, static_cast<CUstream>(stream.native));
  if (result == CUDA_ERROR_INVALID_VALUE)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("cannot copy {} bytes from {} to {}: one side is not memory of that device, is "
                            "too short, or was opened for reading only ({})",
                            transfer.bytes, transfer.from_device.str(), transfer.to_device.str(),
                            driver.describe(result)),
                result, ErrorDomain::cuda);
  check(result, "copying");
}

void CudaBackend::copy_aside(const Transfer& transfer, Stream stream) {
  if (!Detours::get().copy(*this, transfer, stream)) copy(transfer, stream);
}

void CudaBackend::synchronize(int ordinal, Stream stream) {
  const Driver& driver = Driver::get();
  const UseDevice use(ordinal);
  driver.cuStreamSynchronize.must(static_cast<CUstream>(stream.native));
}

/// Registers the words with one portable registration that serves all devices.
bool CudaBackend::register_words(int ordinal, void* words, std::size_t bytes) {
  const Driver& driver = Driver::get();
  if (!Devices::get().at(ordinal).has_stream_words) return false;
  const UseDevice use(ordinal);
  const CUresult result =
      driver.cuMemHostRegister(words, bytes, kHostRegisterPortable | kHostRegisterMapped);
  if (result == CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED || result == CUDA_SUCCESS) return true;
  if (result == CUDA_ERROR_NOT_SUPPORTED || result == CUDA_ERROR_NOT_PERMITTED) return false;
  throw_result(result, "cuMemHostRegister");
}

namespace {

/// Returns whether the stream is being captured. The legacy stream is unusable while a stream that waits for it is
/// captured.
bool is_capturing(const Driver& driver, Stream stream) {
  int status = CU_STREAM_CAPTURE_STATUS_NONE;
  const CUresult result = driver.cuStreamIsCapturing(static_cast<CUstream>(stream.native), &status);
  if (result == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) return true;
  check(result, "cuStreamIsCapturing");
  return status != CU_STREAM_CAPTURE_STATUS_NONE;
}

/// Returns the stream that writes and waits for words. Every thread's default stream has the same handle, but a word
/// belongs to one stream, so the word goes to the legacy stream: it waits for all default streams, and they wait for
/// it.
CUstream stream_for_words(Stream stream) {
  constexpr std::uintptr_t kPerThread = 2;  // CU_STREAM_PER_THREAD
  const bool is_threads = reinterpret_cast<std::uintptr_t>(stream.native) == kPerThread;
  return is_threads ? nullptr : static_cast<CUstream>(stream.native);
}

/// Throws during a capture, since a graph would write and wait for the same values at every launch.
void check_not_captured(const Driver& driver, Stream stream) {
  if (is_capturing(driver, stream))
    throw Error(ErrorCode::unsupported,
                "this stream is being captured, and a graph cannot be ordered with other processes by the "
                "order of one capture; share and open before the capture, and order each launch");
}

CUdeviceptr device_address(const Driver& driver, int ordinal, const void* word) {
  if (Devices::get().at(ordinal).has_host_addresses) return address(word);
  CUdeviceptr at = 0;
  driver.cuMemHostGetDevicePointer.must(&at, const_cast<void*>(word), 0);
  return at;
}

}  // namespace

bool CudaBackend::is_captured(int ordinal, Stream stream) {
  const UseContext use(ordinal);
  return is_capturing(Driver::get(), stream);
}

namespace {

/// Returns whether the stream is the legacy stream, which takes no batches.
bool is_legacy(CUstream stream) {
  return reinterpret_cast<std::uintptr_t>(stream) <= 1;
}  // CU_STREAM_LEGACY

CUresult start_batch(const Driver& driver, std::span<const Transfer> transfers, CUstream stream) {
  std::vector<CUdeviceptr> to(transfers.size()), from(transfers.size());
  std::vector<std::size_t> bytes(transfers.size());
  for (std::size_t i = 0; i < transfers.size(); ++i) {
    to[i] = address(transfers[i].to);
    from[i] = address(transfers[i].from);
    bytes[i] = transfers[i].bytes;
  }
  // In the order of the stream: with ANY the driver may read a source before earlier work of the stream wrote it.
  CUmemcpyAttributes order{CU_MEMCPY_SRC_ACCESS_ORDER_STREAM, {}, {}, 0};
  std::size_t first = 0;
  return driver.cuMemcpyBatchAsync(to.data(), from.data(), bytes.data(), to.size(), &order, &first, 1,
                                   stream);
}

}  // namespace

/// Copies one by one in the legacy stream, in a capture, and with a driver before CUDA 13.
void CudaBackend::copy_batch(std::span<const Transfer> transfers, Stream stream) {
  const Driver& driver = Driver::get();
  const auto native = static_cast<CUstream>(stream.native);
  const Transfer& any = transfers.front();
  const UseDevice use((any.to_device.type == DeviceType::cpu ? any.from_device : any.to_device).index);
  if (!driver.cuMemcpyBatchAsync || is_legacy(native) || is_capturing(driver, stream))
    return Backend::copy_batch(transfers, stream);
  check(start_batch(driver, transfers, native), "copying a batch");
}

namespace {

bool is_busy(const Driver& driver, Stream stream) {
  return driver.cuStreamQuery(static_cast<CUstream>(stream.native)) == CUDA_ERROR_NOT_READY;
}

/// Returns whether new work in the stream waits for the legacy stream. A query does not report this (seen on an H200).
bool waits_for_legacy(const Driver& driver, Stream stream) {
  constexpr std::uintptr_t kLastOfLegacy = 1;  // CU_STREAM_LEGACY; 0 is the default stream
  if (reinterpret_cast<std::uintptr_t>(stream.native) <= kLastOfLegacy) return false;
  unsigned flags = CU_STREAM_NON_BLOCKING;
  driver.cuStreamGetFlags(static_cast<CUstream>(stream.native), &flags);
  return (flags & CU_STREAM_NON_BLOCKING) == 0;
}

}  // namespace

bool CudaBackend::has_work(int ordinal, Stream stream) noexcept {
  try {
    const Driver& driver = Driver::get();
    const UseDevice use(ordinal);
    if (is_capturing(driver, stream)) return false;  // a query would end the capture
    if (is_busy(driver, stream)) return true;
    return waits_for_legacy(driver, stream) && !is_capturing(driver, {}) && is_busy(driver, {});
  } catch (const Error&) {  // the device has failed, or this is a forked child
    return false;
  }
}

std::optional<Error> CudaBackend::failure(int ordinal) {
  try {
    const UseContext use(ordinal);
    // Of the calls that report a failure even during a capture, is_capturing() is the fastest (seen on an H200).
    is_capturing(Driver::get(), {});
  } catch (const Error& error) {
    if (error.domain() == ErrorDomain::cuda && is_final(error.vendor_code())) return error;
  }
  return {};
}

void CudaBackend::write_word(int ordinal, Stream stream, std::atomic<std::uint64_t>& word,
                             std::uint64_t value) {
  const Driver& driver = Driver::get();
  const UseContext use(ordinal);
  check_not_captured(driver, stream);
  driver.cuStreamWriteValue64.must(stream_for_words(stream), device_address(driver, ordinal, &word), value,
                                   CU_STREAM_WRITE_VALUE_DEFAULT);
}

namespace {

struct LaterStore {
  std::atomic<std::uint64_t>& word;
  std::uint64_t value;
};

/// Stores the value on the driver's thread, which serves all streams and must not call the driver or wait.
void store_now(void* argument) {
  const std::unique_ptr<LaterStore> later(static_cast<LaterStore*>(argument));
  later->word.store(later->value);
}

}  // namespace

bool CudaBackend::write_word_by_host(int ordinal, Stream stream, std::atomic<std::uint64_t>& word,
                                     std::uint64_t value) {
  const Driver& driver = Driver::get();
  if (!driver.cuLaunchHostFunc) return false;
  const UseContext use(ordinal);
  check_not_captured(driver, stream);
  auto later = std::make_unique<LaterStore>(LaterStore{word, value});
  driver.cuLaunchHostFunc.must(stream_for_words(stream), store_now, later.get());
  static_cast<void>(later.release());  // the driver owns it
  return true;
}

void CudaBackend::wait_for_word(int ordinal, Stream stream, const std::atomic<std::uint64_t>& word,
                                std::uint64_t value) {
  const Driver& driver = Driver::get();
  const UseContext use(ordinal);
  check_not_captured(driver, stream);
  driver.cuStreamWaitValue64.must(stream_for_words(stream), device_address(driver, ordinal, &word), value,
                                  CU_STREAM_WAIT_VALUE_GEQ);
}

}  // namespace onecopy::cuda
