// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <vector>

#include "memory/pool.h"
#include "onecopy/memory/block.h"
#include "onecopy/memory/tensor.h"
#include "onecopy/share/handle_fields.h"
#include "os/process_origin.h"

namespace onecopy {

/// A description of a block's memory, as handles contain it.
struct ExportedBlock {
  BlockInfo info;
  SegmentKind kind = SegmentKind::memfd;
  std::uint64_t segment_size = 0;
  std::byte* data = nullptr;  ///< the address of the block in this process
  const DeviceIdentity* identity = nullptr;
};

/// The place where a block is mapped here: the part of an ExportedBlock that costs no lock.
struct MappedBlock {
  BlockInfo info;
  std::byte* data = nullptr;
};

/// A group whose blocks other processes can open: the ledger for our own, a peer for borrowed ones. Thread safety:
/// all members may be called concurrently.
class SharedBlocks : public BlockGroup {
 public:
  /// Returns the group that counts the block's references in the end, which differs from this one if this object only
  /// wraps a reference.
  virtual SharedBlocks& root() noexcept { return *this; }
  /// Returns a number that identifies the group in caches. Never 0; never reused in this process and its forks, even
  /// after the group is destroyed.
  std::uint64_t serial() const noexcept { return serial_; }
  virtual const ProcessId& owner() const noexcept = 0;
  /// Returns the streams in whose order references to the group end, see StreamReleases.
  virtual std::vector<Stream> order() const { return {}; }
  /// Lets handles name the block, and returns where it is. If there are several mappings, `access` picks one. REQUIRES:
  /// the caller holds the block.
  virtual ExportedBlock export_block(std::uint32_t block, Access access) = 0;
  /// Returns all bytes of the block, in this process. REQUIRES: the caller holds the block.
  virtual std::span<std::byte> bytes_of(std::uint32_t block, Access access) = 0;
  /// Exports a segment of this owner, and the owner's block table, for another process.
  virtual ExportedMemory export_segment(std::uint32_t segment, Access access) const = 0;
  virtual Fd export_table() const = 0;
  /// Lets another device of this process use the block's segment. Returns the block's address for that device.
  /// REQUIRES: the caller holds the block.
  virtual std::byte* allow(std::uint32_t block, Access access, int ordinal) = 0;
  virtual ProcessOrigin origin() const = 0;

  // The following functions serve pinning. REQUIRES: this is a root(), and the caller holds the block, or a block of
  // the segment.
  virtual std::uint32_t segment_of(std::uint32_t) const noexcept { return 0; }
  /// Returns the segment's memory as it is mapped here, for this access or the other; null if it is not mapped. The
  /// pointer keeps the segment mapped.
  virtual std::shared_ptr<DeviceMemory> segment_memory(std::uint32_t, Access) const { return nullptr; }
  /// Tells the owner that this process pins a piece of the segment. Returns once no page of the segment can be given
  /// back to the system. Throws unsupported if the owner cannot see the pin, and timeout.
  virtual void begin_pin(std::uint32_t) { throw_no_pins(); }
  /// Tells the owner that this process has unpinned a piece.
  virtual void end_pin(std::uint32_t) noexcept {}
  /// Returns whether this process holds the block.
  virtual bool holds(std::uint32_t) const noexcept { return true; }
  /// Returns whether this process holds a block, other than `others`, in the given bytes of the segment.
  virtual bool uses(std::uint32_t, std::uint64_t, std::uint64_t,
                    const std::set<std::uint32_t>& others [[maybe_unused]]) const noexcept {
    return true;
  }
  /// Returns a pointer that keeps this object alive; null for an object that is never destroyed.
  virtual std::shared_ptr<const void> keep_alive() const { return nullptr; }
  /// Ends a reference that LateReleases has kept.
  virtual void release_now(std::uint32_t number) noexcept { release(number); }

  /// Notes that an item with this block goes into the queue `channel`; end_transit() notes that the item was taken. If
  /// the caller dies in between, the owner keeps the block for the receiver. REQUIRES: the caller holds the block in
  /// between.
  virtual void begin_transit(std::uint32_t block, std::uint64_t channel) noexcept = 0;
  virtual void end_transit(std::uint32_t block) noexcept = 0;

 protected:
  SharedBlocks() noexcept : BlockGroup(true) {}
  ~SharedBlocks() = default;

  [[noreturn]] static void throw_no_pins();

 private:
  inline static std::atomic<std::uint64_t> last_serial_{0};
  const std::uint64_t serial_ = ++last_serial_;
};

/// A tensor's block: the group that counts its references in the end, and where it is mapped here.
struct LocatedBlock {
  SharedBlocks& group;
  MappedBlock spot;
};

/// Returns a group's interface for other processes. REQUIRES: group.shareable().
inline SharedBlocks& as_shared(BlockGroup& group) noexcept { return static_cast<SharedBlocks&>(group); }

/// Returns where the tensor's block begins for the tensor's own device: at `spot`, or where the block was opened for
/// another device. The address for another device may directly follow the bytes at `spot`, so an address at the block's
/// end belongs to the block only if the tensor has no bytes.
inline std::byte* begin_for(SharedBlocks& group, const Tensor& tensor, const MappedBlock& spot) {
  const auto offset = static_cast<std::uint64_t>(tensor.as<std::byte>() - spot.data);
  if (offset < spot.info.size || (offset == spot.info.size && tensor.nbytes() == 0)) return spot.data;
  return group.allow(spot.info.number, tensor.access(), tensor.device().index);
}

/// A scope in which adopt(), on this thread, asks the driver about an allocation only once instead of for each tensor.
/// A caller that encodes a value finds its tensors one by one, so adopt() cannot take a list of them. Rounds nest.
///
/// Thread safety: a round belongs to its thread. REQUIRES: memory adopted during the round was allocated before, and
/// stays allocated until the round ends.
class AdoptionRound {
 public:
  AdoptionRound() noexcept;
  ~AdoptionRound();
  AdoptionRound& operator=(AdoptionRound&&) = delete;

 private:
  const std::uint64_t outer_;
};

}  // namespace onecopy
