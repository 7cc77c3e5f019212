// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "device/work_point.h"
#include "onecopy/core/bytes.h"
#include "onecopy/core/device.h"
#include "onecopy/core/error.h"
#include "onecopy/core/tensor_view.h"
#include "onecopy/device/segment_kind.h"
#include "onecopy/device/stream.h"
#include "os/fd.h"

namespace onecopy {

class GraphDriver;
class PhysicalChunk;
class Reservation;

/// What lets another process map a segment: descriptors for files and VMM kinds, a path in `blob`
/// for named files, vendor handle bytes in `blob` for the rest.
struct ExportedMemory {
  SegmentKind kind = SegmentKind::memfd;
  std::uint64_t size = 0;
  std::vector<Fd> fds;
  Bytes blob;
  Uuid device{};  ///< whose memory it is; all zero for the CPU
  /// How many descriptors have no room in one message: DeviceMemory::export_rest() has them.
  std::size_t missing = 0;
  /// For open(): asks the owner for those from the `first` on. None where all are here.
  std::function<std::vector<Fd>(std::size_t first)> rest{};
};
/// Throws unsupported when descriptors are missing: only the owner of such memory hands it out.
void require_all(const ExportedMemory& memory);

/// A device by its name here and its name everywhere. There is one object for each pair.
struct DeviceIdentity {
  Device device;  ///< where this process sees the memory
  Uuid uuid;      ///< whose memory it is
};

/// One region of one device, mapped into this process. Destroying it unmaps it; the memory itself
/// lives as long as any process has it mapped or holds a descriptor.
/// Thread safety: const members may be called concurrently; commit and decommit of disjoint ranges too.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;

  virtual std::byte* data() const noexcept = 0;
  virtual std::size_t size() const noexcept = 0;
  virtual SegmentKind kind() const noexcept = 0;
  /// How it was opened; read_write in its owner.
  Access access() const noexcept { return access_; }
  /// Reserves physical memory for [offset, offset + bytes), so that touching it cannot fail later.
  /// Throws out_of_memory with the numbers, read_only, invalid_argument; nothing is changed then.
  void commit(std::size_t offset, std::size_t bytes);
  /// The same for pages of which others may have begun to use some: what was reserved before it failed stays.
  void populate(std::size_t offset, std::size_t bytes);
  /// Gives physical memory back to the system; the content is lost.
  virtual void decommit(std::size_t offset, std::size_t bytes) noexcept = 0;
  /// The bytes and descriptors by which another process maps this. Throws out_of_descriptors, read_only, unsupported.
  ExportedMemory export_memory(Access access) const;
  /// Descriptors from the `first` on, as many as one message takes; none when there are not so many.
  virtual std::vector<Fd> export_rest(std::size_t first) const;
  /// Lets another device of this process use it, with the same access, and says where that device finds it: at the
  /// same addresses, unless it has to be opened once more for it. Quick when it may already. Throws unsupported
  /// when there is no way from that device to the memory.
  virtual std::byte* allow(int ordinal);

 protected:
  explicit DeviceMemory(Access access) noexcept : access_(access) {}

 private:
  /// REQUIRES: the range lies within the memory, which is writable.
  virtual void do_commit(std::size_t offset, std::size_t bytes) = 0;
  /// REQUIRES: as above.
  virtual void do_populate(std::size_t offset, std::size_t bytes) { do_commit(offset, bytes); }
  void check_range(std::size_t offset, std::size_t bytes) const;
  /// REQUIRES: `access` is no more than access().
  virtual ExportedMemory do_export(Access access) const = 0;

  const Access access_;
};

struct DeviceInfo {
  Device device;
  Uuid uuid;
  std::string name;
  std::uint64_t total_bytes = 0;
};

/// How a backend's memory wants to be treated.
struct BackendTraits {
  SegmentKind kind = SegmentKind::memfd;  ///< of new segments, where kind_on() says no other
  std::size_t alignment = 64;             ///< of blocks, as the vendor's own allocator has it
  /// Physical memory comes and goes with a whole segment: commit() of a part reserves all of it, and
  /// decommit() of a part does nothing.
  bool whole_segments = false;
  /// The host reads and writes it through its addresses; otherwise only copy() does.
  bool host_memory = true;
  /// The environment variable that hides devices from a process.
  const char* visibility = "";
  /// Reservations may show one chunk at several places at once.
  bool maps_one_chunk_twice = false;
  /// Reservations may show a part of a chunk.
  bool maps_parts = false;
};

