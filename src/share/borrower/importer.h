// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "onecopy/memory/tensor.h"
#include "share/borrower/peer.h"
#include "share/borrower/segment_source.h"
#include "share/owner/holds.h"
#include "share/owner/ledger.h"

namespace onecopy {

/// Opens handles: claims the block, and finds or maps its segment.
///
/// Thread safety: all members may be called concurrently.
class Importer {
 public:
  using Holders = std::span<const ProcessId>;

  Importer(const ProcessId& self, Ledger& ledger, Peers& peers, SegmentSource& source,
           Holds& holds) noexcept
      : self_(self), ledger_(ledger), peers_(peers), source_(source), holds_(holds) {}

  /// Opens on the device `user` of this process, which must be one of the memory's kind, or else on the memory's own.
  /// `holders` are asked for frozen memory as well as the maker of the handle.
  Tensor open(const HandleFields& handle, Access access, std::optional<Device> user = {},
              Holders holders = {});
  /// Maps segments of a connected owner, as far as the owner still has them, so that open() need not ask for them one
  /// at a time. Has no effect for other owners. Throws timeout. REQUIRES: the caller holds a block of that owner.
  void fetch_ahead(const ProcessId& owner, std::span<const SegmentOrigin> origins, Access access,
                   std::optional<Device> user);
  /// Tells the handle's maker to end the hold. Does not wait for an answer; if the message is lost, the hold expires.
  void acknowledge(const HandleFields& handle) noexcept;
  /// Connects to the owner and maps the segment, if necessary. Takes long if it connects, so it must not be called on
  /// hot paths or with locks held. Returns the owner's blocks; null for our own segments.
  std::shared_ptr<BorrowedBlocks> prepare(const HandleFields& handle, Access access, Holders holders = {});

 private:
  using Lease = std::pair<BorrowedBlocks*, BlockRef>;

  Lease claim(const WantedSegment& wanted);
  BlockRef claim_from(Peers::PeerRef& peer, const WantedSegment& wanted);
  Peers::PeerRef connect_again(Peer& old, const WantedSegment& wanted, const Error& silence);
  BorrowedBlocks::Location locate(BorrowedBlocks& blocks, const WantedSegment& wanted);
  Tensor open_own(const HandleFields& handle, Access access);

  const ProcessId self_;
  Ledger& ledger_;
  Peers& peers_;
  SegmentSource& source_;
  Holds& holds_;
};

}  // namespace onecopy
