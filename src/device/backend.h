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

/// The bytes and descriptors with which another process maps a segment. Memory of files and of virtual memory
/// management travels as descriptors, a named file as a path in `blob`, any other kind as the vendor's handle in
/// `blob`.
struct ExportedMemory {
  SegmentKind kind = SegmentKind::memfd;
  std::uint64_t size = 0;
  std::vector<Fd> fds;
  Bytes blob;
  Uuid device{};  ///< the device that holds the memory; all zero for the CPU
  /// The number of descriptors that did not fit into one message; DeviceMemory::export_rest() returns them.
  std::size_t missing = 0;
  /// A function for open() that asks the owner for the descriptors from number `first` on. Empty if all are here.
  std::function<std::vector<Fd>(std::size_t first)> rest{};
};
/// Throws unsupported if descriptors are missing, because then only the owner can pass the memory on.
void require_all(const ExportedMemory& memory);
/// Throws read_only if memory that was lent with the access `lent` may not be opened with `access`.
void require_lent(Access lent, Access access);

/// A device by its name in this process and its name on this host. There is one object for each pair.
struct DeviceIdentity {
  Device device;  ///< the device through which this process sees the memory
  Uuid uuid;      ///< the device that holds the memory
};

/// A region of one device's memory, mapped into this process. The destructor unmaps it; the memory itself lives as long
/// as any process has it mapped or holds a descriptor. Thread safety: const members may be called concurrently, as may
/// commit and decommit of disjoint ranges.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;

  virtual std::byte* data() const noexcept = 0;
  virtual std::size_t size() const noexcept = 0;
  virtual SegmentKind kind() const noexcept = 0;
  /// Returns the access with which the memory was opened; read_write in its owner.
  Access access() const noexcept { return access_; }
  /// Reserves physical memory for [offset, offset + bytes), so that a later access cannot fail. Throws out_of_memory
  /// with the numbers, read_only, invalid_argument; nothing has changed then.
  void commit(std::size_t offset, std::size_t bytes);
  /// Does what commit() does for pages that other processes may use already: after an error, pages that were reserved
  /// stay.
  void populate(std::size_t offset, std::size_t bytes);
  /// Returns the bytes that have physical memory now, or size() if the kind cannot tell.
  virtual std::size_t present() const noexcept { return size(); }
  /// Gives physical memory back to the system, and loses the content. No effect on memory of a whole allocation.
  virtual void decommit(std::size_t, std::size_t) noexcept {}
  /// Returns the bytes and descriptors by which another process maps the memory. Throws out_of_descriptors, read_only,
  /// unsupported.
  ExportedMemory export_memory(Access access) const;
  /// Returns descriptors from number `first` on, as many as one message takes; empty if there are no more.
  virtual std::vector<Fd> export_rest(std::size_t first) const;
  /// Removes the memory's name in a file system, if it has one and no other process has opened the file. Called when
  /// the process ends, while its threads may still use the memory.
  virtual void remove_name() noexcept {}
  /// Lets another device of this process use the memory, with the access it was opened with. Returns its address for
  /// that device, which is the same unless the memory had to be opened again. Fast if the device may use it already.
  /// Throws unsupported if there is no way from that device to the memory.
  virtual std::byte* allow(int ordinal);

 protected:
  explicit DeviceMemory(Access access) noexcept : access_(access) {}

 private:
  /// Reserves memory. REQUIRES: the range lies within the memory, which is writable.
  virtual void do_commit(std::size_t, std::size_t) {}
  /// Reserves memory in pages that others may use. REQUIRES: as above.
  virtual void do_populate(std::size_t offset, std::size_t bytes) { do_commit(offset, bytes); }
  void check_range(std::size_t offset, std::size_t bytes) const;
  /// Exports the memory, without its kind and size. REQUIRES: `access` does not exceed access().
  virtual ExportedMemory do_export(Access access) const = 0;

  const Access access_;
};

/// A device as listings show it.
struct DeviceInfo {
  Device device;
  Uuid uuid;
  std::string name;
  std::uint64_t total_bytes = 0;
};

/// The properties of a backend's memory.
struct BackendTraits {
  SegmentKind kind = SegmentKind::memfd;  ///< the kind of new segments, unless kind_on() returns another
  std::size_t alignment = 64;             ///< the alignment of blocks, as in the vendor's own allocator
  /// Says that physical memory is reserved and given back for whole segments only: commit() of a part reserves all of
  /// it, and decommit() of a part does nothing.
  bool whole_segments = false;
  /// Says that the host can access the memory through its addresses. If false, only copy() can.
  bool host_memory = true;
  /// The environment variable that hides devices from a process.
  const char* visibility = "";
  bool maps_one_chunk_twice = false;  ///< reservations can map one chunk at several places at once
  bool maps_parts = false;            ///< reservations can map a part of a chunk
};

/// A copy of bytes between two places, each on the CPU or a device, both known to one backend.
struct Transfer {
  void* to = nullptr;
  Device to_device;
  const void* from = nullptr;
  Device from_device;
  std::size_t bytes = 0;
};

