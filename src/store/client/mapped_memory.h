// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "device/backend.h"
#include "device/reservation.h"
#include "onecopy/memory/block.h"
#include "os/mutex.h"
#include "store/client/client.h"
#include "store/client/lent_version.h"
#include "store/client/step_times.h"
#include "store/format/table.h"

namespace onecopy::store {

/// A version that is read here. Immutable, so that a thread may use it while update() shows the next version.
struct Shown {
  Table table;  ///< without the rows, which all versions of a follower have in common
  VersionRecord version;
  Client::Reading reading;
  std::unique_ptr<LentVersion> lent = std::make_unique<LentVersion>();
};

/// The memory of a draft or a version at addresses of this process, as one block. Dropping the last reference unmaps
/// the memory and ends the reading. Other processes find the memory only through the store.
///
/// Thread safety: references may come and go concurrently, and shown() may be called concurrently; the caller serialises
/// protect(), take(), remap() and export_chunks().
class MappedMemory final : public BlockGroup {
 public:
  /// Makes at least `bytes` bytes of writable, zeroed memory. Throws out_of_memory.
  static BlockRef create(Device device, std::uint64_t bytes);
  /// Makes such memory for others, and does not map it here.
  static ExportedMemory create_for_others(Device device, std::uint64_t bytes);
  /// Returns the size of the memory that create() makes.
  static std::uint64_t size_for(Device device, std::uint64_t bytes);
  /// Maps memory that another process made. Throws bad_handle, out_of_mappings.
  static BlockRef open(Device device, std::vector<ExportedMemory> parts, Shown shown,
                       Access access = Access::read_only);
  /// Returns the memory that contains `at`; empty if `at` is not in memory of the store.
  static BlockRef find(const void* at) noexcept;

  std::byte* data() const noexcept { return reservation_ ? reservation_->base() : nullptr; }
  std::uint64_t size() const noexcept { return size_; }
  Device device() const noexcept { return device_; }
  Access access() const noexcept { return access_; }
  /// Returns the version; null for a draft.
  std::shared_ptr<const Shown> shown() const noexcept {
    const LockGuard lock(mutex_);
    return shown_;
  }

  /// Removes write access from this process and, for memory of the host, from all processes for ever: the kernel then
  /// proves that no process can write to it. May be called again after an error. Copies memory of the host that a forked
  /// child still has mapped for writing. REQUIRES: no thread writes to the memory during the call.
  void protect();
  /// Replaces the version by that of `next`, memory of the host of the same size: moves its mapping to the addresses here.
  /// A thread that reads meanwhile sees the old or the new memory. Throws out_of_mappings; nothing has changed then.
  /// REQUIRES: nothing else uses `next`, which is empty afterwards.
  void take(MappedMemory& next);
  /// Replaces the version on a card by another one of the same size at the same addresses. If remap() throws, the old
  /// memory is still mapped. Adds its steps to `steps`. REQUIRES: no thread gives a device work that uses the memory
  /// meanwhile.
  void remap(std::vector<ExportedMemory> parts, Shown shown, StepTimes& steps);
  ExportedMemory export_chunks(Access access = Access::read_only) const;
  /// Enters all pages into the page tables, if the memory is on the host. Those of a new draft are there already.
  void populate() const;
  /// Pins memory of the host until it is unmapped. Throws as Session::pin_memory(). REQUIRES: neither protect() nor remap()
  /// is called.
  void pin() const;

  /// Lends a tensor of the version that is shown now, for writing if it is on the host. Empty for a draft, also of another
  /// process, and for a version that LentVersion does not lend.
  Tensor lend(const Tensor& tensor) override;
  bool is_sent_as_copy() const noexcept override;
  /// Adds a reference, unless the last one is being dropped.
  bool try_reference() noexcept {
    std::uint64_t references = references_.load(std::memory_order_relaxed);
    while (references != 0)
      if (references_.compare_exchange_weak(references, references + 1, std::memory_order_relaxed))
        return true;
    return false;
  }
  void add_reference(std::uint32_t) noexcept override {
    references_.fetch_add(1, std::memory_order_relaxed);
  }
  void release(std::uint32_t) noexcept override {
    if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }

 private:
  using Chunks = std::vector<std::unique_ptr<PhysicalChunk>>;

  static Chunks import(Device device, std::vector<ExportedMemory> parts);

  MappedMemory(Device device, std::uint64_t bytes);
  MappedMemory(Device device, Chunks chunks, Access access, std::shared_ptr<const Shown> shown);
  ~MappedMemory();
  void map(Reservation& where, const Chunks& chunks, Access access) const;
  void unmap() noexcept;
  void remap_on_host(const Chunks& others);
  void remap_on_card(const Chunks& others, StepTimes& steps);
  void put_in_place(const Chunks& others);
  bool try_seal();
  Chunks copied() const;

  const Device device_;
  mutable Mutex mutex_;
  /// The version, shared with callers of shown(). Destroyed after the mapping.
  std::shared_ptr<const Shown> shown_ GUARDED_BY(mutex_);
  Chunks chunks_;  ///< of a draft, or of a version on a card: a mapping of the host needs no descriptors
  std::uint64_t size_ = 0;
  std::unique_ptr<Reservation> reservation_;  ///< null for memory of no bytes
  Access access_;
  std::atomic<std::uint64_t> references_{1};
};

}  // namespace onecopy::store