/// Bytes to copy between two places, each of them on any device that one backend and the CPU know.
struct Transfer {
  void* to = nullptr;
  Device to_device;
  const void* from = nullptr;
  Device from_device;
  std::size_t bytes = 0;
};

/// Memory that somebody else allocated.
struct ForeignMemory {
  Device device;
  std::byte* base = nullptr;
  std::size_t bytes = 0;
  std::uint64_t identity = 0;  ///< never the same again, should the addresses be used anew
  SegmentKind kind = SegmentKind::memfd;
};

/// What onecopy wants from a vendor. One instance per process and kind, made by backend().
/// Thread safety: all members may be called concurrently.
class Backend {
 public:
  virtual ~Backend() = default;

  virtual DeviceType type() const noexcept = 0;
  virtual BackendTraits traits() const noexcept = 0;
  /// Empty when the vendor's library or its devices are absent.
  virtual std::vector<DeviceInfo> devices() const = 0;
  /// Can there be such memory in this process? No where nobody loaded the vendor's library; asking does not.
  virtual bool is_in_process() const noexcept { return true; }
  /// Smallest unit of create() and commit() in bytes.
  virtual std::size_t granularity() const noexcept = 0;
  /// The kind of segments to create() on this device, which may be less able than others. It may be tried out at
  /// the first call. Throws what create() throws where there is no such device.
  virtual SegmentKind kind_on(int) const { return traits().kind; }
  /// Reserves an address range of `bytes` (a multiple of granularity()); commit() fills it.
  /// `number` is the segment's number, `owner` the 32 hex digits that name its process: kinds with
  /// names use them.
  virtual std::unique_ptr<DeviceMemory> create(int ordinal, std::size_t bytes, SegmentKind kind,
                                               const std::string& owner, std::uint32_t number) = 0;
  /// Maps what another process exported, memory of the device `home`, for the device `user`: data() is where that one
  /// finds it, and allow() is for others. Where the vendor can, nothing is taken of `home` but the memory: no context.
  /// Checks sizes and seals; throws bad_handle, out_of_mappings, unsupported when `user` has no way to it.
  virtual std::unique_ptr<DeviceMemory> open(int home, ExportedMemory memory, Access access, int user) = 0;
  std::unique_ptr<DeviceMemory> open(int ordinal, ExportedMemory memory, Access access) {
    return open(ordinal, std::move(memory), access, ordinal);
  }

  // Addresses and memory apart, for those who map one in several ways. Throw unsupported where a vendor cannot.
  /// Addresses that are seen by the device `user`: a multiple of granularity().
  virtual std::unique_ptr<Reservation> reserve(int user, std::size_t bytes);
  /// Memory of this device: a multiple of granularity(). Throws out_of_memory with the numbers.
  virtual std::unique_ptr<PhysicalChunk> create_chunk(int ordinal, std::size_t bytes);
  /// The chunks of the device `home` that another process exported, in the order of their addresses there, to be
  /// mapped for `user`. The caller has checked that `memory` may be opened. Throws bad_handle, owner_died.
  virtual std::vector<std::unique_ptr<PhysicalChunk>> import_chunks(int home, ExportedMemory memory,
                                                                    int user);
  /// The descriptors and numbers of chunks in a row, to be opened with no more access than `access`. Kind and size are
  /// for the caller to fill in. Throws unsupported for imported chunks whose descriptors this process does not keep.
  virtual ExportedMemory export_chunks(std::span<const std::unique_ptr<PhysicalChunk>> chunks,
                                       Access access) const;

  /// The same export again, to be passed on with no more access than `access`.
  virtual ExportedMemory duplicate(const ExportedMemory& memory, Access access) const = 0;
  /// The number by which the driver knows this process, for those who lend to it; 0 where drivers do not ask who
  /// opens memory. Throws unsupported.
  virtual std::int32_t borrower_number() { return 0; }
  /// Lets the process that the driver knows by this number open the export, where it asks.
  virtual void admit(const ExportedMemory&, std::int32_t) {}

  /// Copies when all that is in the stream before has been done, and returns at once where the vendor
  /// can; memory of the host must stay as it is until then. The stream belongs to the device that is
  /// written to, or, when that is the CPU, read from.
  virtual void copy(const Transfer& transfer, Stream stream) = 0;
  /// Waits for all that is in the stream.
  virtual void synchronize(int ordinal, Stream stream) = 0;

