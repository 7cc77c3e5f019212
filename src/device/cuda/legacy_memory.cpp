// SPDX-License-Identifier: Apache-2.0
// Memory of cudaMalloc in another process, opened by its legacy handle.
#include <fmt/format.h>

#include <map>
#include <memory>
#include <string>

#include "backend.h"
#include "core/throw_error.h"
#include "devices.h"
#include "exported_chunks.h"
#include "os/mutex.h"
#include "peers.h"

namespace onecopy::cuda {

namespace {

[[noreturn]] void throw_not_opened(CUresult result) {
  const std::string words = Driver::get().describe(result);
  if (result == CUDA_ERROR_INVALID_HANDLE)
    throw Error(ErrorCode::owner_died,
                fmt::format("the memory was made by cudaMalloc in a process that is gone or has freed it, "
                            "and such memory does not outlive its process ({})",
                            words),
                result, ErrorDomain::cuda);
  if (result == CUDA_ERROR_INVALID_CONTEXT)
    throw Error(ErrorCode::unsupported,
                fmt::format("the driver cannot open this memory here ({}): processes in different PID "
                            "namespaces need a common one (docker: --pid=host or --pid=container:...)",
                            words),
                result, ErrorDomain::cuda);
  throw_result(result, "cuIpcOpenMemHandle");
}

CUdeviceptr open_legacy_handle(const CUipcMemHandle& handle, int ordinal) {
  const UseDevice use(ordinal);
  CUdeviceptr base = 0;
  const CUresult result =
      Driver::get().cuIpcOpenMemHandle(&base, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
  if (result != CUDA_SUCCESS) throw_not_opened(result);
  return base;
}

void close_legacy_handle(CUdeviceptr base, int ordinal) noexcept {
  try {
    const UseDevice use(ordinal);
    Driver::get().cuIpcCloseMemHandle(base);
  } catch (const Error&) {
    // The device is gone, and the mapping with it.
  }
}

/// An allocation of another process, opened by its legacy handle. A handle serves one device. Kernels of another device
/// find the memory only where it was opened for that device, at other addresses, even with peer access.
class LegacyMemory final : public DeviceMemory {
 public:
  LegacyMemory(int home, int user, CUdeviceptr base, std::size_t bytes, Access access,
               CUipcMemHandle handle)
      : DeviceMemory(access), home_(home), user_(user), base_(base), bytes_(bytes), handle_(handle) {}
  ~LegacyMemory() override;

  std::byte* data() const noexcept override { return reinterpret_cast<std::byte*>(base_); }
  std::size_t size() const noexcept override { return bytes_; }
  SegmentKind kind() const noexcept override { return SegmentKind::cuda_ipc; }
  std::byte* allow(int ordinal) override;

 private:
  ExportedMemory do_export(Access access) const override;
  const int home_;  ///< the device that holds the memory
  const int user_;  ///< the device for which the memory is at `base_`
  const CUdeviceptr base_;
  const std::size_t bytes_;
  const CUipcMemHandle handle_;
  Mutex mutex_;
  std::map<int, CUdeviceptr> others_;  ///< the addresses for devices other than `user_`
};

LegacyMemory::~LegacyMemory() {
  if (!Driver::try_get()) return;
  for (const auto& [ordinal, base] : others_) close_legacy_handle(base, ordinal);
  close_legacy_handle(base_, user_);
}

std::byte* LegacyMemory::allow(int ordinal) {
  if (ordinal == user_) return data();
  const LockGuard lock(mutex_);
  auto at = others_.find(ordinal);
  if (at == others_.end()) {
    check_path(ordinal, home_);
    at = others_.emplace(ordinal, open_legacy_handle(handle_, ordinal)).first;
  }
  return reinterpret_cast<std::byte*>(at->second);
}

/// Exports the owner's handle, which opens the memory for other processes, too.
ExportedMemory LegacyMemory::do_export(Access access) const {
  ExportedMemory memory;
  memory.blob = encode({access, {size()}, handle_});
  return memory;
}

}  // namespace

/// Opens another process's allocation by its legacy handle. The driver cannot map this memory read-only.
std::unique_ptr<DeviceMemory> CudaBackend::open_legacy(int home, const ExportedMemory& memory,
                                                       Access access, int user) {
  const ExportedChunks chunks = decode_chunks(memory);
  require_lent(chunks.access, access);
  check_path(user, home);
  const CUdeviceptr base = open_legacy_handle(chunks.handle, user);
  return std::make_unique<LegacyMemory>(home, user, base, memory.size, access, chunks.handle);
}

}  // namespace onecopy::cuda
