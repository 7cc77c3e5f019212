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

/// A handle's segment as this process wants it.
struct WantedSegment {
  const HandleFields& handle;
  Access access;
  std::optional<Device> user;          ///< the device of this process that uses it; none: the memory's own
  std::span<const ProcessId> holders;  ///< asked for frozen memory as well as the maker of the handle
};

/// Knows whom to ask for a segment of another process: its owner, a process that retains it (this one included), the
/// maker of the handle, or the parent that this process was forked from.
///
/// Thread safety: all members may be called concurrently.
class SegmentSource {
 public:
  SegmentSource(const ProcessId& self, Peers& peers, SegmentRetention& retention) noexcept
      : self_(self), peers_(peers), retention_(retention) {}

  /// Returns the peer of the segment's owner: connects while the owner lives, and else makes a frozen one from what a
  /// holder has. Throws owner_died if no process has the segment.
  Peers::PeerRef reach(const WantedSegment& wanted);
  /// Maps the segment for `blocks`, one of which the caller holds. Throws owner_died if no process has the segment.
  void obtain(BorrowedBlocks& blocks, const WantedSegment& wanted);
  /// Returns the segment in the first of all the ways in which this process has it: retained for a queue, opened,
  /// inherited through fork. Empty if it has it in none. Throws unsupported if it has the segment and cannot pass it on.
  std::optional<HeldSegment> find_here(const SegmentKey& segment, Access access) const;
  /// Exports a segment of the group's for a third process, also after this process and the owner have died. If this
  /// borrower has not kept the descriptors, the owner is asked. Throws unsupported if the owner is gone then.
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

/// Returns the question for a segment. The driver may need the number of the process that opens it.
SegmentRequest request_of(std::uint32_t segment, SegmentKind kind, Access access,
                          std::optional<Device> user);
SegmentRequest request_of(const WantedSegment& wanted);

}  // namespace onecopy
