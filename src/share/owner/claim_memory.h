// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "os/fd.h"
#include "os/mapping.h"
#include "os/unix_socket.h"
#include "share/owner/claim.h"

namespace onecopy {

/// The borrower's items in queues: the number of items with each block, and the queues. The counts are in the
/// borrower's claim page, beside the claims, and outlive the borrower (see Ledger::leave_in_transit).
///
/// Thread safety: the borrower's threads may call all members concurrently; the owner reads after the borrower's end.
/// Invariants: a queue is noted before an item in it is counted, and never forgotten. A queue is at the index that its
/// random number determines, or at the first free index after it.
class TransitCounts {
 public:
  using Count = std::atomic<std::uint32_t>;
  using Word = std::atomic<std::uint64_t>;
  static constexpr std::size_t kQueues = 511;
  static constexpr std::size_t kWords = kQueues + 1;  ///< the last word tells that there were more queues

  TransitCounts() = default;
  TransitCounts(Count* counts, Word* channels) noexcept : counts_(counts), channels_(channels) {}

  void begin(std::uint32_t block, std::uint64_t channel) noexcept {
    if (channels_[channel % kQueues].load(std::memory_order_relaxed) != channel) note(channel);
    counts_[block].fetch_add(1);
  }
  /// Counts one item less. A forked child's page starts at 0, so it ignores the end of items that its parent had put.
  void end(std::uint32_t block) noexcept {
    if (counts_[block].load() != 0) counts_[block].fetch_sub(1);
  }
  std::uint32_t items(std::uint32_t block) const noexcept { return counts_[block].load(); }
  /// Returns the queues; empty if there were too many to note.
  std::optional<std::vector<std::uint64_t>> channels() const;

 private:
  void note(std::uint64_t channel) noexcept;

  Count* counts_ = nullptr;
  Word* channels_ = nullptr;
};

using Record = BlockRecord<RealPlatform>;
using Claims = ClaimPage<RealPlatform>;
using ClaimsHeader = ClaimPageHeader<RealPlatform>;

/// The max number of blocks that a process can own. The table and the pages are sparse, so unused records cost nothing.
inline constexpr std::uint32_t kMaxBlocks = 4u << 20;
/// The offset of the words after the records.
inline constexpr std::size_t kHolesAt = kMaxBlocks * sizeof(Record);
inline constexpr std::size_t kTableBytes = kHolesAt + kPinWords * sizeof(std::uint32_t);

static_assert(sizeof(Record) == 32);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

/// A claim page and the file that others map it from.
struct ClaimFile {
  Fd file;
  Mapping memory;
};

/// Makes a claim page, sized and sealed, so that no process can make the other side fault.
ClaimFile create_claim_file();
Mapping map_claims(const Fd& file);
/// Returns the inode under which /proc/<pid>/maps lists the file.
std::uint64_t inode_of(const Fd& file);
/// Makes private memory in the form of a claim page, for owners that no longer need to be told.
Mapping private_claims();
/// Makes private_claims() at the address of another page, so that the number of mappings does not grow. May still throw
/// out_of_mappings.
Mapping private_claims(Mapping in_place_of);
/// Returns the transit counts beside the claims of a page.
TransitCounts transits_in(const Mapping& mapping);
/// An array with a word for each segment, see claim.h. Thread safety: all members may be called concurrently; each word
/// has one writer.
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

/// Returns the pin words beside the claims of a page.
PinWords pins_in(const Claims& page) noexcept;
/// Returns whether an owner sees the page; false for pages of private_claims().
bool is_seen(const Claims& page) noexcept;
/// Returns the claim page in a mapping. Throws protocol if the mapping does not contain one.
Claims claims_in(const Mapping& mapping);

/// The claim page of a child that is about to be forked, and the child's end of a connection to one owner. In the page
/// the child counts as holding all blocks until it has copied its claims.
struct ForkPage {
  Mapping memory;
  UnixSocket socket;
};

/// Announces a child in the page of the process that forks, makes its ForkPage and sends it to the owner. Returns
/// nothing if the owner cannot be reached or is gone, or if about twenty pages wait unread, because the owner is
/// stopped: descriptors in sockets count for the whole user. Never waits.
std::optional<ForkPage> send_child_page(Claims mine, UnixSocket& owner) noexcept;

/// Sends the child's pid to the owner, from the child. Returns false if the owner is gone.
bool greet_owner(UnixSocket& owner) noexcept;

/// Runs a step that a forked child needs. If it fails, ends the child with a message, because without claims of its own
/// the child would read memory that the owner reuses.
void or_end_child(const std::function<void()>& f) noexcept;

}  // namespace onecopy
