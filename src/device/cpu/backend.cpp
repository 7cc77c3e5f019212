// SPDX-License-Identifier: Apache-2.0
#include <sys/sysinfo.h>
#include <unistd.h>

#include <cstring>

#include "core/throw_error.h"
#include "memfd_memory.h"
#include "named_file_memory.h"
#include "os/memfd.h"
#include "physical_chunk.h"
#include "reservation.h"

namespace onecopy {

namespace {

/// The backend of host memory: memfds, and named files for users that need names. No other process can map private pages
/// of this process in place, so memory of other libraries is not adopted.
class CpuBackend final : public Backend {
 public:
  DeviceType type() const noexcept override { return DeviceType::cpu; }
  BackendTraits traits() const noexcept override {
    BackendTraits traits;
    traits.maps_one_chunk_twice = traits.maps_parts = true;
    return traits;
  }
  std::vector<DeviceInfo> devices() const override;
  std::size_t granularity() const noexcept override { return page_; }
  std::unique_ptr<DeviceMemory> create(int ordinal, std::size_t bytes, SegmentKind kind,
                                       const std::string& owner, std::uint32_t number) override;
  std::unique_ptr<DeviceMemory> open(int home, ExportedMemory memory, Access access, int user) override;
  std::unique_ptr<Reservation> reserve(int, std::size_t bytes) override {
    return std::make_unique<HostReservation>(bytes);
  }
  std::unique_ptr<PhysicalChunk> create_chunk(int, std::size_t bytes) override {
    return create_memfd_chunk(bytes);
  }
  std::unique_ptr<PhysicalChunk> create_chunk_in(Reservation& where, int) override {
    return create_memfd_chunk_in(where);
  }
  std::vector<std::unique_ptr<PhysicalChunk>> import_chunks(int, ExportedMemory memory, int) override {
    return import_memfd_chunks(std::move(memory));
  }
  ExportedMemory export_chunks(std::span<const std::unique_ptr<PhysicalChunk>> chunks,
                               Access access) const override {
    return export_memfd_chunks(chunks, access);
  }
  ExportedMemory duplicate(const ExportedMemory& memory, Access access) const override;
  void copy(const Transfer& transfer, Stream) override {
    std::memcpy(transfer.to, transfer.from, transfer.bytes);
  }
  void synchronize(int, Stream) override {}

 private:
  std::size_t page_ = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
};

void check_ordinal(int ordinal) {
  if (ordinal != 0)
    throw_error(ErrorCode::invalid_argument, "there is one cpu device, number 0; {} was asked for",
                ordinal);
}

std::vector<DeviceInfo> CpuBackend::devices() const {
  DeviceInfo info;
  info.device = kCpu;
  info.name = "host memory";
  struct sysinfo system {};
  if (::sysinfo(&system) == 0)
    info.total_bytes = static_cast<std::uint64_t>(system.totalram) * system.mem_unit;
  return {info};
}

std::unique_ptr<DeviceMemory> CpuBackend::create(int ordinal, std::size_t bytes, SegmentKind kind,
                                                 const std::string& owner, std::uint32_t number) {
  check_ordinal(ordinal);
  check_size(bytes);
  switch (kind) {
    case SegmentKind::memfd: return create_memfd_memory(bytes, owner, number);
    case SegmentKind::named_file: return create_named_file_memory(bytes, owner, number);
    default: refuse(kind);
  }
}

std::unique_ptr<DeviceMemory> CpuBackend::open(int home, ExportedMemory memory, Access access, int) {
  check_ordinal(home);
  if (memory.size == 0 || memory.size % page_ != 0)
    throw_error(ErrorCode::bad_handle, "a segment of {} bytes is not a whole number of pages", memory.size);
  switch (memory.kind) {
    case SegmentKind::memfd:
    case SegmentKind::shared_file:
    case SegmentKind::sealed_file: return open_memfd_memory(std::move(memory), access);
    case SegmentKind::named_file: return open_named_file_memory(memory, access);
    default: refuse(memory.kind);
  }
}

ExportedMemory CpuBackend::duplicate(const ExportedMemory& memory, Access access) const {
  ExportedMemory copy{memory.kind, memory.size, {}, memory.blob, memory.device};
  const bool is_reopened = access == Access::read_only && memory.kind != SegmentKind::sealed_file;
  for (const Fd& fd : memory.fds) copy.fds.push_back(is_reopened ? reopen_read_only(fd) : fd.duplicate());
  return copy;
}

}  // namespace

Backend& cpu_backend() {
  static CpuBackend* const instance = new CpuBackend;
  return *instance;
}

}  // namespace onecopy
