// SPDX-License-Identifier: Apache-2.0
#include "store/ferry/offered_version.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "onecopy/core/error.h"
#include "os/memfd.h"
#include "store/client/state.h"
#include "store/ferry/local_versions.h"
#include "store/ferry/origins.h"

namespace onecopy::store::ferry {
namespace {

Bytes content_of(const Mapping& table) { return {table.data(), table.data() + table.size()}; }

}  // namespace

OfferedVersion OfferedVersion::find(Store& store, Client& client, const std::string& name,
                                    std::uint64_t number) {
  const LocalVersions versions = LocalVersions::of(client, name);
  if (number == 0)
    if (auto arriving = OfferedVersion::arriving(client, name, versions.newest))
      return *std::move(arriving);
  OfferedVersion whole = OfferedVersion::whole(store, client, name, number);
  whole.told_.newest = std::max(versions.newest, whole.told_.number);
  return whole;
}

/// Opens the version twice, for its table and for its memory: a reading keeps the version from being dropped in between.
OfferedVersion OfferedVersion::whole(Store& store, Client& client, const std::string& name,
                                     std::uint64_t number) {
  const auto reading = client.open(name, number, nullptr, Deadline::after(kKeeperPatience));
  const VersionRecord record = reading->version();
  const bool is_kv_pool = record.kind == VersionKind::kv_pool;
  if (is_kv_pool || record.device != kCpu.str())
    throw Error(ErrorCode::unsupported,
                fmt::format("\"{}\" is {}, and only versions in memory of the host go to other hosts", name,
                            is_kv_pool ? "a KV pool" : "in memory of " + record.device));
  OfferedVersion offered;
  offered.version_ = store.open(name, record.number);
  const OpenTable opened(reading->files().front());
  offered.bytes_ = bytes_to_send(opened.table);
  offered.data_ = offered.version_->memory().as<const std::byte>();
  const Origins origins(client.home(Deadline::after(kKeeperPatience)), name);
  offered.told_ = {0,
                   {},
                   false,
                   origins.origin_of(record.token),
                   record.number,
                   record.number,
                   record.keep,
                   content_of(opened.bytes)};
  return offered;
}

/// Returns the version that is arriving if its number is larger than `beyond`.
std::optional<OfferedVersion> OfferedVersion::arriving(Client& client, const std::string& name,
                                                       std::uint64_t beyond) {
  const auto pairs = Origins(client.home(Deadline::after(kKeeperPatience)), name).pairs();
  std::optional<ArrivingFiles> files;
  auto pair = pairs.rbegin();  // the last one may be of an older version, which is shown again
  for (; pair != pairs.rend(); ++pair)
    if (pair->number > beyond && (files = ArrivingFiles::find(client, pair->local))) break;
  if (!files) return {};
  files->version.number &= ~kExactNumber;
  OfferedVersion offered;
  offered.bytes_ = bytes_to_send(files->table);
  // A writable open file would keep the host from sealing the memory.
  if (files->memory) {
    const Fd memory = reopen_read_only(files->memory);
    offered.memory_ = Mapping::of(memory, files->table.size, Access::read_only);
  }
  offered.data_ = offered.memory_.data();
  offered.arrived_ = Mapping::of(reopen_read_only(files->arrived),
                                 std::max<std::size_t>(offered.chunks(), 1), Access::read_only);
  offered.told_ = {0,
                   {},
                   false,
                   pair->origin,
                   files->version.number,
                   files->version.number,
                   files->version.keep,
                   encode(files->table)};
  return offered;
}

bool OfferedVersion::has(std::uint64_t chunk) const noexcept {
  return !arrived_ ||
         std::atomic_ref(*arrived_.as<std::uint8_t>(chunk)).load(std::memory_order_acquire) != 0;
}

ByteSpan OfferedVersion::chunk(std::uint64_t chunk) const noexcept {
  return {data_ + chunk * kChunkBytes, bytes_of_chunk(chunk, bytes_)};
}

}  // namespace onecopy::store::ferry
