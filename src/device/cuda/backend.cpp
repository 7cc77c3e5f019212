// SPDX-License-Identifier: Apache-2.0
#include "backend.h"

#include "core/throw_error.h"
#include "device/vmm_segment.h"
#include "devices.h"
#include "exported_chunks.h"
#include "peers.h"

namespace onecopy {
namespace cuda {
namespace {

constexpr std::size_t kUsualGranularity = std::size_t{2} << 20;
constexpr std::size_t kAlignment = 256;  // of cudaMalloc

/// Checks a borrower's segment before anything is mapped.
void check_chunks(const ExportedMemory& memory, Access access) {
  const ExportedChunks chunks = decode_chunks(memory);
  const bool are_all = memory.fds.size() == chunks.sizes.size();
  const bool has_rest = memory.rest && !memory.fds.empty() && memory.fds.size() < chunks.sizes.size();
  if (!are_all && !has_rest)
    throw_error(ErrorCode::bad_handle, "a CUDA segment of {} chunks came with {} descriptors",
                chunks.sizes.size(), memory.fds.size());
  require_lent(chunks.access, access);
}

}  // namespace

BackendTraits CudaBackend::traits() const noexcept {
  BackendTraits traits{SegmentKind::cuda_vmm, kAlignment, true, false, "CUDA_VISIBLE_DEVICES"};
  traits.maps_one_chunk_twice = true;
  return traits;
}

/// Returns the devices. Without a driver or a device the list is empty, which is not an error.
std::vector<DeviceInfo> CudaBackend::devices() const {
  std::vector<DeviceInfo> infos;
  if (!Driver::try_get()) return infos;
  Devices& devices = Devices::get();
  for (std::size_t i = 0; i < devices.size(); ++i) infos.push_back(devices.at(static_cast<int>(i)).info);
  return infos;
}

std::size_t CudaBackend::granularity() const noexcept {
  try {
    const std::size_t unit = Devices::get().granularity();
    return unit != 0 ? unit : kUsualGranularity;
  } catch (const Error&) {
    return kUsualGranularity;
  }
}

std::unique_ptr<DeviceMemory> CudaBackend::create(int ordinal, std::size_t bytes, SegmentKind kind,
                                                  const std::string&, std::uint32_t) {
  if (kind != SegmentKind::cuda_vmm) refuse(kind);
  const DeviceEntry& device = Devices::get().at(ordinal);
  check_size(bytes);
  require_exports(device);
  return std::make_unique<VmmSegment>(*this, kind, ordinal, bytes);
}

std::unique_ptr<DeviceMemory> CudaBackend::open(int home, ExportedMemory memory, Access access, int user) {
  switch (memory.kind) {
    case SegmentKind::cuda_vmm: return open_chunks(home, std::move(memory), access, user);
    case SegmentKind::cuda_sealed: return open_sealed(home, std::move(memory), access, user);
    case SegmentKind::cuda_ipc: return open_legacy(home, memory, access, user);
    default: refuse(memory.kind);
  }
}

std::unique_ptr<DeviceMemory> CudaBackend::open_chunks(int home, ExportedMemory memory, Access access,
                                                       int user) {
  check_chunks(memory, access);
  check_path(user, home);
  return std::make_unique<VmmSegment>(*this, home, user, std::move(memory), access);
}

/// Duplicates the descriptors. All accesses share one descriptor, because the mapping determines the access.
ExportedMemory CudaBackend::duplicate(const ExportedMemory& memory, Access access) const {
  ExportedMemory copy{memory.kind, memory.size, {}, memory.blob, memory.device};
  for (const Fd& fd : memory.fds) copy.fds.push_back(fd.duplicate());
  if (access == Access::read_only) {
    ExportedChunks chunks = decode_chunks(memory);
    chunks.access = access;
    copy.blob = encode(chunks);
  }
  return copy;
}

}  // namespace cuda

Backend& cuda_backend() {
  static auto* const instance = new cuda::CudaBackend;
  return *instance;
}

}  // namespace onecopy
