// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "device/vmm_segment.h"
#include "devices.h"
#include "exported.h"
#include "factory.h"
#include "host_pages.h"
#include "key_memory.h"
#include "onecopy/core/error.h"
#include "physical_chunk.h"
#include "reservation.h"
#include "segment_kind.h"
#include "transfer.h"
#include "work.h"

namespace onecopy {

namespace {

constexpr std::size_t kAscendPage = std::size_t{2} << 20;
constexpr std::size_t kAscendAlignment = 64;  // of aclrtMalloc

/// The backend of Huawei's Ascend devices, by virtual memory management or by IPC keys.
class AscendBackend final : public Backend {
 public:
  DeviceType type() const noexcept override { return DeviceType::npu; }
  BackendTraits traits() const noexcept override;
  std::vector<DeviceInfo> devices() const override;
  bool is_in_process() const noexcept override { return ascend::Driver::is_in_process(); }
  std::size_t granularity() const noexcept override;
  SegmentKind kind_on(int ordinal) const override { return ascend::kind_on(ordinal); }
  std::unique_ptr<DeviceMemory> create(int ordinal, std::size_t bytes, SegmentKind kind,
                                       const std::string& owner, std::uint32_t number) override;
  std::unique_ptr<DeviceMemory> open(int home, ExportedMemory memory, Access access, int user) override;
  std::unique_ptr<Reservation> reserve(int user, std::size_t bytes) override {
    return std::make_unique<ascend::AscendReservation>(user, bytes);
  }
  std::unique_ptr<PhysicalChunk> create_chunk(int ordinal, std::size_t bytes) override {
    return ascend::create_chunk(ordinal, bytes);
  }
  std::vector<std::unique_ptr<PhysicalChunk>> import_chunks(int home, ExportedMemory memory,
                                                            int user) override;
  ExportedMemory export_chunks(std::span<const std::unique_ptr<PhysicalChunk>> chunks,
                               Access access) const override;
  ExportedMemory duplicate(const ExportedMemory& memory, Access access) const override;
  std::int32_t borrower_number() override { return ascend::own_number(); }
  void admit(const ExportedMemory& memory, std::int32_t borrower) override {
    ascend::admit(memory, borrower);
  }
  void copy(const Transfer& transfer, Stream stream) override { ascend::enqueue(transfer, stream); }
  void pin_host(int ordinal, void* at, std::size_t bytes, Access access) override {
    ascend::pin_host(ordinal, at, bytes, access);
  }
  void unpin_host(int ordinal, void* at) noexcept override { ascend::unpin_host(ordinal, at); }
  void require_in_place(int ordinal, const void* at) override { ascend::require_in_place(ordinal, at); }
  int device_in_use() const noexcept override { return ascend::device_in_use(); }
  bool finish_work() noexcept override { return ascend::finish_work(); }
  /// Returns false, because streams of this runtime write no words, so a put of a plain value would have to wait for
  /// the stream itself.
  bool has_work(int, Stream) noexcept override { return false; }
  void synchronize(int ordinal, Stream stream) override { ascend::synchronize(ordinal, stream); }
  bool is_captured(int ordinal, Stream stream) override { return ascend::is_captured(ordinal, stream); }
  std::optional<Error> failure(int ordinal) override { return ascend::failure(ordinal); }
  ForeignMemory find_foreign(const void* at, std::size_t bytes) override;
  std::unique_ptr<DeviceMemory> adopt(const ForeignMemory& memory) override;
};

BackendTraits AscendBackend::traits() const noexcept {
  const ascend::Driver* driver = ascend::Driver::try_get();
  const bool by_key = driver && !driver->has_virtual_memory();
  return {by_key ? SegmentKind::ascend_key : SegmentKind::ascend_vmm, kAscendAlignment, true, false,
          "ASCEND_RT_VISIBLE_DEVICES"};
}

/// Returns the devices. Without a runtime or a device the list is empty, which is not an error.
std::vector<DeviceInfo> AscendBackend::devices() const {
  std::vector<DeviceInfo> infos;
  if (!ascend::Driver::try_get()) return infos;
  ascend::Devices& devices = ascend::Devices::get();
  for (std::size_t i = 0; i < devices.size(); ++i) infos.push_back(devices.info(static_cast<int>(i)));
  return infos;
}

/// Returns the size of huge pages, although the runtime takes smaller units: keys exist for whole pages only.
std::size_t AscendBackend::granularity() const noexcept { return kAscendPage; }

std::unique_ptr<DeviceMemory> AscendBackend::create(int ordinal, std::size_t bytes, SegmentKind kind,
                                                    const std::string&, std::uint32_t) {
  if (kind != SegmentKind::ascend_vmm && kind != SegmentKind::ascend_key)
    throw Error(ErrorCode::unsupported, fmt::format("segments of kind {} cannot be made on Ascend devices",
                                                    static_cast<int>(kind)));
  ascend::Devices::get().at(ordinal);
  if (bytes == 0 || bytes % kAscendPage != 0 || bytes > (std::size_t{1} << 62))
    throw Error(ErrorCode::invalid_argument,
                fmt::format("a segment's size must be a positive multiple of {} bytes, not {}", kAscendPage,
                            bytes));
  if (kind == SegmentKind::ascend_key) return ascend::create_key_memory(ordinal, bytes);
  return std::make_unique<VmmSegment>(*this, kind, ordinal, bytes);
}

std::vector<std::unique_ptr<PhysicalChunk>> AscendBackend::import_chunks(int home, ExportedMemory memory,
                                                                         int user) {
  std::vector<std::unique_ptr<PhysicalChunk>> chunks;
  chunks.push_back(ascend::import_chunk(home, memory, user));
  return chunks;
}

/// Exports one chunk, since an Ascend segment is exported as one number.
ExportedMemory AscendBackend::export_chunks(std::span<const std::unique_ptr<PhysicalChunk>> chunks,
                                            Access access) const {
  if (chunks.size() != 1)
    throw Error(
        ErrorCode::unsupported,
        fmt::format("an Ascend segment has one chunk, not {}; export them one by one", chunks.size()));
  return ascend::export_chunk(*chunks.front(), access);
}

std::unique_ptr<DeviceMemory> open_chunk(Backend& backend, int ordinal, ExportedMemory memory,
                                         Access access) {
  const int owner = ascend::prepare_to_open(ordinal, ascend::decode(memory), access);
  return std::make_unique<VmmSegment>(backend, owner, ordinal, std::move(memory), access);
}

std::unique_ptr<DeviceMemory> open_at(Backend& backend, int ordinal, ExportedMemory memory, Access access) {
  switch (memory.kind) {
    case SegmentKind::ascend_vmm: return open_chunk(backend, ordinal, std::move(memory), access);
    case SegmentKind::ascend_key: return ascend::open_key_memory(ordinal, memory, access);
    default:
      throw Error(ErrorCode::unsupported,
                  fmt::format("segments of kind {} are not memory of Ascend devices",
                              static_cast<int>(memory.kind)));
  }
}

/// Opens through the device that holds the memory, because it is unknown how a real device behaves if only another one
/// imports.
std::unique_ptr<DeviceMemory> AscendBackend::open(int home, ExportedMemory memory, Access access,
                                                  int user) {
  auto opened = open_at(*this, home, std::move(memory), access);
  if (user != home) opened->allow(user);
  return opened;
}

ExportedMemory AscendBackend::duplicate(const ExportedMemory& memory, Access access) const {
  ExportedMemory copy{memory.kind, memory.size, {}, memory.blob, memory.device};
  if (access == Access::read_only) {
    ascend::ExportedKeys exported = ascend::decode(memory);
    exported.access = access;
    copy.blob = ascend::encode(exported);
  }
  return copy;
}

/// Throws unsupported. Keys stand for whole allocations and must be closed before their maker frees them, which
/// borrowers do not learn. Nor does the runtime report that an address has come to name other memory.
ForeignMemory AscendBackend::find_foreign(const void*, std::size_t) {
  throw Error(ErrorCode::unsupported,
              "Ascend memory of another library cannot be shared in place: copy it "
              "(copy(), or empty() and a copy) into memory of onecopy");
}

std::unique_ptr<DeviceMemory> AscendBackend::adopt(const ForeignMemory& memory) {
  find_foreign(memory.base, memory.bytes);
  return nullptr;
}

}  // namespace

/// Returns the backend, which is never destroyed: threads may use it while static objects are destroyed.
Backend& ascend_backend() {
  static AscendBackend* const instance = new AscendBackend;
  return *instance;
}

}  // namespace onecopy
