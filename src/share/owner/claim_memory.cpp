// SPDX-License-Identifier: Apache-2.0
#include "share/owner/claim_memory.h"

#include <sys/stat.h>

#include <cerrno>
#include <new>

#include "onecopy/core/error.h"
#include "os/memfd.h"

namespace onecopy {
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

}  // namespace onecopy
