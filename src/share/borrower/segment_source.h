// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "onecopy/share/handle_fields.h"
#include "share/borrower/peer.h"
#include "share/borrower/segment_retention.h"
#include "share/owner/shared_blocks.h"

namespace onecopy {

/// A request for the segment of a handle.
struct WantedSegment {
  const HandleFields& handle;
  Access access;
  /// The device of this process that uses the memory; empty for the memory's own device.
  std::optional<Device> user;
  std::span<const ProcessId> holders;  ///< asked for frozen memory, as is the maker of the handle
};

/// Finds a segment of another process: asks its owner, a process that retains it (this one included), the maker of the
/// handle, or the parent of this process.
///
/// Thread safety: all members may be called concurrently.
class SegmentSource {
 public:
  SegmentSource(const ProcessId& self, Peers& peers, SegmentRetention& retention) noexcept
      : self_(self), peers_(peers), retention_(retention) {}

  /// Returns the peer of the segment's owner: connects if the owner lives, and otherwise makes a frozen peer from what
  /// a holder has. Throws owner_died if no process has the segment.
  Peers::PeerRef reach(const WantedSegment& wanted);
  /// Maps the segment for `blocks`, one of which the caller holds. Throws owner_died if no process has the segment.
  void obtain(BorrowedBlocks& blocks, const WantedSegment& wanted);
  /// Returns the segment if this process has it: retained for a queue, opened, or inherited through fork, in this
  /// order; empty otherwise. Throws unsupported if this process has the segment and cannot pass it on.
  std::optional<HeldSegment> find_here(const SegmentKey& segment, Access access) const;
  /// Exports a segment of the group for a third process, which can use it even after this process and the owner have
  /// died. If this process has not kept the descriptors, asks the owner. Throws unsupported if the owner is gone.
  ExportedMemory pass_on(const SharedBlocks& group, std::uint32_t segment);

 private:
  std::optional<ExportedMemory> ask_owner(const ProcessId& owner, const SegmentRequest& wanted);
  std::vector<ProcessId> candidate_holders(const WantedSegment& wanted) const;
  std::optional<HeldSegment> ask_holder(const ProcessId& holder, const SegmentKey& segment,
                                        const SegmentRequest& request, std::optional<Error>& why);
  std::optional<HeldSegment> ask_holders(const WantedSegment& wanted);

  const ProcessId self_;
  Peers& peers_;
  SegmentRetention& retention_;
};

/// Returns a request for a segment, with the number by which a driver may need to know this process.
SegmentRequest request_of(std::uint32_t segment, SegmentKind kind, Access access,
                          std::optional<Device> user);
SegmentRequest request_of(const WantedSegment& wanted);

}  // namespace onecopy
