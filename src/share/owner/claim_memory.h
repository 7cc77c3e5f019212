// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "os/fd.h"
#include "os/mapping.h"
#include "share/owner/claim.h"
#include "share/owner/pin_claim.h"
#include "share/owner/transit_counts.h"

namespace onecopy {

using Record = BlockRecord<RealPlatform>;
using Claims = ClaimPage<RealPlatform>;
using ClaimsHeader = ClaimPageHeader<RealPlatform>;

/// Blocks one process can own at a time. The table and the pages are sparse: unused records cost nothing.
inline constexpr std::uint32_t kMaxBlocks = 4u << 20;
inline constexpr std::size_t kHolesAt = kMaxBlocks * sizeof(Record);  ///< of the words behind the records
inline constexpr std::size_t kTableBytes = kHolesAt + kPinWords * sizeof(std::uint32_t);

static_assert(sizeof(Record) == 32);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

/// A claim page and the file that others map it from.
struct ClaimFile {
  Fd file;
  Mapping memory;
};

/// A new claim page: sized and sealed, so that no process can make the other side fault.
ClaimFile create_claim_file();
Mapping map_claims(const Fd& file);
/// The inode under which /proc/<pid>/maps lists the file.
std::uint64_t inode_of(const Fd& file);
/// Private memory in the form of a claim page, for owners that need not be told any more.
Mapping private_claims();
/// private_claims() where another page is mapped: never more mappings than before. Throws out_of_mappings
/// nevertheless.
Mapping private_claims(Mapping in_place_of);
/// The transits that lie beside the claims in one page.
TransitCounts transits_in(const Mapping& mapping);
/// A word for each segment, see pin_claim.h. Thread safety: all members may be called concurrently; each word has one
/// writer.
class PinWords {
 public:
  using Word = PinWord<RealPlatform>;
  PinWords() noexcept = default;
  explicit PinWords(Word* words) noexcept : words_(words) {}
  Word& operator[](std::uint32_t segment) const noexcept { return words_[segment % kPinWords]; }
  explicit operator bool() const noexcept { return words_ != nullptr; }

 private:
  Word* words_ = nullptr;
};

/// The pins of a process, beside its claims.
PinWords pins_in(const Claims& page) noexcept;
/// Does an owner see that page? False for pages of private_claims().
bool is_seen(const Claims& page) noexcept;
/// The page inside a mapping. Throws protocol if it is not one.
Claims claims_in(const Mapping& mapping);

}  // namespace onecopy
