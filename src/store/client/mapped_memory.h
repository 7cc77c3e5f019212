// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "device/backend.h"
#include "device/reservation.h"
#include "onecopy/memory/block.h"
#include "store/client/client.h"
#include "store/client/step_times.h"

namespace onecopy::store {

/// The memory of a draft or a version at addresses of this process, as one block. Dropping the last reference unmaps
/// the memory and ends the reading. Other processes find the memory only through the store.
///
/// Thread safety: references may come and go concurrently; the caller serialises protect(), show() and export_chunks().
class MappedMemory final : public BlockGroup {
 public:
  /// Makes at least `bytes` bytes of writable, zeroed memory. Throws out_of_memory.
  static BlockRef create(Device device, std::uint64_t bytes);
  /// Returns the size of the memory that create() makes.
  static std::uint64_t size_for(Device device, std::uint64_t bytes);
  /// Maps memory that another process made. Throws bad_handle, out_of_mappings.
  static BlockRef open(Device device, std::vector<ExportedMemory> parts, Client::Reading reading,
                       Access access = Access::read_only);
  /// Returns the memory that contains `at`; empty if `at` is not in memory of the store.
  static BlockRef find(const void* at) noexcept;
  MappedMemory(const MappedMemory&) = delete;
  MappedMemory& operator=(const MappedMemory&) = delete;

  std::byte* data() const noexcept { return reservation_ ? reservation_->base() : nullptr; }
  std::uint64_t size() const noexcept { return size_; }
  Device device() const noexcept { return device_; }
  Access access() const noexcept { return access_; }
  const Client::Reading& reading() const noexcept { return reading_; }

  /// Removes write access from this process and, for memory of the CPU, from all other processes for ever.
  void protect();
  /// Replaces the memory by other memory of the same size at the same addresses. If show() throws, the old memory is
  /// still mapped. Adds its steps to `steps`.
  void show(std::vector<ExportedMemory> parts, Client::Reading reading, StepTimes& steps);
  ExportedMemory export_chunks(Access access = Access::read_only) const;
  /// Enters all pages into the page tables, if the memory is on the host.
  void populate() const;
  /// Pins memory of the host until it is unmapped. Throws as Session::pin_memory(). REQUIRES: neither protect() nor show()
  /// is called.
  void pin() const;

  /// Adds a reference, unless the last one is being dropped.
  bool try_retain() noexcept {
    std::uint64_t references = references_.load(std::memory_order_relaxed);
    while (references != 0)
      if (references_.compare_exchange_weak(references, references + 1, std::memory_order_relaxed))
        return true;
    return false;
  }
  void retain(std::uint32_t) noexcept override { references_.fetch_add(1, std::memory_order_relaxed); }
  void release(std::uint32_t) noexcept override {
    if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }

 private:
  using Chunks = std::vector<std::unique_ptr<PhysicalChunk>>;

  static Chunks import(Device device, std::vector<ExportedMemory> parts);

  MappedMemory(Device device, Chunks chunks, Access access, Client::Reading reading);
  ~MappedMemory();
  void map();
  void unmap() noexcept;

  const Device device_;
  Client::Reading reading_;  ///< destroyed after the mapping
  Chunks chunks_;
  std::uint64_t size_ = 0;
  std::unique_ptr<Reservation> reservation_;  ///< null for memory of no bytes
  Access access_;
  std::atomic<std::uint64_t> references_{1};
};

}  // namespace onecopy::store
