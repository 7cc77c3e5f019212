// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "device/backend.h"
#include "onecopy/core/device.h"
#include "onecopy/core/tensor_view.h"
#include "onecopy/device/segment_kind.h"
#include "onecopy/memory/tensor.h"
#include "onecopy/share/handle.h"
#include "onecopy/share/share.h"
#include "os/event_loop.h"
#include "os/fd.h"
#include "os/process.h"
#include "share/format/field_checks.h"
#include "share/format/process_name.h"
#include "share/owner/holds.h"
#include "share/owner/shared_blocks.h"
#include "share/runtime/open_queues.h"
#include "share/runtime/reports.h"
#include "share/runtime/stream_order.h"

namespace onecopy {

class BorrowedBlocks;
class Runtime;

/// A segment as this process has it open: Session::try_open() takes a block of it without a question. All zeros is a
/// segment that is not open yet, so a table of them may lie in fresh memory.
///
/// Thread safety: all members may be called concurrently. Session::note() writes it for an epoch of the caller's, for
/// which it stays. Only the blocks may be replaced or taken out later, when their owner has died.
class OpenSegment {
 public:
  bool is_open(std::uint32_t epoch) const noexcept { return stamp_.load() == stamp_of(epoch); }
  /// Takes the blocks out, which are about to go. Callers of try_open() that began later do not see them.
  void close() noexcept { stamp_.store(0); }

 private:
  friend class Session;

  static constexpr std::uint64_t kWriting = 1;
  static std::uint64_t stamp_of(std::uint32_t epoch) noexcept { return std::uint64_t{epoch} + 2; }

  std::atomic<std::uint64_t> stamp_;     ///< epoch for which the other fields are written
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
  /// Throws unsupported in a process made by a raw clone(2), which ran none of our fork handlers.
  static Session& current() {
    Session* const session = existing();
    return session && !is_raw_clone() ? *session : make_current();
  }
  /// Returns null when this process has not used onecopy yet.
  static Session* existing() noexcept { return current_.load(std::memory_order_acquire); }

  const ProcessId& id() const noexcept { return id_; }
  /// Blocks kept for handles that were written down.
  Holds& holds() noexcept { return holds_; }
  /// The watch thread: its handlers of descriptors, and its timers.
  EventLoop& loop() noexcept { return loop_; }
  /// The order of work in streams of devices.
  StreamOrder& streams() noexcept { return streams_; }
  /// The queues that are open here.
  OpenQueues& queues() noexcept { return queues_; }
  /// The groups of rpc that this process is in.
  GroupReports& groups() noexcept { return groups_; }
  /// Listings have this arena from now on, until `describe` finds it gone. `describe` is called as Reports::add() says.
  void list_arena(ArenaReports::Describe describe);

  // Blocks of this process.
  /// Memory made by other means as one segment and one block of this process: a row of its first `size` bytes. The
  /// pages come with use, so none are counted in Stats::bytes_shared.
  Tensor adopt(std::unique_ptr<DeviceMemory> memory, std::uint64_t size);
  /// Returns whether this process's own ledger counts the block, with nothing in between.
  bool owns(const BlockRef& block) const noexcept { return block.group() == own_; }
  /// Returns another reference to a block of this process; empty if it is stale.
  BlockRef try_retain(const BlockName& name) noexcept;
  /// Takes back blocks that no process holds, before the timer for that does. Waits for nothing.
  void take_back() noexcept;
  /// Keeps memory that has been exchanged for shared memory for a second, see FormerMemory.
  void keep_for_a_moment(std::shared_ptr<const void> memory, std::uint64_t bytes);
  /// `kept` lives as long as any process holds `block`. REQUIRES: owns(block).
  void keep_with(const BlockRef& block, std::vector<BlockRef> kept);

  // Names of blocks.
  Handle share(const Tensor& tensor, std::uint32_t flags = 0);
  /// A handle whose point comes after all work in the stream, with a hold that no time ends. Tensors of the host have
  /// no stream.
  Handle share_held(const Tensor& tensor, Stream stream);
  /// Locates the tensor's block. Throws as shared_blocks() does, naming the caller's `verb`.
  LocatedBlock locate(const Tensor& tensor, const char* verb);

  /// Opens a handle's tensor. If this is the process's first use of onecopy, calls the owner before it does anything
  /// else.
  static Tensor open_early(const HandleFields& handle, const OpenOptions& options);
  /// Opens the tensor of a row, in no stream. If the owner is dead, `holders` are asked for its memory as well as the
  /// maker.
  Tensor open(const HandleFields& row, Access access, std::span<const ProcessId> holders);
  /// Afterwards try_open() takes blocks of the row's segment in this epoch. Returns an object that must live as long as
  /// `segment`; null for memory of this process. REQUIRES: the row has just been opened on `device`, with the same
  /// holders.
  std::shared_ptr<const BorrowedBlocks> note(OpenSegment& segment, std::uint32_t epoch,
                                             const HandleFields& row, Access access, Device device,
                                             std::span<const ProcessId> holders);
  /// Returns whether the owner of the blocks has ended and this process holds nothing of it. Then try_open() opens
  /// nothing in its segments.
  static bool is_closed(const BorrowedBlocks& blocks) noexcept;
  /// A tensor `offset` bytes into a block that has `reach` bytes at least. Empty if `segment` is not open in this
  /// epoch, or the block cannot be claimed without a question. Throws bad_handle if the owner's table contradicts the
  /// block.
  Tensor try_open(const OpenSegment& segment, std::uint32_t epoch, const BlockName& name,
                  std::uint64_t offset, std::uint64_t reach, const Layout& layout);
  /// Asks the handle's owner for the descriptors and vendor bytes that map its segment. Measures the driver's part of
  /// opening.
  ExportedMemory fetch_memory(const HandleFields& handle, Access access);

 private:
  friend class Runtime;

  explicit Session(Runtime& runtime) noexcept;

  static bool is_raw_clone() noexcept { return current_pid() != handled_pid_; }
  static Session& make_current();

  inline static std::atomic<Session*> current_{nullptr};
  /// Differs from our pid in a child that was forked without our handlers.
  inline static int handled_pid_ = 0;

  /// The fields of an OpenSegment, read in one piece.
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

/// Adopts a named file as adopt_file() does, without a descriptor that stays open. The file gets a second name beside
/// the segment files of this process, and is lengthened to whole pages. The second name goes with the last process
/// that has the segment mapped, whether or not the first name still exists.
///
/// Returns nothing for a file that cannot have a second name: it has lost its name, belongs to another user, or lies on
/// another file system than shared_directory(). Throws as adopt_file(). REQUIRES: `file` is the caller's own open of
/// it.
std::optional<Tensor> try_adopt_by_name(const Fd& file, std::size_t size, std::size_t offset);

}  // namespace onecopy
