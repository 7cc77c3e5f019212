// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "device/backend.h"
#include "device/private_memory.h"
#include "onecopy/core/device.h"
#include "onecopy/core/tensor_view.h"
#include "onecopy/device/segment_kind.h"
#include "onecopy/memory/tensor.h"
#include "onecopy/share/handle.h"
#include "onecopy/share/share.h"
#include "onecopy/share/stats.h"
#include "os/event_loop.h"
#include "os/fd.h"
#include "os/process.h"
#include "os/reports.h"
#include "share/format/field_checks.h"
#include "share/format/process_name.h"
#include "share/owner/holds.h"
#include "share/owner/shared_blocks.h"
#include "share/runtime/open_queues.h"
#include "share/runtime/stream_order.h"

namespace onecopy {

class BorrowedBlocks;
class Runtime;

/// A piece of memory of another maker that no process can change, as a segment of this process: each lent block is
/// shared, held and freed like any block of this process. Costs a mapping, and a descriptor until the last block is
/// free. Thread safety: all members may be called concurrently. A forked child must make one of its own.
class LentMemory {
 public:
  virtual ~LentMemory() = default;
  /// Returns a new block of these bytes, and sets `at` to its address. REQUIRES: they lie in the memory.
  virtual BlockRef lend(std::uint64_t offset, std::uint64_t bytes, std::byte*& at) = 0;
  /// Returns whether this process made the object, and not its parent.
  virtual bool is_of_this_process() const noexcept = 0;
};

using GroupReports = Reports<GroupInfo>;
using ArenaReports = Reports<ArenaInfo>;

/// A segment that this process has open, in which Session::try_open() opens blocks without asking another process. A
/// zeroed object is a segment that is not open, so a table of segments can be made in fresh memory.
///
/// Thread safety: all members may be called concurrently. Session::note() writes the fields for an epoch of the
/// caller's, during which they do not change, except that the blocks may be replaced or removed when their owner has
/// died.
class OpenSegment {
 public:
  bool is_open(std::uint32_t epoch) const noexcept { return stamp_.load() == stamp_of(epoch); }
  /// Removes the blocks, which are about to be destroyed. Later calls of try_open() do not see them.
  void close() noexcept { stamp_.store(0); }

 private:
  friend class Session;

  static constexpr std::uint64_t kWriting = 1;
  static std::uint64_t stamp_of(std::uint32_t epoch) noexcept { return std::uint64_t{epoch} + 2; }

  std::atomic<std::uint64_t> stamp_;     ///< the epoch for which the other fields are written
  std::atomic<BorrowedBlocks*> blocks_;  ///< null for memory of this process
  std::atomic<std::uint64_t> segment_size_;
  std::atomic<std::uint32_t> segment_;
  std::atomic<SegmentKind> kind_;
  std::atomic<Access> access_;
  std::atomic<DeviceType> device_type_;
  std::atomic<std::int16_t> device_index_;
};

/// The interface of this process for the layers above share: queues, the bindings, benchmarks. A Session belongs to the
/// Runtime, which is made at first use and never destroyed. A forked child gets a Session of its own.
///
/// Thread safety: all members may be called concurrently.
class Session final {
 public:
  /// Returns the Session of this process. Throws unsupported in a process made by a raw clone(2), which has not run the
  /// fork handlers.
  static Session& current() {
    Session* const session = existing();
    return session && !is_raw_clone() ? *session : make_current();
  }
  /// Returns current(), or null if this process has not used onecopy yet.
  static Session* existing() noexcept { return current_.load(std::memory_order_acquire); }

  const ProcessId& id() const noexcept { return id_; }
  /// Returns the blocks that are kept for handles that were written down.
  Holds& holds() noexcept { return holds_; }
  /// Returns the event loop of the watch thread.
  EventLoop& loop() noexcept { return loop_; }
  /// Returns the order of work in streams of devices.
  StreamOrder& streams() noexcept { return streams_; }
  /// Returns the queues that this process has open.
  OpenQueues& queues() noexcept { return queues_; }
  /// Returns the groups of rpc that this process is a member of.
  GroupReports& groups() noexcept { return groups_; }
  /// Closes the connection to a process once no block of it is held here; see Peers::leave(). A later open connects again.
  void leave(const ProcessId& process);
  /// Adds an arena to listings, until `describe` returns nothing. See Reports::add().
  void list_arena(ArenaReports::Describe describe);

  // Blocks of this process.
  /// Adopts memory that was made by other means as one segment with one block of this process. Returns a row of its
  /// first `size` bytes. The pages are allocated when they are used, so none are counted in Stats::bytes_shared.
  Tensor adopt(std::unique_ptr<DeviceMemory> memory, std::uint64_t size);
  /// Returns memory of kind sealed_file or cuda_sealed as a segment of this process, in which blocks are lent.
  std::shared_ptr<LentMemory> lend(Device device, ExportedMemory memory);
  /// Returns whether the ledger of this process counts the block directly.
  bool owns(const BlockRef& block) const noexcept { return block.group() == own_; }
  /// Returns another reference to a block of this process; empty if the name is stale.
  BlockRef try_reference(const BlockName& name) noexcept;
  /// Takes back blocks that no process holds, without waiting for the timer that usually does.
  void take_back() noexcept;
  /// Keeps memory for a moment after it was exchanged for shared memory, see FormerMemory. `is_item`: for a message, and
  /// not because the user shared it.
  void keep_for_a_moment(std::shared_ptr<const void> memory, std::uint64_t bytes, bool is_item);
  /// Pins pages of the host that lie in no segment, see Pinning::pin_memory().
  void pin_memory(std::byte* at, std::size_t bytes, Access access);
  /// Keeps `kept` as long as a process holds `block`. REQUIRES: owns(block).
  void keep_with(const BlockRef& block, std::vector<BlockRef> kept);

