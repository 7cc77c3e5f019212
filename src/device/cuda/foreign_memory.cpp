// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <array>
#include <map>
#include <span>
#include <vector>

#include "backend.h"
#include "core/throw_error.h"
#include "devices.h"
#include "exported_chunks.h"
#include "os/mutex.h"
#include "peers.h"
#include "physical_chunk.h"
#include "recent_exports.h"

namespace onecopy::cuda {

namespace {

/// The driver's facts about an address; all zero for an address that it does not know.
struct PointerFacts {
  unsigned memory_type = 0;
  int ordinal = -1;
  unsigned managed = 0;
  unsigned legacy_capable = 0;
  unsigned long long buffer_id = 0;
  std::uint64_t handle_types = 0;
};

PointerFacts facts_of(const Driver& driver, CUdeviceptr at) {
  PointerFacts facts;
  const RelaxedCapture relaxed(driver);
  std::array<int, 6> wanted{
      CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
      CU_POINTER_ATTRIBUTE_IS_MANAGED,  CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
      CU_POINTER_ATTRIBUTE_BUFFER_ID,   CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES};
  std::array<void*, 6> values{&facts.memory_type,    &facts.ordinal,   &facts.managed,
                              &facts.legacy_capable, &facts.buffer_id, &facts.handle_types};
  driver.cuPointerGetAttributes.must(static_cast<unsigned>(wanted.size()), wanted.data(), values.data(),
                                     at);
  return facts;
}

void check_device_memory(const PointerFacts& facts, const void* at) {
  if (facts.memory_type != CU_MEMORYTYPE_DEVICE)
    throw_error(ErrorCode::invalid_argument, "{} is host memory, not memory of a CUDA device", at);
  if (facts.managed != 0)
    throw Error(ErrorCode::unsupported,
                "managed memory (cudaMallocManaged) cannot be opened by other processes; copy it to memory "
                "of a device first");
}

[[noreturn]] void throw_not_exportable() {
  throw Error(ErrorCode::unsupported,
              "this memory cannot be opened by other processes: it comes from a stream-ordered pool "
              "(cudaMallocAsync), or was mapped without an exportable handle type; copy it, or allocate it "
              "with cudaMalloc or onecopy");
}

struct Mapping {
  CUdeviceptr base = 0;
  std::size_t bytes = 0;
};

Mapping mapping_at(const Driver& driver, CUdeviceptr at) {
  Mapping mapping;
  driver.cuMemGetAddressRange.must(&mapping.base, &mapping.bytes, at);
  return mapping;
}

[[noreturn]] void throw_too_many_chunks(std::size_t bytes, std::size_t chunk) {
  throw_error(ErrorCode::unsupported,
              "these {} bytes lie in more than {} chunks (the last of {} bytes) of an expandable segment, "
              "and no more can be shared as one; share a copy, allocate the tensor with onecopy, or switch "
              "expandable segments off (PYTORCH_ALLOC_CONF=expandable_segments:False)",
              bytes, kMaxChunks, chunk);
}

/// Returns the chunks from the first byte's to the last byte's. Any of them may be replaced at its addresses, so all
/// contribute to `identity`.
Mapping row_of_mappings(const Driver& driver, CUdeviceptr at, std::size_t bytes, std::uint64_t& identity) {
  constexpr std::uint64_t kMix = 0x9e37'79b9'7f4a'7c15;
  Mapping row = mapping_at(driver, at);
  identity = facts_of(driver, row.base).buffer_id;
  std::size_t last = row.bytes;
  for (std::size_t chunks = 1; row.base + row.bytes < at + bytes; ++chunks) {
    if (chunks == kMaxChunks) throw_too_many_chunks(bytes, last);
    const CUdeviceptr next = row.base + row.bytes;
    const PointerFacts facts = facts_of(driver, next);
    if ((facts.handle_types & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) == 0) throw_not_exportable();
    identity = identity * kMix + facts.buffer_id;
    row.bytes += last = mapping_at(driver, next).bytes;
  }
  return row;
}

/// A framework's memory as a segment. Its maker keeps the memory; this object only exports it.
class AdoptedMemory final : public DeviceMemory {
 public:
  explicit AdoptedMemory(const ForeignMemory& memory) : DeviceMemory(Access::read_write), memory_(memory) {}
  AdoptedMemory& operator=(AdoptedMemory&&) = delete;
  ~AdoptedMemory() override;

  std::byte* data() const noexcept override { return memory_.base; }
  std::size_t size() const noexcept override { return memory_.bytes; }
  SegmentKind kind() const noexcept override { return memory_.kind; }
  std::vector<Fd> export_rest(std::size_t first) const override;
  std::byte* allow(int ordinal) override;

 private:
  ExportedMemory do_export(Access access) const override;
  void export_handle(ExportedMemory& memory, Access access) const;
  void export_chunks(ExportedMemory& memory, Access access) const;
  std::vector<std::uint64_t> chunk_sizes() const;
  std::vector<Fd> descriptors_of(std::span<const std::uint64_t> sizes, std::size_t first) const;

