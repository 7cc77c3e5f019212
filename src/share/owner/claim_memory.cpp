// SPDX-License-Identifier: Apache-2.0
#include "share/owner/claim_memory.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <new>

#include "onecopy/core/error.h"
#include "os/log.h"
#include "os/memfd.h"
#include "os/process_origin.h"
#include "share/format/wire.h"

namespace onecopy {

void TransitCounts::note(std::uint64_t channel) noexcept {
  for (std::size_t i = 0; i < kQueues; ++i) {
    Word& place = channels_[(channel + i) % kQueues];
    std::uint64_t found = place.load();
    if (found == channel || (found == 0 && place.compare_exchange_strong(found, channel)) ||
        found == channel)
      return;
  }
  channels_[kQueues] = 1;
}

std::optional<std::vector<std::uint64_t>> TransitCounts::channels() const {
  if (channels_[kQueues].load() != 0) return {};
  std::vector<std::uint64_t> list;
  for (std::size_t i = 0; i < kQueues; ++i)
    if (const std::uint64_t channel = channels_[i].load(); channel != 0) list.push_back(channel);
  return list;
}

namespace {

constexpr std::uint64_t kPageMagic = 0x53'4d'49'41'4c'43'43'31;  // "1CCLAIMS"
constexpr std::uint32_t kPageVersion = 3;

using ClaimWord = std::atomic<std::uint64_t>;
constexpr std::size_t kMiddleAt = 4096;
constexpr std::size_t kLeavesAt = kMiddleAt + kMaxBlocks / 4096 * sizeof(ClaimWord);
constexpr std::size_t kSlotsAt = kLeavesAt + kMaxBlocks / 64 * sizeof(ClaimWord);
constexpr std::size_t kTransitsAt = kSlotsAt + kMaxBlocks * sizeof(Claims::Slot);
constexpr std::size_t kChannelsAt = kTransitsAt + kMaxBlocks * sizeof(TransitCounts::Count);
constexpr std::size_t kPinsAt = kChannelsAt + 4096;
constexpr std::size_t kUnseenAt = kPinsAt + kPinWords * sizeof(PinWords::Word);
constexpr std::size_t kPageBytes = kUnseenAt + 4096;
static_assert(TransitCounts::kWords * sizeof(TransitCounts::Word) <= 4096);
static_assert(sizeof(ClaimsHeader) <= kMiddleAt);

void write_header(const Mapping& mapping) {
  auto* header = new (mapping.data()) ClaimsHeader{};
  header->version = kPageVersion;
  header->capacity = kMaxBlocks;
  header->magic = kPageMagic;
}

}  // namespace

ClaimFile create_claim_file() {
  Fd file = create_memfd("onecopy-claims", kPageBytes);
  Mapping memory = Mapping::of(file, kPageBytes, Access::read_write);
  write_header(memory);
  return {std::move(file), std::move(memory)};
}

Mapping map_claims(const Fd& file) {
  if (file_size(file) != kPageBytes || (seals_of(file) & kSealShrink) == 0)
    throw Error(ErrorCode::protocol, "a claim page of the wrong size, or not sealed against shrinking");
  return Mapping::of(file, kPageBytes, Access::read_write);
}

std::uint64_t inode_of(const Fd& file) {
  struct stat status {};
  if (fstat(file.get(), &status) != 0) throw_errno("fstat of a claim page", errno);
  return status.st_ino;
}

Mapping private_claims() {
  Mapping mapping = Mapping::anonymous(kPageBytes);
  write_header(mapping);
  *mapping.as<std::uint32_t>(kUnseenAt) = 1;
  return mapping;
}

Mapping private_claims(Mapping in_place_of) {
  in_place_of.clear();
  write_header(in_place_of);
  *in_place_of.as<std::uint32_t>(kUnseenAt) = 1;
  return in_place_of;
}

PinWords pins_in(const Claims& page) noexcept {
  auto* const begin = reinterpret_cast<std::byte*>(&page.header());
  return PinWords(reinterpret_cast<PinWords::Word*>(begin + kPinsAt));
}

bool is_seen(const Claims& page) noexcept {
  const auto* const begin = reinterpret_cast<const std::byte*>(&page.header());
  return *reinterpret_cast<const std::uint32_t*>(begin + kUnseenAt) == 0;
}

TransitCounts transits_in(const Mapping& mapping) {
  return {mapping.as<TransitCounts::Count>(kTransitsAt), mapping.as<TransitCounts::Word>(kChannelsAt)};
}

Claims claims_in(const Mapping& mapping) {
  auto* header = mapping.as<ClaimsHeader>();
  if (header->magic != kPageMagic || header->version != kPageVersion || header->capacity != kMaxBlocks)
    throw Error(ErrorCode::protocol, "a claim page of another version of onecopy");
  return {header, mapping.as<Claims::Slot>(kSlotsAt), mapping.as<ClaimWord>(kMiddleAt),
          mapping.as<ClaimWord>(kLeavesAt)};
}

namespace {

constexpr std::size_t kMaxUnread = std::size_t{16} * 1024;

/// Logs that an announced child could not be attached, and so counts as holding all blocks. The excess is safe, and
/// visible in the owner's limbo until this process and the child have ended. Logs only once, because a process may fork
/// thousands of times.
void report_reserved(const char* why) noexcept {
  static std::atomic<bool> is_said{false};
  if (is_said.exchange(true)) return;
  try {
    log_warning(
        "fork: {}; what the child borrows stays reserved until both processes have ended (said once)", why);
  } catch (const std::exception&) {  // no memory for the words either
  }
}

void say_that_child_ends(const char* why) noexcept {
  try {
    log_error("fork: {}; the child ends, since nothing would keep the memory that it inherited", why);
  } catch (const std::exception&) {  // as above
  }
}

}  // namespace

std::optional<ForkPage> send_child_page(Claims mine, UnixSocket& owner) noexcept {
  announce_child(mine);
  constexpr const char* kDoesNotRead =
      "the owner of memory that this process borrows does not read its messages; it may be stopped";
  try {
    if (owner.unread_bytes() > kMaxUnread) {
      report_reserved(kDoesNotRead);
      return {};
    }
    ClaimFile page = create_claim_file();
    ForkPage child{std::move(page.memory), {}};
    claims_in(child.memory).header().all.store(1);
    auto [ours, theirs] = UnixSocket::pair();
    child.socket = std::move(ours);
    const int fds[] = {page.file.get(), theirs.fd()};
    if (owner.try_send(wire::pack(wire::AdoptChild{}), fds)) {
      point("fork.page_sent");
      return child;
    }
    report_reserved(kDoesNotRead);
  } catch (const Error& e) {
    if (e.code() != ErrorCode::peer_died) report_reserved(e.what());
  } catch (const std::bad_alloc& e) {
    report_reserved(e.what());
  }
  return {};
}

bool greet_owner(UnixSocket& owner) noexcept {
  try {
    const ProcessOrigin self = this_process_origin();
    return owner.try_send(wire::pack(wire::ChildHello{self}));
  } catch (const std::exception&) {
    return false;
  }
}

void or_end_child(const std::function<void()>& f) noexcept {
  try {
    f();
  } catch (const std::exception& e) {
    say_that_child_ends(e.what());
    ::_exit(EXIT_FAILURE);
  }
}

}  // namespace onecopy