  // Names of blocks.
  Handle share(const Tensor& tensor, std::uint32_t flags = 0);
  /// Returns a handle whose point comes after all work in the stream, with a hold that does not expire. The stream of a
  /// tensor on the host is ignored.
  Handle share_held(const Tensor& tensor, Stream stream);
  /// Locates the tensor's block. Throws as shared_blocks() does, naming the caller's `verb`.
  LocatedBlock locate(const Tensor& tensor, const char* verb);

  /// Opens the tensor of a row, in no stream. If the owner is dead, asks `holders` as well as the maker for its memory.
  Tensor open(const HandleFields& row, Access access, std::span<const ProcessId> holders);
  /// Writes `segment`, so that try_open() opens blocks of the row's segment in this epoch. Returns an object that must
  /// outlive `segment`; null for memory of this process. REQUIRES: the row has just been opened on `device`, with the
  /// same holders.
  std::shared_ptr<const BorrowedBlocks> note(OpenSegment& segment, std::uint32_t epoch,
                                             const HandleFields& row, Access access, Device device,
                                             std::span<const ProcessId> holders);
  /// Returns whether the owner of the blocks has ended and this process holds none of them, after which try_open()
  /// opens nothing in its segments.
  static bool is_closed(const BorrowedBlocks& blocks) noexcept;
  /// Opens a tensor at `offset` in a block of at least `reach` bytes. Returns an empty Tensor if `segment` is not open
  /// in this epoch, or if the block cannot be claimed without asking its owner. Throws bad_handle if the owner's table
  /// contradicts the name.
  Tensor try_open(const OpenSegment& segment, std::uint32_t epoch, const BlockName& name,
                  std::uint64_t offset, std::uint64_t reach, const Layout& layout);
  /// Asks the handle's owner for the descriptors and vendor bytes that map its segment. Benchmarks measure the driver's
  /// part of opening by it.
  ExportedMemory fetch_memory(const HandleFields& handle, Access access);

 private:
  friend class Runtime;

  explicit Session(Runtime& runtime) noexcept;

  bool is_lent_here(const HandleFields& row) const noexcept {
    return row.kind == SegmentKind::sealed_file && row.owner == id_;
  }
  static bool is_raw_clone() noexcept { return current_pid() != handled_pid_; }
  static Session& make_current();

  inline static std::atomic<Session*> current_{nullptr};
  /// Differs from our pid in a child that was forked without our handlers.
  inline static int handled_pid_ = 0;

  /// The fields of an OpenSegment, read consistently.
  struct OpenBlock {
    BorrowedBlocks* borrowed;  ///< null for memory of this process
    std::uint64_t segment_size;
    std::uint32_t segment;
    SegmentKind kind;
    Access access;
    Device device;
  };

  static std::optional<OpenBlock> read(const OpenSegment& segment, std::uint32_t epoch) noexcept;
  Runtime& runtime_;
  const BlockGroup* const own_;  ///< the ledger of this process
  const ProcessId id_;
  StreamOrder& streams_;
  OpenQueues& queues_;
  GroupReports& groups_;
  Holds& holds_;
  EventLoop& loop_;
};

/// Returns whether other processes may see other bytes in the tensor's block than this one: it was opened for writing in
/// memory that cannot change.
bool is_private(const Tensor& tensor) noexcept;

/// Returns the group that counts the references of the tensor's block in the end. Throws invalid_argument for a tensor
/// without memory, for a card's view of memory of the host, and for memory of other libraries. The message names the
/// caller's `verb`: "share", "put".
SharedBlocks& shared_blocks(const Tensor& tensor, const char* verb);

/// Returns whether other processes can open the tensor's own block and see there what this process sees. Also returns
/// true for a tensor that no verb accepts.
inline bool is_sendable(const Tensor& tensor) {
  const BlockGroup* const group = tensor.block().group();
  return !group || (group->shareable() &&
                    !(has_private_memory.load(std::memory_order_relaxed) && is_private(tensor)));
}
/// Returns what is sent in place of the tensor: the tensor itself if is_sendable(), a lent block or a copy for memory of
/// the store, or a copy of memory in which this process may have pages of its own. Returns a tensor that no verb accepts
/// unchanged.
Tensor sendable(const Tensor& tensor);

/// Opens the tensor of a handle that may name a bundle's table or a queue. If this is the process's first use of
/// onecopy, calls the owner first, so that it wakes up early.
Tensor open_any(const HandleFields& handle, const OpenOptions& options);

/// Adopts a named file as adopt_file() does, without a descriptor that stays open. The file gets a second name beside
/// the segment files of this process, and is lengthened to whole pages. The last process that has the segment mapped
/// removes the second name, whether or not the first name still exists.
///
/// Returns nothing for a file that cannot have a second name: it has lost its name, belongs to another user, or lies on
/// another file system than shared_directory(). Throws what adopt_file() throws. REQUIRES: `file` is an open file of
/// the caller's own.
std::optional<Tensor> try_adopt_by_name(const Fd& file, std::size_t size, std::size_t offset);

}  // namespace onecopy
