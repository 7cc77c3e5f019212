// SPDX-License-Identifier: Apache-2.0

#include <algorithm>
#include <array>
#include <atomic>
#include <map>

#include "core/throw_error.h"
#include "device/backend.h"
#include "device/copy_counts.h"
#include "device/pinned_ranges.h"
#include "device/reservation.h"
#include "os/log.h"
#include "os/mutex.h"

namespace onecopy {

namespace {

struct Entry {
  DeviceType type;
  Backend& (*get)();
};

// A new backend is one folder, one line here and its declaration in backend.h.
constexpr std::array kBackends{
    Entry{DeviceType::cpu, cpu_backend},
    Entry{DeviceType::cuda, cuda_backend},
#ifndef ONECOPY_WITHOUT_ASCEND
    Entry{DeviceType::npu, ascend_backend},
#endif
};

[[noreturn]] void throw_one_piece(DeviceType type) {
  throw_error(ErrorCode::unsupported, "{} devices do not tell addresses from memory: allocate a segment",
              name(type));
}

}  // namespace

std::unique_ptr<Reservation> Backend::reserve(int, std::size_t) { throw_one_piece(type()); }

std::unique_ptr<PhysicalChunk> Backend::create_chunk(int, std::size_t) { throw_one_piece(type()); }

std::unique_ptr<PhysicalChunk> Backend::create_chunk_in(Reservation& where, int ordinal) {
  auto chunk = create_chunk(ordinal, where.size());
  where.map(0, *chunk, 0, where.size());
  where.allow(ordinal, 0, where.size(), Access::read_write);
  return chunk;
}

// NOLINTNEXTLINE(performance-unnecessary-value-param): a backend that has chunks takes it
std::vector<std::unique_ptr<PhysicalChunk>> Backend::import_chunks(int, ExportedMemory, int) {
  throw_one_piece(type());
}

ExportedMemory Backend::export_chunks(std::span<const std::unique_ptr<PhysicalChunk>>, Access) const {
  throw_one_piece(type());
}

void Backend::copy_batch(std::span<const Transfer> transfers, Stream stream) {
  for (const Transfer& transfer : transfers) copy(transfer, stream);
}

void Backend::write_word(int, Stream, std::atomic<std::uint64_t>&, std::uint64_t) {
  throw_error(ErrorCode::unsupported, "{} devices do not write words of the host", name(type()));
}

void Backend::wait_for_word(int, Stream, const std::atomic<std::uint64_t>&, std::uint64_t) {
  throw_error(ErrorCode::unsupported, "{} devices do not wait for words of the host", name(type()));
}

void Backend::pin_host(int, void*, std::size_t, Access) {
  throw_error(ErrorCode::unsupported,
              "host memory is pinned for a card that copies it, and {} is not a card: name a card",
              name(type()));
}

void Backend::require_in_place(int ordinal, const void*) {
  throw_error(ErrorCode::unsupported, "{} does not read memory of the host in place; copy it: to_device()",
              Device{type(), static_cast<std::int16_t>(ordinal)}.str());
}

std::unique_ptr<WorkPoint> Backend::mark_work() {
  throw_error(ErrorCode::unsupported, "{} devices have no point after all work of a process", name(type()));
}

ForeignMemory Backend::find_foreign(const void*, std::size_t) {
  throw_error(ErrorCode::unsupported,
              "{} memory of another library cannot be shared in place: copy it (copy(), or empty() and a "
              "copy) into memory of onecopy",
              name(type()));
}

std::unique_ptr<DeviceMemory> Backend::adopt(const ForeignMemory& memory) {
  find_foreign(memory.base, memory.bytes);
  return nullptr;
}

void Backend::check_size(std::size_t bytes) const {
  if (const std::size_t unit = granularity();
      bytes == 0 || bytes % unit != 0 || bytes > (std::size_t{1} << 62))
    throw_error(ErrorCode::invalid_argument,
                "a segment's size must be a positive multiple of {} bytes, not {}", unit, bytes);
}

void Backend::refuse(SegmentKind kind) const {
  throw_error(ErrorCode::unsupported, "segments of kind {} are not memory of {} devices",
              static_cast<int>(kind), name(type()));
}

std::vector<Fd> DeviceMemory::export_rest(std::size_t) const { return {}; }

void require_all(const ExportedMemory& memory) {
  if (memory.missing == 0) return;
  throw_error(ErrorCode::unsupported,
              "this memory of {} bytes has {} descriptors, more than one message takes: its owner hands it "
              "out while it runs, and no other process can keep it for the time after",
              memory.size, memory.fds.size() + memory.missing);
}

void require_lent(Access lent, Access access) {
  if (access == Access::read_write && lent == Access::read_only)
    throw Error(ErrorCode::read_only, "the segment was lent read-only; open it with Access::read_only");
}

void DeviceMemory::commit(std::size_t offset, std::size_t bytes) {
  check_range(offset, bytes);
  do_commit(offset, bytes);
}

void DeviceMemory::populate(std::size_t offset, std::size_t bytes) {
  check_range(offset, bytes);
  do_populate(offset, bytes);
}

void DeviceMemory::check_range(std::size_t offset, std::size_t bytes) const {
  if (access_ == Access::read_only)
    throw Error(ErrorCode::read_only, "cannot reserve memory in a segment that was opened read-only");
  if (offset > size() || bytes > size() - offset)
    throw_error(ErrorCode::invalid_argument, "bytes {} to {} are outside of a segment of {}", offset,
                offset + bytes, size());
}

ExportedMemory DeviceMemory::export_memory(Access access) const {
  if (access == Access::read_write && access_ == Access::read_only && !is_sealed(kind()))
    throw Error(ErrorCode::read_only, "a segment that was opened read-only cannot be lent for writing");
  ExportedMemory memory = do_export(access);
  memory.kind = kind();
  memory.size = size();
  return memory;
}

std::byte* DeviceMemory::allow(int) {
  throw Error(ErrorCode::unsupported,
              "this memory can be used on its own device only; copy it to the other");
}

Backend& backend(DeviceType type) {
  for (const Entry& entry : kBackends)
    if (entry.type == type) return entry.get();
  throw_error(ErrorCode::unsupported, "this build of onecopy has no backend for {} devices", name(type));
}

std::vector<DeviceType> backend_types() {
  std::vector<DeviceType> types;
  types.reserve(kBackends.size());
  for (const Entry& entry : kBackends) types.push_back(entry.type);
  return types;
}

bool is_weak(SegmentKind kind) noexcept {
  return kind == SegmentKind::cuda_ipc || kind == SegmentKind::ascend_key;
}

bool is_sealed(SegmentKind kind) noexcept {
  return kind == SegmentKind::sealed_file || kind == SegmentKind::cuda_sealed;
}

DeviceType device_type(SegmentKind kind) noexcept {
  switch (kind) {
    case SegmentKind::memfd:
    case SegmentKind::named_file:
    case SegmentKind::shared_file:
    case SegmentKind::sealed_file: return DeviceType::cpu;
    case SegmentKind::cuda_vmm:
    case SegmentKind::cuda_sealed:
    case SegmentKind::cuda_ipc: return DeviceType::cuda;
    case SegmentKind::ascend_key:
    case SegmentKind::ascend_vmm: return DeviceType::npu;
  }
  return DeviceType::cpu;
}

Device find_device(DeviceType type, const Uuid& uuid) {
  if (type == DeviceType::cpu) return kCpu;
  const Backend& from = backend(type);
  const auto devices = from.devices();
  for (const DeviceInfo& info : devices)
    if (info.uuid == uuid) return info.device;
  throw_error(ErrorCode::unsupported,
              "the memory is on the {} device with the UUID {}, and the {} that this process sees are "
              "others: is its driver there, and what does {} say? A part of a device, such as an instance "
              "of MIG, is a device with a UUID of its own",
              name(type), uuid.str(), devices.size(), from.traits().visibility);
}

Uuid uuid_of(Device device) {
  if (device.type == DeviceType::cpu) return {};
  const auto devices = backend(device.type).devices();
  const auto at = static_cast<std::size_t>(device.index);
  if (device.index < 0 || at >= devices.size())
    throw_error(ErrorCode::invalid_argument, "there is no {}: this process sees {} such devices",
                device.str(), devices.size());
  return devices[at].uuid;
}

const DeviceIdentity& identity_of(Device device) {
  static const DeviceIdentity cpu{};
  if (device == kCpu) return cpu;
  static Mutex& mutex = *new Mutex;  // both are used until the very end
  static auto& known = *new std::map<Device, DeviceIdentity>;
  const Uuid uuid = uuid_of(device);
  const LockGuard lock(mutex);
  return known.try_emplace(device, DeviceIdentity{device, uuid}).first->second;
}

namespace {

void count_pageable(const PinnedRanges& pinned, const void* host, std::size_t bytes) {
  constexpr std::size_t kLarge = std::size_t{64} << 20;
  static std::atomic<bool> is_said{false};
  if (pinned.is_pinned(host, bytes)) return;
  ++copy_counts.pageable;
  copy_counts.pageable_bytes += bytes;
  if (bytes >= kLarge && !is_said.exchange(true))
    log_warning(
        "copied {} MiB between a card and memory of the host that is not pinned, at a fraction of the "
        "link's speed: pin it before, by onecopy.pin(tensor), or allocate it with pin=True (said once)",
        bytes >> 20);
}

/// Cuts the copy at the edges of pinned ranges, because drivers refuse a copy across an edge (seen on an H100).
void copy_in_pieces(Backend& by, const Transfer& whole, Stream stream) {
  const PinnedRanges& pinned = PinnedRanges::get();
  const bool is_to_host = whole.to_device == kCpu;
  Transfer piece = whole;
  for (std::size_t done = 0; done < whole.bytes; done += piece.bytes) {
    piece.to = static_cast<std::byte*>(whole.to) + done;
    piece.from = static_cast<const std::byte*>(whole.from) + done;
    piece.bytes = pinned.one_copy(is_to_host ? piece.to : piece.from, whole.bytes - done);
    count_pageable(pinned, is_to_host ? piece.to : piece.from, piece.bytes);
    by.copy(piece, stream);
    if (done == 0 && piece.bytes < whole.bytes) ++copy_counts.cut;
  }
}

}  // namespace

void copy_bytes(const Transfer& transfer, Stream stream) {
  const DeviceType type = std::max(transfer.to_device.type, transfer.from_device.type);
  const DeviceType other = std::min(transfer.to_device.type, transfer.from_device.type);
  if (other != DeviceType::cpu && other != type)
    throw_error(ErrorCode::unsupported, "there is no way from {} to {}; copy through the cpu",
                transfer.from_device.str(), transfer.to_device.str());
  if (transfer.bytes == 0) return;
  if (transfer.to_device == kCpu || transfer.from_device == kCpu)
    copy_in_pieces(backend(type), transfer, stream);
  else backend(type).copy(transfer, stream);
}

void copy_batch(std::span<const Transfer> transfers, Stream stream) {
  const PinnedRanges& pinned = PinnedRanges::get();
  const auto goes_at_once = [&](const Transfer& t) {
    if (t.bytes == 0 || t.to_device == t.from_device) return t.bytes != 0 && t.to_device != kCpu;
    if (t.to_device != kCpu && t.from_device != kCpu) return false;
    const void* host = t.to_device == kCpu ? t.to : t.from;
    return pinned.is_pinned(host, t.bytes) && pinned.one_copy(host, t.bytes) == t.bytes;
  };
  std::vector<Transfer> at_once;
  at_once.reserve(transfers.size());
  for (const Transfer& transfer : transfers)
    if (goes_at_once(transfer)) at_once.push_back(transfer);
    else copy_bytes(transfer, stream);
  if (at_once.empty()) return;
  backend(std::max(at_once[0].to_device.type, at_once[0].from_device.type)).copy_batch(at_once, stream);
}

void copy_bytes_and_wait(const Transfer& transfer) {
  copy_bytes(transfer);
  const Device at = transfer.to_device.type == DeviceType::cpu ? transfer.from_device : transfer.to_device;
  backend(at.type).synchronize(at.index, {});
}

}  // namespace onecopy