/// An allocation of another library.
struct ForeignMemory {
  Device device;
  std::byte* base = nullptr;
  std::size_t bytes = 0;
  std::uint64_t identity = 0;  ///< stays unique even if the addresses are reused
  SegmentKind kind = SegmentKind::memfd;
};

/// A vendor's devices, as onecopy uses them. There is one instance per type, which backend() returns. Thread safety:
/// all members may be called concurrently.
class Backend {
 public:
  virtual ~Backend() = default;

  virtual DeviceType type() const noexcept = 0;
  virtual BackendTraits traits() const noexcept = 0;
  /// Returns the devices; empty if the vendor's library or its devices are absent.
  virtual std::vector<DeviceInfo> devices() const = 0;
  /// Returns whether this process can hold memory of this type, which needs the vendor's library. Does not load it.
  virtual bool is_in_process() const noexcept { return true; }
  /// Returns the smallest unit of create() and commit() in bytes.
  virtual std::size_t granularity() const noexcept = 0;
  /// Returns the kind of segments to create() on this device, which may be less capable than others. The first call may
  /// find out the kind by a trial. Throws what create() throws if the device does not exist.
  virtual SegmentKind kind_on(int) const { return traits().kind; }
  /// Reserves a range of addresses of `bytes` (a multiple of granularity()); commit() adds memory. `number` is the
  /// segment's number, `owner` the 32 hex digits of its process: named kinds use them.
  virtual std::unique_ptr<DeviceMemory> create(int ordinal, std::size_t bytes, SegmentKind kind,
                                               const std::string& owner, std::uint32_t number) = 0;
  /// Maps memory of the device `home`, exported by another process, for the device `user`. data() is its address for
  /// `user`; allow() adds other devices. Checks sizes and seals. Creates no context on `home` if the vendor allows
  /// that. Throws bad_handle, out_of_mappings, and unsupported if `user` has no way to the memory.
  virtual std::unique_ptr<DeviceMemory> open(int home, ExportedMemory memory, Access access, int user) = 0;
  std::unique_ptr<DeviceMemory> open(int ordinal, ExportedMemory memory, Access access) {
    return open(ordinal, std::move(memory), access, ordinal);
  }

  // Functions that separate addresses from memory, for callers that map memory in several ways. Each throws unsupported
  // if the vendor cannot. The addresses belong to the device `user`; their size is a multiple of granularity().
  virtual std::unique_ptr<Reservation> reserve(int user, std::size_t bytes);
  /// Allocates memory of this device. Throws out_of_memory with the numbers. REQUIRES: `bytes` is a multiple of
  /// granularity().
  virtual std::unique_ptr<PhysicalChunk> create_chunk(int ordinal, std::size_t bytes);
  /// Does what create_chunk(), map() and allow() for reading and writing do for a whole reservation, on the host quicker.
  virtual std::unique_ptr<PhysicalChunk> create_chunk_in(Reservation& where, int ordinal);
  /// Returns the chunks of the device `home` that another process exported, in the order of their addresses there, to
  /// be mapped for `user`. Throws bad_handle, owner_died. REQUIRES: the caller has checked that `memory` may be opened.
  virtual std::vector<std::unique_ptr<PhysicalChunk>> import_chunks(int home, ExportedMemory memory,
                                                                    int user);
  /// Returns the descriptors and numbers of consecutive chunks, to be opened with at most `access`. The caller fills in
  /// kind and size. Throws unsupported for imported chunks whose descriptors this process has not kept.
  virtual ExportedMemory export_chunks(std::span<const std::unique_ptr<PhysicalChunk>> chunks,
                                       Access access) const;

  /// Duplicates an export, to be passed on with at most `access`.
  virtual ExportedMemory duplicate(const ExportedMemory& memory, Access access) const = 0;
  /// Returns the driver's number for this process, for owners that lend to it, or 0 if the driver does not check who
  /// opens memory. Throws unsupported.
  virtual std::int32_t borrower_number() { return 0; }
  /// Lets the process with this number open the export, if the driver checks who opens memory.
  virtual void admit(const ExportedMemory&, std::int32_t) {}

  /// Copies after all work that is in the stream, and returns at once if the vendor can. The stream belongs to the
  /// device that is written to or, if that is the CPU, read from. REQUIRES: host memory stays unchanged until the copy
  /// is done.
  virtual void copy(const Transfer& transfer, Stream stream) = 0;
  /// Does what copy() does for transfers between two devices, in any order, in one call of the driver if it has one.
  virtual void copy_batch(std::span<const Transfer> transfers, Stream stream);
  /// Does what copy() does between two places of one device, if possible without its processors: if another process
  /// uses them, the copy would wait until the device switches to this process. May write up to kAsideRoom bytes.
  /// REQUIRES: they exist.
  virtual void copy_aside(const Transfer& transfer, Stream stream) { copy(transfer, stream); }
  static constexpr std::size_t kAsideRoom = 2048;
  virtual void synchronize(int ordinal, Stream stream) = 0;  ///< waits for all work in the stream

