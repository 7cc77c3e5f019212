// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "share/owner/block_table.h"
#include "share/owner/claim.h"
#include "share/owner/claim_memory.h"

namespace onecopy {

/// Which of an owner's segments are pinned, here or by borrowers. Its ledger asks before pages go back.
///
/// Thread safety: external, by the ledger's mutex. Borrowers write their pages concurrently.
class SegmentPins {
 public:
  using PageRef = BlockTable<RealPlatform>::PageRef;

  /// `holes`: the owner's words, which borrowers read.
  explicit SegmentPins(PinWords holes) noexcept : holes_(holes) {}

  /// A borrower's page comes, and goes once its process is gone. attach() may throw bad_alloc; nothing is changed then.
  void attach(PageRef page);
  void detach(PageRef page) noexcept;

  /// This process pins a piece of the segment, or ends that. The first one needs memory.
  void note_own(std::uint32_t segment);
  void end_own(std::uint32_t segment) noexcept;

  /// See PageGuard.
  bool begin_hole(std::uint32_t segment) noexcept;
  void end_hole(std::uint32_t segment) noexcept;

 private:
  bool is_pinned(std::uint32_t segment) const noexcept;

  PinWords holes_;
  std::unique_ptr<std::atomic<std::uint32_t>[]> own_;
  std::vector<PageRef> borrowers_;
};

/// After a pin was noted: waits until no hole is under way that began before. Throws timeout.
void wait_for_hole(const PinWords::Word& holes, const std::function<bool()>& is_owner_gone);

}  // namespace onecopy