  /// Pins [at, at + bytes) of the host, whole pages that are mapped with this access: copies between them and any
  /// device of this kind run at the speed of the link, and keep no caller waiting. A driver refuses one copy that
  /// reaches over the edge of what was pinned as one: copy_bytes() cuts it. PinnedRanges is who calls this.
  /// REQUIRES: unpin_host() before the pages are unmapped, mapped over or given back, or the device goes on using the
  /// old ones. Throws unsupported, saying what is missing; invalid_argument when some of it is pinned already;
  /// out_of_memory.
  virtual void pin_host(int ordinal, void* at, std::size_t bytes, Access access);
  /// The end of that, by its beginning. Waits for all that the device has to do.
  virtual void unpin_host(int, void*) noexcept {}

  /// A device of this kind that this process uses already; -1 when there is none. Asking takes no context.
  virtual int device_in_use() const noexcept { return -1; }
  /// A point after all that this process has given to devices of this kind so far, in whatever stream; null when it has
  /// used none. Waits for nothing. REQUIRES: no stream of the process is captured meanwhile (CaptureGate), or the
  /// capture is spoilt. Throws unsupported where the vendor has no such point: finish_work() then.
  virtual std::unique_ptr<WorkPoint> mark_work();
  /// Waits for all that this process has given to devices of this kind so far. REQUIRES: as mark_work(). False when a
  /// device has failed, whose work nobody knows the end of.
  virtual bool finish_work() noexcept { return true; }

  /// Can streams of this device wait for words in memory of the host and write them? Then `words` (whole
  /// pages, mapped) are made known to the driver; they stay so until the process ends.
  virtual bool register_words(int, void*, std::size_t) { return false; }
  /// Enqueues a store to a registered word, after all that is in the stream.
  virtual void write_word(int ordinal, Stream stream, std::atomic<std::uint64_t>& word,
                          std::uint64_t value);
  /// The same without register_words(), where a thread of the driver's can store it: as far in order, and later.
  /// False where that is not possible either.
  virtual bool write_word_by_host(int, Stream, std::atomic<std::uint64_t>&, std::uint64_t) { return false; }
  /// Enqueues a wait until the word has reached the value, or gone past it: values are compared cyclically.
  virtual void wait_for_word(int ordinal, Stream stream, const std::atomic<std::uint64_t>& word,
                             std::uint64_t value);

  /// Is what the stream is given now recorded for later, and not done? Then it cannot be ordered.
  virtual bool is_captured(int, Stream) { return false; }

  /// Has the stream still something to do that a word after it would wait for? Not while it is captured, nor once its
  /// device has failed; perhaps where the vendor cannot be asked. Waits for nothing, and harms no capture.
  virtual bool has_work(int, Stream) noexcept { return true; }

  /// For captured graphs; none where the vendor has none.
  virtual GraphDriver* graphs() { return nullptr; }

  /// The error after which nothing works on the device any more in this process, and what its streams had still to do
  /// is never done; none while it works. Waits for nothing.
  virtual std::optional<Error> failure(int) { return {}; }

  /// The allocation, or the row of allocations, that [at, at + bytes) lies in. Throws unsupported for
  /// memory that no other process can be given, invalid_argument for what is not this vendor's.
  virtual ForeignMemory find_foreign(const void* at, std::size_t bytes) = 0;
  /// Is this still the allocation that `at`, an address in it, belongs to? No where that takes long to find out.
  virtual bool is_still(const ForeignMemory&, const void*) const noexcept { return false; }
  /// Makes it a segment, which lasts as long as its maker leaves it there.
  virtual std::unique_ptr<DeviceMemory> adopt(const ForeignMemory& memory) = 0;
};

/// The backend of a kind of device. Throws unsupported, saying what is missing.
Backend& backend(DeviceType type);
/// Every kind this build knows, whether or not it works on this machine.
std::vector<DeviceType> backend_types();

/// How this process numbers the device. Throws unsupported when it is not here or not visible.
Device find_device(DeviceType type, const Uuid& uuid);
/// The reverse; all zero for the CPU. Throws invalid_argument.
Uuid uuid_of(Device device);
/// Lives until the process ends, so that tables can point at it.
const DeviceIdentity& identity_of(Device device);
/// Copies by whichever backend knows both sides.
void copy_bytes(const Transfer& transfer, Stream stream = {});
/// The same, and waits until it is done.
void copy_bytes_and_wait(const Transfer& transfer);

}  // namespace onecopy
