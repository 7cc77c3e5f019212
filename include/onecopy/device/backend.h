// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "onecopy/core/bytes.h"
#include "onecopy/core/device.h"
#include "onecopy/core/tensor_view.h"
#include "onecopy/os/fd.h"

namespace onecopy {

/// How a segment's memory came to be, and so how it is opened. The numbers travel in handles.
enum class SegmentKind : std::uint8_t {
  memfd = 1,       ///< anonymous file: strategy file_descriptor
  named_file = 2,  ///< a file with a name in shared_directory(): strategy file_system
  cuda_vmm = 3,    ///< cuMemCreate, POSIX descriptor
  cuda_ipc = 4,    ///< cudaMalloc, legacy handle
  ascend_key = 5,  ///< aclrtMalloc, IPC key
  ascend_vmm = 6,  ///< aclrtMallocPhysical, 64-bit shareable handle
};

/// What lets another process map a segment: descriptors for memfd and VMM kinds, a path in `blob`
/// for named files, vendor handle bytes in `blob` for the rest.
struct ExportedMemory {
  SegmentKind kind = SegmentKind::memfd;
  std::uint64_t size = 0;
  std::vector<Fd> fds;
  Bytes blob;
};

/// One region of one device, mapped into this process. Destroying it unmaps it; the memory itself
/// lives as long as any process has it mapped or holds a descriptor.
/// Thread safety: const members may be called concurrently; commit and decommit of disjoint ranges too.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;

  virtual std::byte* data() const noexcept = 0;
  virtual std::size_t size() const noexcept = 0;
  virtual SegmentKind kind() const noexcept = 0;
  /// Reserves physical memory for [offset, offset + bytes), so that touching it cannot fail later.
  /// Throws out_of_memory with the numbers; nothing is changed then.
  virtual void commit(std::size_t offset, std::size_t bytes) = 0;
  /// Gives physical memory back to the system; the content is lost.
  virtual void decommit(std::size_t offset, std::size_t bytes) noexcept = 0;
  /// What another process needs to map this. Throws out_of_descriptors, unsupported.
  virtual ExportedMemory export_memory(Access access) const = 0;
};

struct DeviceInfo {
  Device device;
  Uuid uuid;
  std::string name;
  std::uint64_t total_bytes = 0;
};

/// What onecopy wants from a vendor. One instance per process and kind, made by backend().
/// Thread safety: all members may be called concurrently.
class Backend {
 public:
  virtual ~Backend() = default;

  virtual DeviceType type() const noexcept = 0;
  /// Empty when the vendor's library or its devices are absent.
  virtual std::vector<DeviceInfo> devices() const = 0;
  /// Smallest unit of create() and commit() in bytes.
  virtual std::size_t granularity() const noexcept = 0;
  /// Reserves an address range of `bytes` (a multiple of granularity()); commit() fills it.
  /// `number` is the segment's number, `owner` the 32 hex digits that name its process: kinds with
  /// names use them.
  virtual std::unique_ptr<DeviceMemory> create(int ordinal, std::size_t bytes, SegmentKind kind,
                                               const std::string& owner, std::uint32_t number) = 0;
  /// Maps what another process exported. Checks sizes and seals; throws bad_handle, out_of_mappings.
  virtual std::unique_ptr<DeviceMemory> open(int ordinal, ExportedMemory memory, Access access) = 0;
};

/// The backend of a kind of device. Throws unsupported, saying what is missing.
Backend& backend(DeviceType type);
/// Every kind this build knows, whether or not it works on this machine.
std::vector<DeviceType> backend_types();

}  // namespace onecopy
