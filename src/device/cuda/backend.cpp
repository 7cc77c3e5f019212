// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "detours.h"
#include "device/vmm_segment.h"
#include "devices.h"
#include "exported_chunks.h"
#include "factory.h"
#include "foreign_memory.h"
#include "graphs.h"
#include "host_pages.h"
#include "onecopy/core/error.h"
#include "peers.h"
#include "physical_chunk.h"
#include "reservation.h"
#include "transfer.h"
#include "work.h"

namespace onecopy {

namespace {

using cuda::Devices;

constexpr std::size_t kUsualGranularity = std::size_t{2} << 20;
constexpr std::size_t kAlignment = 256;  // of cudaMalloc

void check_exports(int ordinal) {
  if (Devices::get().at(ordinal).exports_descriptors) return;
  throw Error(
      ErrorCode::unsupported,
      fmt::format("cuda:{} cannot give memory to other processes as descriptors (a Tegra, a virtual "
                  "GPU or an old driver); share memory made by cudaMalloc instead",
                  ordinal));
}

/// The backend of NVIDIA's devices: memory of onecopy by virtual memory management, and memory of other allocators in
/// place.
class CudaBackend final : public Backend {
 public:
  DeviceType type() const noexcept override { return DeviceType::cuda; }
  BackendTraits traits() const noexcept override {
    BackendTraits traits{SegmentKind::cuda_vmm, kAlignment, true, false, "CUDA_VISIBLE_DEVICES"};
    traits.maps_one_chunk_twice = true;
    return traits;
  }
  std::vector<DeviceInfo> devices() const override;
  std::size_t granularity() const noexcept override;
  std::unique_ptr<DeviceMemory> create(int ordinal, std::size_t bytes, SegmentKind kind,
                                       const std::string& owner, std::uint32_t number) override;
  std::unique_ptr<DeviceMemory> open(int home, ExportedMemory memory, Access access, int user) override;
  std::unique_ptr<Reservation> reserve(int, std::size_t bytes) override {
    return std::make_unique<cuda::CudaReservation>(bytes);
  }
  std::unique_ptr<PhysicalChunk> create_chunk(int ordinal, std::size_t bytes) override {
    check_exports(ordinal);
    return cuda::create_chunk(ordinal, bytes);
  }
  std::vector<std::unique_ptr<PhysicalChunk>> import_chunks(int home, ExportedMemory memory, int) override {
    return cuda::import_chunks(home, std::move(memory));
  }
  ExportedMemory export_chunks(std::span<const std::unique_ptr<PhysicalChunk>> chunks,
                               Access access) const override {
    return cuda::export_chunks(chunks, access);
  }
  ExportedMemory duplicate(const ExportedMemory& memory, Access access) const override;
  void copy(const Transfer& transfer, Stream stream) override { cuda::enqueue(transfer, stream); }
  void copy_aside(const Transfer& transfer, Stream stream) override {
    if (!cuda::Detours::get().copy(transfer, stream)) cuda::enqueue(transfer, stream);
  }
  void synchronize(int ordinal, Stream stream) override { cuda::synchronize(ordinal, stream); }
  void pin_host(int ordinal, void* at, std::size_t bytes, Access access) override {
    cuda::pin_host(ordinal, at, bytes, access);
  }
  void unpin_host(int ordinal, void* at) noexcept override { cuda::unpin_host(ordinal, at); }
  void require_in_place(int ordinal, const void* at) override { cuda::require_in_place(ordinal, at); }
  int device_in_use() const noexcept override { return cuda::device_in_use(); }
  std::unique_ptr<WorkPoint> mark_work() override { return cuda::mark_work(); }
  bool finish_work() noexcept override { return cuda::finish_work(); }
  bool register_words(int ordinal, void* words, std::size_t bytes) override {
    return cuda::register_words(ordinal, words, bytes);
  }
  void write_word(int ordinal, Stream stream, std::atomic<std::uint64_t>& word,
                  std::uint64_t value) override {
    cuda::write_word(ordinal, stream, word, value);
  }
  bool write_word_by_host(int ordinal, Stream stream, std::atomic<std::uint64_t>& word,
                          std::uint64_t value) override {
    return cuda::write_word_by_host(ordinal, stream, word, value);
  }
  void wait_for_word(int ordinal, Stream stream, const std::atomic<std::uint64_t>& word,
                     std::uint64_t value) override {
    cuda::wait_for_word(ordinal, stream, word, value);
  }
  bool is_captured(int ordinal, Stream stream) override { return cuda::is_captured(ordinal, stream); }
  bool has_work(int ordinal, Stream stream) noexcept override { return cuda::has_work(ordinal, stream); }
  std::optional<Error> failure(int ordinal) override { return cuda::failure(ordinal); }
  GraphDriver* graphs() override { return cuda::graph_driver(); }
  ForeignMemory find_foreign(const void* at, std::size_t bytes) override {
    return cuda::find_foreign_memory(at, bytes);
  }
  bool is_still(const ForeignMemory& memory, const void* at) const noexcept override {
    return cuda::is_still(memory, at);
  }
  std::unique_ptr<DeviceMemory> adopt(const ForeignMemory& memory) override {
    return cuda::adopt_foreign_memory(memory);
  }
};

/// Returns the devices. Without a driver or a device the list is empty, which is not an error.
std::vector<DeviceInfo> CudaBackend::devices() const {
  std::vector<DeviceInfo> infos;
  if (!cuda::Driver::try_get()) return infos;
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
  if (kind != SegmentKind::cuda_vmm)
    throw Error(ErrorCode::unsupported,
                fmt::format("segments of kind {} cannot be made on CUDA devices", static_cast<int>(kind)));
  Devices::get().at(ordinal);
  if (const std::size_t unit = granularity();
      bytes == 0 || bytes % unit != 0 || bytes > (std::size_t{1} << 62))
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("a segment's size must be a positive multiple of {} bytes, not {}", unit, bytes));
  check_exports(ordinal);
  return std::make_unique<VmmSegment>(*this, kind, ordinal, bytes);
}

/// Checks a borrower's segment before anything is mapped.
void check_chunks(const ExportedMemory& memory, Access access) {
  const cuda::ExportedChunks chunks = cuda::decode_chunks(memory);
  const bool are_all = memory.fds.size() == chunks.sizes.size();
  const bool has_rest = memory.rest && !memory.fds.empty() && memory.fds.size() < chunks.sizes.size();
  if (!are_all && !has_rest)
    throw Error(ErrorCode::bad_handle, fmt::format("a CUDA segment of {} chunks came with {} descriptors",
                                                   chunks.sizes.size(), memory.fds.size()));
  if (access == Access::read_write && chunks.access == Access::read_only)
    throw Error(ErrorCode::read_only, "the segment was lent read-only; open it with Access::read_only");
}

std::unique_ptr<DeviceMemory> CudaBackend::open(int home, ExportedMemory memory, Access access, int user) {
  switch (memory.kind) {
    case SegmentKind::cuda_vmm:
      check_chunks(memory, access);
      cuda::check_path(user, home);
      return std::make_unique<VmmSegment>(*this, home, user, std::move(memory), access);
    case SegmentKind::cuda_ipc: return cuda::open_legacy_memory(home, memory, access, user);
    default:
      throw Error(ErrorCode::unsupported, fmt::format("segments of kind {} are not memory of CUDA devices",
                                                      static_cast<int>(memory.kind)));
  }
}

/// Duplicates the descriptors. All accesses share one descriptor, because the mapping determines the access.
ExportedMemory CudaBackend::duplicate(const ExportedMemory& memory, Access access) const {
  ExportedMemory copy{memory.kind, memory.size, {}, memory.blob, memory.device};
  for (const Fd& fd : memory.fds) copy.fds.push_back(fd.duplicate());
  if (access == Access::read_only) {
    cuda::ExportedChunks chunks = cuda::decode_chunks(memory);
    chunks.access = access;
    copy.blob = cuda::encode(chunks);
  }
  return copy;
}

}  // namespace

/// Returns the backend, which is never destroyed: a thread may mark the last drops while static objects are destroyed.
Backend& cuda_backend() {
  static CudaBackend* const instance = new CudaBackend;
  return *instance;
}

}  // namespace onecopy
