// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/backend.h"

namespace onecopy::ascend {

/// The backend of Huawei's Ascend devices, by virtual memory management or by IPC keys. Each file of this folder defines
/// the functions that it is named after.
///
/// Memory of other libraries is not adopted. Keys stand for whole allocations and must be closed before their maker
/// frees them, which borrowers do not learn. Nor does the runtime report that an address has come to name other memory.
class AscendBackend final : public Backend {
 public:
  DeviceType type() const noexcept override { return DeviceType::npu; }
  BackendTraits traits() const noexcept override;
  std::vector<DeviceInfo> devices() const override;
  bool is_in_process() const noexcept override;
  std::size_t granularity() const noexcept override;
  /// Returns the kind of new segments on this device. A virtual device (vNPU) has the calls for physical memory, but
  /// they fail; an allocation and its export find this out once.
  SegmentKind kind_on(int ordinal) const override;
  std::unique_ptr<DeviceMemory> create(int ordinal, std::size_t bytes, SegmentKind kind,
                                       const std::string& owner, std::uint32_t number) override;
  std::unique_ptr<DeviceMemory> open(int home, ExportedMemory memory, Access access, int user) override;
  std::unique_ptr<Reservation> reserve(int user, std::size_t bytes) override;
  std::unique_ptr<PhysicalChunk> create_chunk(int ordinal, std::size_t bytes) override;
  std::vector<std::unique_ptr<PhysicalChunk>> import_chunks(int home, ExportedMemory memory,
                                                            int user) override;
  /// Exports one chunk, since an Ascend segment is exported as one number.
  ExportedMemory export_chunks(std::span<const std::unique_ptr<PhysicalChunk>> chunks,
                               Access access) const override;
  ExportedMemory duplicate(const ExportedMemory& memory, Access access) const override;
  std::int32_t borrower_number() override;
  /// Asks the runtime each time, because numbers of memory and of processes are reused. Throws owner_died if this
  /// process has no Ascend memory open, unsupported if the memory's owner is gone.
  void admit(const ExportedMemory& memory, std::int32_t borrower) override;
  /// Copies. Between the host and another card's memory, the way is memory of this process's own card. Between cards
  /// without a path it is the host, and the copy is done on return.
  void copy(const Transfer& transfer, Stream stream) override;
  /// Waits. Throws unsupported, without harm to the capture, if the stream is being captured.
  void synchronize(int ordinal, Stream stream) override;
  void pin_host(int ordinal, void* at, std::size_t bytes, Access access) override;
  void unpin_host(int ordinal, void* at) noexcept override;
  void require_in_place(int ordinal, const void* at) override;
  int device_in_use() const noexcept override;
  bool finish_work() noexcept override;
  /// Returns whether the stream is being captured; false if the runtime does not know captures.
  bool is_captured(int ordinal, Stream stream) override;
  /// Returns false, because streams of this runtime write no words, so a put of a plain value would have to wait for
  /// the stream itself.
  bool has_work(int, Stream) noexcept override { return false; }
  std::optional<Error> failure(int ordinal) override;

 private:
  static std::unique_ptr<DeviceMemory> create_by_key(int ordinal, std::size_t bytes);
  static std::unique_ptr<DeviceMemory> open_by_key(int ordinal, const ExportedMemory& memory,
                                                   Access access);
};

}  // namespace onecopy::ascend
