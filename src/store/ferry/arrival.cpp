// SPDX-License-Identifier: Apache-2.0
#include "store/ferry/arrival.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <utility>

#include "core/point.h"
#include "device/backend.h"
#include "onecopy/core/error.h"
#include "os/memfd.h"
#include "store/client/mapped_memory.h"
#include "store/client/state.h"

namespace onecopy::store::ferry {
namespace {

std::size_t bytes_of_arrived(const Table& table) noexcept {
  return std::max<std::size_t>(chunks_of(bytes_to_send(table)), 1);
}

/// Makes the table that of memory of this host, and returns the memory; an empty descriptor for a version without tensors.
Fd make_memory(Table& table) {
  table.device_type = static_cast<std::uint8_t>(DeviceType::cpu);
  table.device = {};
  table.size = MappedMemory::size_for(kCpu, table.size);
  table.parts.clear();
  if (table.size == 0) return {};
  ExportedMemory exported = MappedMemory::create_for_others(kCpu, table.size);
  describe(exported, table);
  return std::move(exported.fds.front());
}

void publish_draft(Client& client, const ArrivingFiles& files) {
  std::vector<Fd> fds;
  if (files.memory) fds.push_back(files.memory.duplicate());
  fds.push_back(files.arrived.duplicate());
  publish_version(client, files.table, files.version, fds, files.version.token);
}

}  // namespace

std::optional<ArrivingFiles> ArrivingFiles::find(Client& client, const Token& local) {
  try {
    Packet packet = client.ask_for_files(OpenDraft{local, local});
    ArrivingFiles files{unpack<Opened>(packet.bytes).version, {}, {}, {}};
    if (packet.fds.size() < 2)
      throw Error(ErrorCode::protocol, "a version that arrives came without its memory");
    files.table = OpenTable(packet.fds.front()).table;
    files.arrived = std::move(packet.fds.back());
    if (packet.fds.size() > 2) files.memory = std::move(packet.fds[1]);
    return files;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::stale_handle) throw;
    return {};
  }
}

bool ArrivingFiles::is_whole() const {
  const Mapping mapped = Mapping::of(arrived, bytes_of_arrived(table), Access::read_only);
  const std::span chunks(mapped.data(), chunks_of(bytes_to_send(table)));
  return std::ranges::all_of(chunks, [](std::byte one) { return one != std::byte{0}; });
}

Arrival::Arrival(std::shared_ptr<Client> client, std::shared_ptr<Membership> membership,
                 ArrivingFiles files)
    : client_(std::move(client)),
      membership_(std::move(membership)),
      files_(std::move(files)),
      bytes_(bytes_to_send(files_.table)) {
  const bool is_sealed = files_.memory && (seals_of(files_.memory) & kSealWrite) != 0;
  const Access access = is_sealed ? Access::read_only : Access::read_write;
  if (files_.memory) memory_ = Mapping::of(files_.memory, files_.table.size, access);
  arrived_ = Mapping::of(files_.arrived, bytes_of_arrived(files_.table), Access::read_write);
}

std::optional<Arrival> Arrival::resume(const std::shared_ptr<Client>& client, const Token& local) {
  try {
    auto membership = Membership::carry(client, local, false, kAway);
    auto files = ArrivingFiles::find(*client, local);
    if (files) return Arrival(client, std::move(membership), *std::move(files));
    membership->conclude(Conclude::How::commit);  // the process before was killed after it had published
  } catch (const Error& error) {
    if (error.code() != ErrorCode::stale_handle) throw;
  }
  return {};
}

Arrival Arrival::begin(const std::shared_ptr<Client>& client, const Token& local, Wanted wanted,
                       const std::function<void()>& has_room) {
  ArrivingFiles files{{}, std::move(wanted.table), {}, {}};
  VersionRecord& version = files.version;
  version = record_of(wanted.name, kCpu, 0, wanted.keep);
  version.token = local;
  version.number = wanted.number;
  version.kind = VersionKind::draft;
  version.bytes = MappedMemory::size_for(kCpu, files.table.size) + size_of_bytes(files.table);
  const ReservedRoom room = client->reserve(version, Deadline::after(kKeeperPatience));
  files.memory = make_memory(files.table);
  files.arrived = create_memfd("onecopy-store-arrived", bytes_of_arrived(files.table));
  has_room();
  auto membership = Membership::carry(client, local, true, kAway);
  publish_draft(*client, files);
  return {client, std::move(membership), std::move(files)};
}

std::span<std::byte> Arrival::room(std::uint64_t chunk) const noexcept {
  return {memory_.data() + chunk * kChunkBytes, bytes_of_chunk(chunk, bytes())};
}

void Arrival::take(std::uint64_t chunk) noexcept {
  std::atomic_ref(*arrived_.as<std::uint8_t>(chunk)).store(1, std::memory_order_release);
  point("store.pull.chunk");
}

Arrival Arrival::of_whole(const std::shared_ptr<Client>& client, const Token& local, Wanted wanted,
                          Fd memory) {
  ArrivingFiles files{{}, std::move(wanted.table), std::move(memory), {}};
  files.version = record_of(wanted.name, kCpu, files.table.size + size_of_bytes(files.table), wanted.keep);
  files.version.token = local;
  files.version.number = wanted.number;
  files.version.kind = VersionKind::draft;
  files.arrived = create_memfd("onecopy-store-arrived", bytes_of_arrived(files.table));
  const Mapping arrived = Mapping::of(files.arrived, bytes_of_arrived(files.table), Access::read_write);
  std::ranges::fill(std::span(arrived.data(), arrived.size()), std::byte{1});
  auto membership = Membership::carry(client, local, true, kAway);
  publish_draft(*client, files);
  return {client, std::move(membership), std::move(files)};
}

/// A process that was killed may take a while to unmap the memory.
void Arrival::seal() {
  constexpr std::chrono::milliseconds kPatience{10'000}, kPause{5};
  memory_.reset();
  const Deadline until = Deadline::after(kPatience);
  if (files_.memory && (seals_of(files_.memory) & kSealWrite) != 0) return;
  while (files_.memory && !try_add_seals(files_.memory, kSealWrite)) {
    if (until.has_passed())
      throw Error(ErrorCode::system,
                  fmt::format("the version of \"{}\" that arrived cannot be sealed: a process has "
                              "it mapped for writing, or a device uses its pages",
                              files_.version.name));
    std::this_thread::sleep_for(kPause);
  }
}

std::uint64_t Arrival::commit() {
  if (!is_whole()) throw Error(ErrorCode::invalid_argument, "not all chunks have arrived");
  seal();
  point("store.pull.sealed");
  VersionRecord version = files_.version;
  version.kind = VersionKind::copied;
  std::vector<Fd> fds;
  if (files_.memory) fds.push_back(files_.memory.duplicate());
  try {
    publish_version(*client_, files_.table, version, fds, version.token);
    point("store.pull.published");
    return membership_->conclude(Conclude::How::commit);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::stale_handle) throw;
    throw Error(ErrorCode::peer_died,
                "both halves of the store's keeper were killed, and what had arrived is lost: pull again");
  }
}

}  // namespace onecopy::store::ferry