  const ForeignMemory memory_;
};

ExportedMemory AdoptedMemory::do_export(Access access) const {
  ExportedMemory memory;
  const UseDevice use(memory_.device.index);
  if (kind() == SegmentKind::cuda_ipc) export_handle(memory, access);
  else export_chunks(memory, access);
  return memory;
}

std::byte* AdoptedMemory::allow(int ordinal) {
  if (ordinal == memory_.device.index) return data();
  if (kind() == SegmentKind::cuda_ipc) allow_allocations(ordinal, memory_.device.index);
  else allow_mapping(reinterpret_cast<CUdeviceptr>(data()), size(), ordinal, memory_.device.index);
  return data();
}

void AdoptedMemory::export_handle(ExportedMemory& memory, Access access) const {
  ExportedChunks chunks{access, {size()}, {}};
  Driver::get().cuIpcGetMemHandle.must(&chunks.handle, reinterpret_cast<CUdeviceptr>(data()));
  memory.blob = encode(chunks);
}

std::vector<std::uint64_t> AdoptedMemory::chunk_sizes() const {
  const Driver& driver = Driver::get();
  std::vector<std::uint64_t> sizes;
  const auto begin = reinterpret_cast<CUdeviceptr>(data());
  for (CUdeviceptr at = begin; at < begin + size(); at += sizes.back())
    sizes.push_back(mapping_at(driver, at).bytes);
  return sizes;
}

AdoptedMemory::~AdoptedMemory() {
  RecentExports::instance().forget(reinterpret_cast<CUdeviceptr>(data()), size());
}

/// Returns the descriptors of one message.
std::vector<Fd> AdoptedMemory::descriptors_of(std::span<const std::uint64_t> sizes,
                                              std::size_t first) const {
  const Driver& driver = Driver::get();
  std::vector<Fd> fds;
  auto at = reinterpret_cast<CUdeviceptr>(data());
  for (std::size_t i = 0; i < sizes.size() && fds.size() < kMaxDescriptors; at += sizes[i++])
    if (i >= first)
      fds.push_back(RecentExports::instance().get(driver, at, facts_of(driver, at).buffer_id));
  return fds;
}

void AdoptedMemory::export_chunks(ExportedMemory& memory, Access access) const {
  const ExportedChunks chunks{access, chunk_sizes(), {}};
  memory.fds = descriptors_of(chunks.sizes, 0);
  memory.missing = chunks.sizes.size() - memory.fds.size();
  memory.blob = encode(chunks);
}

std::vector<Fd> AdoptedMemory::export_rest(std::size_t first) const {
  if (kind() != SegmentKind::cuda_vmm) return {};
  const UseDevice use(memory_.device.index);
  return descriptors_of(chunk_sizes(), first);
}

}  // namespace

/// Finds the memory: an allocation of cudaMalloc, or a row of adjacent mappings, as in an expandable segment.
ForeignMemory CudaBackend::find_foreign(const void* pointer, std::size_t bytes) {
  const Driver& driver = Driver::get();
  const auto at = reinterpret_cast<CUdeviceptr>(pointer);
  const PointerFacts facts = facts_of(driver, at);
  check_device_memory(facts, pointer);
  const UseDevice use(facts.ordinal);  // the caller may be a thread that has never used the device
  ForeignMemory found;
  found.device = {DeviceType::cuda, static_cast<std::int16_t>(facts.ordinal)};
  found.identity = facts.buffer_id;
  Mapping mapping;
  if (facts.legacy_capable != 0) {
    found.kind = SegmentKind::cuda_ipc;
    mapping = mapping_at(driver, at);
    if (at + bytes > mapping.base + mapping.bytes)
      throw_error(ErrorCode::invalid_argument, "{} bytes reach past the end of an allocation of {}", bytes,
                  mapping.bytes);
  } else if ((facts.handle_types & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0) {
    found.kind = SegmentKind::cuda_vmm;
    mapping = row_of_mappings(driver, at, bytes, found.identity);
  } else {
    throw_not_exportable();
  }
  found.base = reinterpret_cast<std::byte*>(mapping.base);
  found.bytes = mapping.bytes;
  return found;
}

/// An allocation or a mapping has a buffer id, which is never reused. In a row of several mappings each may have been
/// replaced, and the row's identity is not the id of any of them.
bool CudaBackend::is_still(const ForeignMemory& memory, const void* at) const noexcept {
  int wanted = CU_POINTER_ATTRIBUTE_BUFFER_ID;
  unsigned long long buffer_id = 0;
  void* value = &buffer_id;
  const Driver& driver = Driver::get();
  const RelaxedCapture relaxed(driver);
  return driver.cuPointerGetAttributes(1, &wanted, &value, reinterpret_cast<CUdeviceptr>(at)) ==
             CUDA_SUCCESS &&
         buffer_id == memory.identity;
}

/// Adopts an allocation. The segment is exported by a descriptor for each mapping, created on demand, or by a legacy
/// handle; a segment with a legacy handle is *weak*: it ends with its process.
std::unique_ptr<DeviceMemory> CudaBackend::adopt(const ForeignMemory& memory) {
  return std::make_unique<AdoptedMemory>(memory);
}

}  // namespace onecopy::cuda
