// SPDX-License-Identifier: Apache-2.0
#include "graph/stand_ins.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "device/backend.h"
#include "device/reservation.h"
#include "graph/relocation.h"
#include "onecopy/core/error.h"

namespace onecopy::graph {

namespace {

constexpr std::uint64_t kPage = std::uint64_t{2} << 20;
constexpr std::uint64_t kLargestChunk = std::uint64_t{64} << 20;
constexpr std::uint64_t kMostMappings = 128;  // of one stand-in
constexpr std::uint64_t kKept = Relocation::kAlignment - 1;

std::uint64_t whole(std::uint64_t bytes, std::uint64_t unit) { return (bytes + unit - 1) / unit * unit; }

std::uint64_t chunk_for(std::span<const Region> originals) {
  std::uint64_t most = 0;
  for (const Region& original : originals) most = std::max(most, original.bytes);
  return std::bit_ceil(std::clamp(most / kMostMappings, kPage, kLargestChunk));
}

/// All bits that may count are the other ones.
std::uint64_t place_in(std::uint64_t span, std::uint64_t base) {
  return span + ((~base & (StandIns::kSpan - 1) & ~kKept) | (base & kKept));
}

}  // namespace

StandIns::StandIns(Device device, std::span<const Region> originals) {
  Backend& vendor = backend(device.type);
  if (!vendor.traits().maps_one_chunk_twice || kPage % vendor.granularity() != 0)
    throw Error(ErrorCode::unsupported,
                fmt::format("memory of {} cannot be shown at several addresses", device.str()));
  if (originals.empty()) return;
  memory_ = vendor.create_chunk(device.index, chunk_for(originals));
  for (const Region& original : originals) add(device, original);
}

void StandIns::add(Device device, const Region& original) {
  const std::uint64_t chunk = memory_->size();
  auto addresses =
      backend(device.type).reserve(device.index, 2 * kSpan + whole(original.bytes, chunk) + chunk);
  const auto base = reinterpret_cast<std::uint64_t>(addresses->base());
  const std::uint64_t at = place_in(whole(base, kSpan), original.base);
  const std::uint64_t first = (at - base) / kPage * kPage;
  const std::uint64_t bytes = whole(at - base + original.bytes - first, chunk);
  for (std::uint64_t shown = 0; shown < bytes; shown += chunk)
    addresses->map(first + shown, *memory_, 0, chunk);
  addresses->allow(device.index, first, bytes, Access::read_write);
  addresses_.push_back(std::move(addresses));
  places_.push_back(at);
}

StandIns::StandIns(StandIns&&) noexcept = default;
StandIns::~StandIns() = default;

}  // namespace onecopy::graph
