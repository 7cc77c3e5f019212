// SPDX-License-Identifier: Apache-2.0
#include "store/client/mapped_memory.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <iterator>
#include <thread>

#include "core/throw_error.h"
#include "device/capture_gate.h"
#include "device/pinned_ranges.h"
#include "os/deadline.h"
#include "os/log.h"
#include "os/memfd.h"
#include "os/page_tables.h"
#include "share/session.h"
#include "store/client/stored_ranges.h"
#include "store/format/message.h"

namespace onecopy::store {

std::uint64_t MappedMemory::size_for(Device device, std::uint64_t bytes) {
  const std::uint64_t unit = backend(device.type).granularity();
  return (bytes + unit - 1) / unit * unit;
}

BlockRef MappedMemory::create(Device device, std::uint64_t bytes) {
  return {new MappedMemory(device, size_for(device, bytes)), 0};
}

ExportedMemory MappedMemory::create_for_others(Device device, std::uint64_t bytes) {
  Backend& vendor = backend(device.type);
  Chunks chunks;
  chunks.push_back(vendor.create_chunk(device.index, size_for(device, bytes)));
  ExportedMemory memory = vendor.export_chunks(chunks, Access::read_write);
  memory.kind = vendor.traits().kind;
  memory.size = chunks.front()->size();
  return memory;
}

BlockRef MappedMemory::open(Device device, std::vector<ExportedMemory> parts, Shown shown, Access access) {
  return {new MappedMemory(device, import(device, std::move(parts)), access,
                           std::make_shared<const Shown>(std::move(shown))),
          0};
}

MappedMemory::Chunks MappedMemory::import(Device device, std::vector<ExportedMemory> parts) {
  Chunks chunks;
  for (ExportedMemory& part : parts)
    std::ranges::move(backend(device.type).import_chunks(device.index, std::move(part), device.index),
                      std::back_inserter(chunks));
  return chunks;
}

MappedMemory::MappedMemory(Device device, std::uint64_t bytes)
    : BlockGroup(false), device_(device), size_(bytes), access_(Access::read_write) {
  if (size_ == 0) return;
  reservation_ = backend(device.type).reserve(device.index, size_);
  chunks_.push_back(backend(device.type).create_chunk_in(*reservation_, device.index));
  StoredRanges::all().add(*this);
}

MappedMemory::MappedMemory(Device device, Chunks chunks, Access access, std::shared_ptr<const Shown> shown)
    : BlockGroup(false),
      device_(device),
      shown_(std::move(shown)),
      chunks_(std::move(chunks)),
      access_(access) {
  for (const auto& chunk : chunks_) size_ += chunk->size();
  if (size_ == 0) return;
  reservation_ = backend(device.type).reserve(device.index, size_);
  map(*reservation_, chunks_, access_);
  if (device_ == kCpu) chunks_.clear();
  StoredRanges::all().add(*this);
}

MappedMemory::~MappedMemory() {
  if (size_ != 0) StoredRanges::all().remove(*this);
  if (PinnedRanges::any()) PinnedRanges::get().unpin(data());
  if (size_ != 0 && access_ == Access::read_only)
    unmap();  // another thread does the work for memory of the host
}

void MappedMemory::populate() const {
  if (device_ == kCpu && size_ != 0) PageTableFiller(data(), size_).help();
}

void MappedMemory::pin() const { Session::current().pin_memory(data(), size_, access_); }

bool is_stored(const void* at) noexcept { return StoredRanges::all().has(at); }
Tensor stored_tensor(void* at, const Layout& layout) {
  BlockRef block = MappedMemory::find(at);
  if (!block) return {};
  const auto& memory = *static_cast<const MappedMemory*>(block.group());
  return {std::move(block), at, layout, memory.device(), memory.access()};
}

BlockRef MappedMemory::find(const void* at) noexcept { return StoredRanges::all().find(at); }

Tensor MappedMemory::lend(const Tensor& tensor) {
  const std::shared_ptr<const Shown> version = shown();
  if (!version || !version->reading) return {};
  const std::size_t bytes = tensor.layout().extent_bytes();
  const auto offset = static_cast<std::uint64_t>(tensor.as<std::byte>() - data());
  if (bytes == 0 || offset > size_ || bytes > size_ - offset) return {};
  std::byte* at = nullptr;
  BlockRef lent = version->lent->lend(version->version, version->reading, {offset, bytes}, at);
  if (!lent) return {};
  return {std::move(lent), at, tensor.layout(), device_,
          device_ == kCpu ? Access::read_write : Access::read_only};
}

bool MappedMemory::is_sent_as_copy() const noexcept {
  const std::shared_ptr<const Shown> version = shown();
  return version && version->reading && version->version.kind != VersionKind::kv_pool;
}

void MappedMemory::map(Reservation& where, const Chunks& chunks, Access access) const {
  std::size_t at = 0;
  for (const auto& chunk : chunks) {
    where.map(at, *chunk, 0, chunk->size());
    at += chunk->size();
  }
  where.allow(device_.index, 0, size_, access);
}

/// Unmaps the chunks of a card one by one, which is quicker for large chunks.
void MappedMemory::unmap() noexcept {
  if (device_ == kCpu) return reservation_->unmap(0, size_);
  std::size_t at = 0;
  for (const auto& chunk : chunks_) {
    reservation_->unmap(at, chunk->size());
    at += chunk->size();
  }
}

void MappedMemory::protect() {
  if (access_ == Access::read_only) return;
  backend(device_.type).finish_work();
  if (size_ != 0 && device_ == kCpu && !try_seal()) {
    log_warning(
        "a draft is copied to be published: a forked process has its memory mapped, or a device uses it");
    chunks_ = copied();
    if (!try_seal())
      throw Error(ErrorCode::timeout,
                  "a draft cannot be sealed: a forked process has its memory mapped, and its copy; publish "
                  "it again while no other thread forks");
  } else if (size_ != 0 && device_ != kCpu) {
    unmap();
    map(*reservation_, chunks_, Access::read_only);
  }
  access_ = Access::read_only;
}

/// Maps the memory read-only, through descriptors that cannot write, and seals it: the kernel refuses to seal memory that
/// any process has mapped for writing. Returns false after a while if it still refuses.
bool MappedMemory::try_seal() {
  constexpr std::chrono::seconds kPatience{1};  // for children that are about to call exec()
  constexpr std::chrono::microseconds kPause{200};
  const auto seal = [](const Fd& file) { return try_add_seals(file, kSealWrite); };
  ExportedMemory exported = export_chunks(Access::read_only);
  std::vector<ExportedMemory> parts;
  parts.push_back(std::move(exported));
  Chunks sealed = import(device_, std::move(parts));
  PageTableFiller(data(), size_, PageTableFiller::kUnused).help();
  remap_on_host(sealed);
  const std::vector<Fd> files = backend(device_.type).export_chunks(chunks_, Access::read_write).fds;
  for (const Deadline deadline = Deadline::after(kPatience); !std::ranges::all_of(files, seal);
       std::this_thread::sleep_for(kPause))
    if (deadline.has_passed()) return false;
  chunks_ = std::move(sealed);
  return true;
}

/// Returns new memory with the same content, in usual pages: before 5.17 Linux did not seal memory in huge pages.
MappedMemory::Chunks MappedMemory::copied() const {
  Backend& vendor = backend(device_.type);
  Chunks chunks;
  chunks.push_back(vendor.create_chunk(device_.index, size_));
  const auto to = vendor.reserve(device_.index, size_);
  map(*to, chunks, Access::read_write);
  std::memcpy(to->base(), data(), size_);
  return chunks;
}

void MappedMemory::take(MappedMemory& next) {
  if (next.size_ != size_)
    throw_error(ErrorCode::bad_handle, "a version of {} bytes came where {} are shown", next.size_, size_);
  if (size_ != 0) {
    StoredRanges::all().remove(next);
    reservation_->try_take(*next.reservation_);  // the host can move mappings
    next.size_ = 0;
  }
  std::shared_ptr<const Shown> version = next.shown();
  const LockGuard lock(mutex_);
  shown_.swap(version);
}

void MappedMemory::remap(std::vector<ExportedMemory> parts, Shown shown, StepTimes& steps) {
  std::shared_ptr<const Shown> next = std::make_shared<const Shown>(std::move(shown));
  Chunks others = import(device_, std::move(parts));
  std::uint64_t bytes = 0;
  for (const auto& chunk : others) bytes += chunk->size();
  if (bytes != size_)
    throw_error(ErrorCode::bad_handle, "a version of {} bytes came where {} are shown", bytes, size_);
  steps.end("import");
  if (size_ != 0) remap_on_card(others, steps);
  steps.end("show");
  // The chunks are closed before the keeper is told, so that the guard is the last process that has the memory and spends
  // the time to free it.
  std::swap(chunks_, others);
  others.clear();
  {
    const LockGuard lock(mutex_);
    shown_.swap(next);
  }
  next.reset();
  steps.end("release");
}

/// Maps the other memory at other addresses, where a failure changes nothing, and then moves it over the old one.
void MappedMemory::remap_on_host(const Chunks& others) {
  const auto next = backend(device_.type).reserve(device_.index, size_);
  map(*next, others, Access::read_only);
  reservation_->try_take(*next);
}

/// Waits for the work that was given to the device, and maps the other memory instead. No capture of a stream begins
/// meanwhile: the wait would spoil the capture.
void MappedMemory::remap_on_card(const Chunks& others, StepTimes& steps) {
  Backend& vendor = backend(device_.type);
  const bool is_shown = CaptureGate::get().try_between([&] {
    if (!vendor.finish_work())
      throw vendor.failure(device_.index)
          .value_or(Error(ErrorCode::peer_died, "a device has failed, and its work does not end"));
    steps.end("work");
    put_in_place(others);
  });
  if (!is_shown)
    throw Error(ErrorCode::invalid_argument,
                "a stream of this process is being captured, which update() would spoil: update before or "
                "after the capture");
}

/// Unmaps the old memory and maps the other one, for all devices that could use the old one. Maps the old memory again
/// after an error.
void MappedMemory::put_in_place(const Chunks& others) {
  const std::vector<int> users = reservation_->users(0);
  const auto map_for_all = [&](const Chunks& chunks) {
    map(*reservation_, chunks, access_);
    for (const int user : users) reservation_->allow(user, 0, size_, access_);
  };
  unmap();
  try {
    map_for_all(others);
  } catch (const Error&) {
    reservation_->unmap(0, size_);
    map_for_all(chunks_);
    throw;
  }
}

ExportedMemory MappedMemory::export_chunks(Access access) const {
  if (size_ == 0) return {};
  ExportedMemory memory = backend(device_.type).export_chunks(chunks_, access);
  memory.kind = backend(device_.type).traits().kind;
  memory.size = size_;
  return memory;
}

}  // namespace onecopy::store