  /// Pins [at, at + bytes) of the host, whole pages that are mapped with this access. Copies between them and any
  /// device of this type then run at the speed of the link and do not block the caller. A driver refuses a copy that
  /// crosses the edge of a pinned range, so copy_bytes() cuts it. PinnedRanges calls it.
  ///
  /// Throws unsupported with the missing feature, invalid_argument if a part is pinned already, out_of_memory.
  /// REQUIRES: unpin_host() before the pages are unmapped, remapped or given back, or the device continues to use the
  /// old pages.
  virtual void pin_host(int ordinal, void* at, std::size_t bytes, Access access);
  /// Checks that work of the device finds pinned host memory at the host's own address. Throws unsupported.
  virtual void require_in_place(int ordinal, const void* at);
  /// Unpins the range that begins at the address. Waits for all work of the device.
  virtual void unpin_host(int, void*) noexcept {}

  /// Creates this process's context on the device, which other libraries need for work on its memory.
  virtual void create_context(int) {}
  /// Returns a device of this type that this process uses already, or -1. Does not create a context.
  virtual int device_in_use() const noexcept { return -1; }
  /// Returns a point after all work that this process has given to devices of this type so far, in any stream; null if
  /// it has used none. Does not wait. Throws unsupported if the vendor has no such point; call finish_work() instead.
  /// REQUIRES: no stream of the process is captured during the call (CaptureGate), or the capture fails.
  virtual std::unique_ptr<WorkPoint> mark_work();
  /// Waits for all such work. Returns false if a device failed, whose work may never end. REQUIRES: as for mark_work().
  virtual bool finish_work() noexcept { return true; }

  /// Registers `words` (whole pages, mapped) with the driver until the process ends. Returns false if streams of this
  /// device cannot wait for words in host memory and write them.
  virtual bool register_words(int, void*, std::size_t) { return false; }
  /// Enqueues a store to a registered word, after all work in the stream.
  virtual void write_word(int ordinal, Stream stream, std::atomic<std::uint64_t>& word,
                          std::uint64_t value);
  /// Does what write_word() does on a thread of the driver, without register_words(). Returns false if it cannot.
  virtual bool write_word_by_host(int, Stream, std::atomic<std::uint64_t>&, std::uint64_t) { return false; }
  /// Enqueues a wait until the word has reached or passed the value; values are compared cyclically.
  virtual void wait_for_word(int ordinal, Stream stream, const std::atomic<std::uint64_t>& word,
                             std::uint64_t value);

  /// Returns whether work given to the stream is now recorded instead of executed. Recorded work cannot be ordered.
  virtual bool is_captured(int, Stream) { return false; }

  /// Returns whether the stream has work for which a word after it would wait: false while the stream is captured and
  /// once its device has failed. May return true if the vendor cannot be asked. Does not wait and does not harm a
  /// capture.
  virtual bool has_work(int, Stream) noexcept { return true; }

  /// Returns the driver of captured graphs; null if the vendor has none.
  virtual GraphDriver* graphs() { return nullptr; }

  /// Returns the error that ended this process's use of the device, after which its streams' remaining work is never
  /// done. Empty while the device works. Does not wait.
  virtual std::optional<Error> failure(int) { return {}; }

  /// Returns the allocation, or the row of allocations, that contains [at, at + bytes). Throws unsupported for memory
  /// that cannot be shared with other processes, invalid_argument for addresses that are not this vendor's.
  virtual ForeignMemory find_foreign(const void* at, std::size_t bytes);
  /// Returns whether `at` still belongs to this allocation, or false if finding out takes long.
  virtual bool is_still(const ForeignMemory&, const void*) const noexcept { return false; }
  /// Makes the allocation a segment, which lasts as long as its maker leaves the memory there.
  virtual std::unique_ptr<DeviceMemory> adopt(const ForeignMemory& memory);

 protected:
  /// Throws invalid_argument unless `bytes` is a possible size of a segment.
  void check_size(std::size_t bytes) const;
  [[noreturn]] void refuse(SegmentKind kind) const;
};

/// Returns the backend of a type of device. Throws unsupported with the missing feature.
Backend& backend(DeviceType type);
// Each loads its vendor's library at the first use, and is never destroyed: threads may use it until the process ends.
Backend& cpu_backend();
Backend& cuda_backend();
Backend& ascend_backend();
/// Returns every type that this build knows, whether or not it works on this machine.
std::vector<DeviceType> backend_types();

/// Returns this process's number of the device. Throws unsupported if the device is absent or not visible.
Device find_device(DeviceType type, const Uuid& uuid);
/// Returns the device's UUID; all zero for the CPU. Throws invalid_argument.
Uuid uuid_of(Device device);
/// Returns the device's identity, which lives until the process ends.
const DeviceIdentity& identity_of(Device device);
/// Copies by the backend that knows both sides.
void copy_bytes(const Transfer& transfer, Stream stream = {});
/// Copies as Backend::copy_batch(), and one by one where memory of the host is not pinned.
void copy_batch(std::span<const Transfer> transfers, Stream stream = {});
/// Copies, and waits until the copy is done.
void copy_bytes_and_wait(const Transfer& transfer);

}  // namespace onecopy
