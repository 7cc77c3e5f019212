// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "os/fd.h"
#include "os/mapping.h"
#include "share/owner/claim.h"
#include "share/owner/transits.h"

namespace onecopy {

using Record = BlockRecord<RealPlatform>;
using Claims = ClaimPage<RealPlatform>;
using ClaimsHeader = ClaimPageHeader<RealPlatform>;

/// Blocks one process can own at a time. The table and the pages are sparse: only what is used costs.
inline constexpr std::uint32_t kMaxBlocks = 4u << 20;
inline constexpr std::size_t kTableBytes = kMaxBlocks * sizeof(Record);

static_assert(sizeof(Record) == 32);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

/// A claim page and the file that others map it from.
struct ClaimFile {
  Fd file;
  Mapping memory;
};

/// A new claim page: sized and sealed, so that nobody can make the other side fault.
ClaimFile create_claim_file();
Mapping map_claims(const Fd& file);
/// What /proc/<pid>/maps calls the file.
std::uint64_t inode_of(const Fd& file);
/// Private memory in the form of a claim page, for owners that nobody needs to tell any more.
Mapping private_claims();
/// The same where another page is mapped. Never more mappings than before. Throws out_of_mappings all the same.
Mapping private_claims(Mapping in_place_of);
/// What lies beside the claims in the same memory.
Transits transits_in(const Mapping& mapping);
/// The page inside a mapping. Throws protocol when it is not one.
Claims claims_in(const Mapping& mapping);

}  // namespace onecopy
