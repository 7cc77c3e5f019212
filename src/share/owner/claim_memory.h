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

/// A borrower's items in queues: how many items of each block, and which queues. The counts lie in the borrower's claim
/// page, beside the claims, and outlive the borrower (see Ledger::leave_in_transit).
///
/// Thread safety: the borrower's threads may call all members concurrently; the owner reads once the borrower is gone.
/// A queue is noted before the item is counted, and never forgotten. A queue stands at the place that its number says,
/// which is random, or at the first free place behind.
class TransitCounts {
 public:
  using Count = std::atomic<std::uint32_t>;
  using Word = std::atomic<std::uint64_t>;
  static constexpr std::size_t kQueues = 511;
  static constexpr std::size_t kWords = kQueues + 1;  ///< the last one says that there were more

  TransitCounts() = default;
  TransitCounts(Count* counts, Word* channels) noexcept : counts_(counts), channels_(channels) {}

  void begin(std::uint32_t block, std::uint64_t channel) noexcept {
    if (channels_[channel % kQueues].load(std::memory_order_relaxed) != channel) note(channel);
    counts_[block].fetch_add(1);
  }
  /// A forked child's page starts at 0. The transits that its parent had begun are the parent's to end.
  void end(std::uint32_t block) noexcept {
    if (counts_[block].load() != 0) counts_[block].fetch_sub(1);
  }
  std::uint32_t items(std::uint32_t block) const noexcept { return counts_[block].load(); }
  /// The queues; empty if they were too many to be noted.
  std::optional<std::vector<std::uint64_t>> channels() const;

 private:
  void note(std::uint64_t channel) noexcept;

  Count* counts_ = nullptr;
  Word* channels_ = nullptr;
};

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
/// Makes private memory in the form of a claim page, for owners that no longer need to be told.
Mapping private_claims();
/// Makes private_claims() where another page is mapped, so that there are never more mappings than before. Throws
/// out_of_mappings nevertheless.
Mapping private_claims(Mapping in_place_of);
/// The transits that lie beside the claims in one page.
TransitCounts transits_in(const Mapping& mapping);
/// A word for each segment, see the words of pins in claim.h. Thread safety: all members may be called concurrently; each word has one
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
/// Returns whether an owner sees the page; false for pages of private_claims().
bool is_seen(const Claims& page) noexcept;
/// The page inside a mapping. Throws protocol if it is not one.
Claims claims_in(const Mapping& mapping);

/// The claims that a coming child will have with one owner: its claim page and its end of a connection. In the page
/// the child counts as holding every block until it has copied its claims.
struct ForkPage {
  Mapping memory;
  UnixSocket socket;
};

/// Announces a child in the page of the process that forks, makes its ForkPage and sends it to the owner. Empty if the
/// owner cannot be reached or is gone, or if about twenty pages wait unread. The owner is stopped in that case, and
/// descriptors on their way count for the whole user. Never waits.
std::optional<ForkPage> send_child_page(Claims mine, UnixSocket& owner) noexcept;

/// Sends the owner the pid of the child, in the child. Returns false if the owner is gone.
bool greet_owner(UnixSocket& owner) noexcept;

/// Runs a step that a forked child cannot do without. If it fails, the child ends with a message: without claims of
/// its own it would read memory that its owner uses again.
void or_end_child(const std::function<void()>& f) noexcept;

}  // namespace onecopy
