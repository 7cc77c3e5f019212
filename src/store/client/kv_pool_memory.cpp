// SPDX-License-Identifier: Apache-2.0
#include "store/client/kv_pool_memory.h"

#include <chrono>
#include <cstring>
#include <span>

#include "os/hmac.h"

namespace onecopy::store {
namespace {

constexpr std::size_t aligned(std::size_t bytes) noexcept { return (bytes + 63) / 64 * 64; }

constexpr std::size_t kEventsAt = aligned(sizeof(KvHeader));
constexpr std::size_t kRecordsAt = aligned(kEventsAt + sizeof(KvEvent) * kKvEvents);

std::size_t buckets_at(const KvGeometry& geometry) noexcept {
  return aligned(kRecordsAt + sizeof(KvRecord) * geometry.blocks());
}

std::size_t leases_at(const KvGeometry& geometry) noexcept {
  return aligned(buckets_at(geometry) + sizeof(std::uint32_t) * geometry.blocks());
}

template <class Unit>
auto now() noexcept {
  return std::chrono::duration_cast<Unit>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

KvMemory::KvMemory(std::byte* memory, const KvGeometry& divided) noexcept
    : geometry(divided),
      header(reinterpret_cast<KvHeader*>(memory)),
      events(reinterpret_cast<KvEvent*>(memory + kEventsAt)),
      records(reinterpret_cast<KvRecord*>(memory + kRecordsAt)),
      buckets(reinterpret_cast<std::uint32_t*>(memory + buckets_at(divided))),
      leases(reinterpret_cast<std::uint64_t*>(memory + leases_at(divided))) {}

std::size_t KvMemory::bytes_for(const KvGeometry& geometry) noexcept {
  return leases_at(geometry) +
         std::size_t{kKvUsers} * ((geometry.blocks() + 63) / 64) * sizeof(std::uint64_t);
}

KvKey kv_key(std::string_view key) noexcept {
  KvKey words;
  if (key.size() == sizeof words) {
    std::memcpy(words.data(), key.data(), sizeof words);
    return words;
  }
  const Digest digest = sha256(std::as_bytes(std::span(key)));
  std::memcpy(words.data(), digest.data(), sizeof words);
  return words;
}

std::uint32_t kv_now() noexcept { return static_cast<std::uint32_t>(now<std::chrono::milliseconds>()); }
std::uint32_t kv_seconds() noexcept { return static_cast<std::uint32_t>(now<std::chrono::seconds>()); }

}  // namespace onecopy::store
