// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/backend.h"

namespace onecopy::cuda {

/// The backend of NVIDIA's devices: memory of onecopy by virtual memory management, and memory of other allocators in
/// place. Each file of this folder defines the functions that it is named after.
class CudaBackend final : public Backend {
 public:
  DeviceType type() const noexcept override { return DeviceType::cuda; }
  BackendTraits traits() const noexcept override;
  std::vector<DeviceInfo> devices() const override;
  std::size_t granularity() const noexcept override;
  std::unique_ptr<DeviceMemory> create(int ordinal, std::size_t bytes, SegmentKind kind,
                                       const std::string& owner, std::uint32_t number) override;
  std::unique_ptr<DeviceMemory> open(int home, ExportedMemory memory, Access access, int user) override;
  std::unique_ptr<Reservation> reserve(int user, std::size_t bytes) override;
  std::unique_ptr<PhysicalChunk> create_chunk(int ordinal, std::size_t bytes) override;
  std::vector<std::unique_ptr<PhysicalChunk>> import_chunks(int home, ExportedMemory memory,
                                                            int user) override;
  ExportedMemory export_chunks(std::span<const std::unique_ptr<PhysicalChunk>> chunks,
                               Access access) const override;
  ExportedMemory duplicate(const ExportedMemory& memory, Access access) const override;
  void copy(const Transfer& transfer, Stream stream) override;
  void copy_batch(std::span<const Transfer> transfers, Stream stream) override;
  void copy_aside(const Transfer& transfer, Stream stream) override;
  void synchronize(int ordinal, Stream stream) override;
  void pin_host(int ordinal, void* at, std::size_t bytes, Access access) override;
  void unpin_host(int ordinal, void* at) noexcept override;
  void require_in_place(int ordinal, const void* at) override;
  void create_context(int ordinal) override;
  // These three cover all of the process's work in primary contexts, but not in other contexts.
  int device_in_use() const noexcept override;
  std::unique_ptr<WorkPoint> mark_work() override;
  bool finish_work() noexcept override;
  bool register_words(int ordinal, void* words, std::size_t bytes) override;
  void write_word(int ordinal, Stream stream, std::atomic<std::uint64_t>& word,
                  std::uint64_t value) override;
  bool write_word_by_host(int ordinal, Stream stream, std::atomic<std::uint64_t>& word,
                          std::uint64_t value) override;
  void wait_for_word(int ordinal, Stream stream, const std::atomic<std::uint64_t>& word,
                     std::uint64_t value) override;
  bool is_captured(int ordinal, Stream stream) override;
  bool has_work(int ordinal, Stream stream) noexcept override;
  std::optional<Error> failure(int ordinal) override;
  GraphDriver* graphs() override;
  ForeignMemory find_foreign(const void* at, std::size_t bytes) override;
  bool is_still(const ForeignMemory& memory, const void* at) const noexcept override;
  std::unique_ptr<DeviceMemory> adopt(const ForeignMemory& memory) override;

 private:
  static std::unique_ptr<DeviceMemory> open_legacy(int home, const ExportedMemory& memory, Access access,
                                                   int user);
  std::unique_ptr<DeviceMemory> open_chunks(int home, ExportedMemory memory, Access access, int user);
  std::unique_ptr<DeviceMemory> open_sealed(int home, ExportedMemory memory, Access access, int user);
};

}  // namespace onecopy::cuda
