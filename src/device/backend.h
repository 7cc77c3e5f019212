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

/// The bytes and descriptors with which another process maps a segment. Files and VMM kinds travel as descriptors,
/// named files as a path in `blob`, all others as vendor handle bytes in `blob`.
struct ExportedMemory {
  SegmentKind kind = SegmentKind::memfd;
  std::uint64_t size = 0;
  std::vector<Fd> fds;
  Bytes blob;
  Uuid device{};  ///< whose memory it is; all zero for the CPU
  /// How many descriptors have no room in one message: DeviceMemory::export_rest() returns them.
  std::size_t missing = 0;
  /// For open(): asks the owner for the descriptors from the `first` on. Empty if all are here.
  std::function<std::vector<Fd>(std::size_t first)> rest{};
};
/// Throws unsupported if descriptors are missing: only the owner of such memory hands it out.
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
  /// commit() for pages that other processes may use already: pages that were reserved before an error stay.
  void populate(std::size_t offset, std::size_t bytes);
  /// Bytes that have physical memory now; all where the kind cannot tell.
  virtual std::size_t present() const noexcept { return size(); }
  /// Gives physical memory back to the system; the content is lost.
  virtual void decommit(std::size_t offset, std::size_t bytes) noexcept = 0;
  /// The bytes and descriptors by which another process maps this. Throws out_of_descriptors, read_only, unsupported.
  ExportedMemory export_memory(Access access) const;
  /// Descriptors from the `first` on, as many as one message takes; empty if there are none.
  virtual std::vector<Fd> export_rest(std::size_t first) const;
  /// Removes the memory's name in a file system, if it has a name and no other process has opened the file. Called at the
  /// end of the process, whose threads may use the memory until then.
  virtual void remove_name() noexcept {}
  /// Lets another device of this process use the memory, with the access it was opened with. Returns its address for
  /// that device: unchanged, unless the memory has to be opened once more for it. Quick if that device may use it
  /// already. Throws unsupported if there is no way from that device to the memory.
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

/// A device as listings show it.
struct DeviceInfo {
  Device device;
  Uuid uuid;
  std::string name;
  std::uint64_t total_bytes = 0;
};

/// The properties of a backend's memory.
struct BackendTraits {
  SegmentKind kind = SegmentKind::memfd;  ///< of new segments, where kind_on() says no other
  std::size_t alignment = 64;             ///< of blocks, as the vendor's own allocator has it
  /// Physical memory comes and goes with a whole segment: commit() of a part reserves all of it, and
  /// decommit() of a part does nothing.
  bool whole_segments = false;
  /// The host reads and writes the memory through its addresses; if false, only copy() does.
  bool host_memory = true;
  /// The environment variable that hides devices from a process.
  const char* visibility = "";
  /// Reservations may show one chunk at several places at once.
  bool maps_one_chunk_twice = false;
  /// Reservations may show a part of a chunk.
  bool maps_parts = false;
};

/// Bytes to copy between two places. Each place is on the CPU or a device, both known to one backend.
struct Transfer {
  void* to = nullptr;
  Device to_device;
  const void* from = nullptr;
  Device from_device;
  std::size_t bytes = 0;
};

/// Memory that another library allocated.
struct ForeignMemory {
  Device device;
  std::byte* base = nullptr;
  std::size_t bytes = 0;
  std::uint64_t identity = 0;  ///< stays unique, should the addresses be used anew
  SegmentKind kind = SegmentKind::memfd;
};

/// A vendor as onecopy uses it. One instance per process and kind, made by backend(). Thread safety: all members may
/// be called concurrently.
class Backend {
 public:
  virtual ~Backend() = default;

  virtual DeviceType type() const noexcept = 0;
  virtual BackendTraits traits() const noexcept = 0;
  /// Empty if the vendor's library or its devices are absent.
  virtual std::vector<DeviceInfo> devices() const = 0;
  /// Can this process have such memory? False if the vendor's library is not loaded; asking does not load it.
  virtual bool is_in_process() const noexcept { return true; }
  /// Smallest unit of create() and commit() in bytes.
  virtual std::size_t granularity() const noexcept = 0;
  /// The kind of segments to create() on this device, which may be less able than others. The first call may try it
  /// out. If there is no such device, throws as create() does.
  virtual SegmentKind kind_on(int) const { return traits().kind; }
  /// Reserves an address range of `bytes` (a multiple of granularity()); commit() fills it. `number` is the segment's
  /// number, `owner` the 32 hex digits that name its process: kinds with names use them.
  virtual std::unique_ptr<DeviceMemory> create(int ordinal, std::size_t bytes, SegmentKind kind,
                                               const std::string& owner, std::uint32_t number) = 0;
  /// Maps memory of the device `home`, exported by another process, for the device `user`. data() is its address for
  /// `user`; allow() is for other devices. If the vendor can, takes only the memory of `home`, no context. Checks
  /// sizes and seals. Throws bad_handle, out_of_mappings, unsupported if `user` has no way to it.
  virtual std::unique_ptr<DeviceMemory> open(int home, ExportedMemory memory, Access access, int user) = 0;
  std::unique_ptr<DeviceMemory> open(int ordinal, ExportedMemory memory, Access access) {
    return open(ordinal, std::move(memory), access, ordinal);
  }

  // Addresses and memory apart, for callers that map one memory in several ways. Throw unsupported if the vendor
  // cannot. The addresses are those of the device `user`; their size is a multiple of granularity().
  virtual std::unique_ptr<Reservation> reserve(int user, std::size_t bytes);
  /// Memory of this device. Throws out_of_memory with the numbers. REQUIRES: a multiple of granularity().
  virtual std::unique_ptr<PhysicalChunk> create_chunk(int ordinal, std::size_t bytes);
  /// The chunks of the device `home` that another process exported, in the order of their addresses there, to be
  /// mapped for `user`. Throws bad_handle, owner_died. REQUIRES: the caller has checked that `memory` may be opened.
  virtual std::vector<std::unique_ptr<PhysicalChunk>> import_chunks(int home, ExportedMemory memory,
                                                                    int user);
  /// The descriptors and numbers of chunks in a row, to be opened with no more access than `access`. The caller fills
  /// in kind and size. Throws unsupported for imported chunks whose descriptors this process does not keep.
  virtual ExportedMemory export_chunks(std::span<const std::unique_ptr<PhysicalChunk>> chunks,
                                       Access access) const;

  /// Duplicates an export, to be passed on with no more access than `access`.
  virtual ExportedMemory duplicate(const ExportedMemory& memory, Access access) const = 0;
  /// The driver's number for this process, for owners that lend to it; 0 if the driver does not check openers of
  /// memory. Throws unsupported.
  virtual std::int32_t borrower_number() { return 0; }
  /// If the driver checks openers of memory, lets the process with this number open the export.
  virtual void admit(const ExportedMemory&, std::int32_t) {}

  /// Copies after all work that is in the stream, and returns at once if the vendor can. REQUIRES: memory of the host
  /// stays as it is until the copy is done. The stream belongs to the device that is written to or, if that is the
  /// CPU, read from.
  virtual void copy(const Transfer& transfer, Stream stream) = 0;
  /// copy() between two places of one device, at best without its processors: if another process uses these too, the
  /// copy would wait until the device changes to this process. May write kAsideRoom bytes. REQUIRES: they are there.
  virtual void copy_aside(const Transfer& transfer, Stream stream) { copy(transfer, stream); }
  static constexpr std::size_t kAsideRoom = 2048;
  /// Waits for all work in the stream.
  virtual void synchronize(int ordinal, Stream stream) = 0;

  /// Pins [at, at + bytes) of the host, whole pages that are mapped with this access. Copies between them and any
  /// device of this kind then run at the speed of the link, and keep no caller waiting. A driver refuses one copy
  /// that reaches over the edge of a pinned range: copy_bytes() cuts it. Called by PinnedRanges.
  ///
  /// Throws unsupported, saying the missing feature; invalid_argument if a part is pinned already; out_of_memory.
  /// REQUIRES: unpin_host() before the pages are unmapped, mapped over or given back, or the device goes on using the
  /// old ones.
  virtual void pin_host(int ordinal, void* at, std::size_t bytes, Access access);
  /// Checks that work of the device finds pinned memory of the host at the host's own address. Throws unsupported.
  virtual void require_in_place(int ordinal, const void* at);
  /// Unpins a range, named by its beginning. Waits for all work of the device.
  virtual void unpin_host(int, void*) noexcept {}

  /// A device of this kind that this process uses already; -1 if there is none. Asking takes no context.
  virtual int device_in_use() const noexcept { return -1; }
  /// A point after all work that this process has given to devices of this kind so far, in any stream; null if it has
  /// used none. Waits for nothing. Throws unsupported if the vendor has no such point: then call finish_work().
  /// REQUIRES: no stream of the process is captured meanwhile (CaptureGate), or the capture is spoilt.
  virtual std::unique_ptr<WorkPoint> mark_work();
  /// Waits for all work that this process has given to devices of this kind so far. Returns false if a device has
  /// failed: its work may never end. REQUIRES: as mark_work().
  virtual bool finish_work() noexcept { return true; }

  /// Can streams of this device wait for words in memory of the host and write them? If so, `words` (whole pages,
  /// mapped) are registered with the driver until the process ends.
  virtual bool register_words(int, void*, std::size_t) { return false; }
  /// Enqueues a store to a registered word, after all work in the stream.
  virtual void write_word(int ordinal, Stream stream, std::atomic<std::uint64_t>& word,
                          std::uint64_t value);
  /// write_word() without register_words(), by a thread of the driver: equally ordered, and later. Returns false if
  /// that is not possible either.
  virtual bool write_word_by_host(int, Stream, std::atomic<std::uint64_t>&, std::uint64_t) { return false; }
  /// Enqueues a wait until the word has reached the value, or gone past it: values are compared cyclically.
  virtual void wait_for_word(int ordinal, Stream stream, const std::atomic<std::uint64_t>& word,
                             std::uint64_t value);

  /// Is work given to the stream now recorded for later, and not done? Then it cannot be ordered.
  virtual bool is_captured(int, Stream) { return false; }

  /// Has the stream work for which a word after it would wait? False while it is captured, and once its device has
  /// failed. May be true if the vendor cannot be asked. Waits for nothing, and harms no capture.
  virtual bool has_work(int, Stream) noexcept { return true; }

  /// For captured graphs; null if the vendor has none.
  virtual GraphDriver* graphs() { return nullptr; }

  /// The error that ended this process's use of the device: the rest of its streams' work is never done. Empty while
  /// the device works. Waits for nothing.
  virtual std::optional<Error> failure(int) { return {}; }

  /// The allocation, or the row of allocations, that [at, at + bytes) lies in. Throws unsupported for memory that
  /// cannot be given to another process, invalid_argument for addresses that are not this vendor's.
  virtual ForeignMemory find_foreign(const void* at, std::size_t bytes) = 0;
  /// Is this still the allocation that `at`, an address in it, belongs to? Also false if it takes long to find out.
  virtual bool is_still(const ForeignMemory&, const void*) const noexcept { return false; }
  /// Makes it a segment, which lasts as long as its maker leaves the memory there.
  virtual std::unique_ptr<DeviceMemory> adopt(const ForeignMemory& memory) = 0;
};

/// The backend of a kind of device. Throws unsupported, saying the missing feature.
Backend& backend(DeviceType type);
/// Every kind this build knows, whether or not it works on this machine.
std::vector<DeviceType> backend_types();

/// How this process numbers the device. Throws unsupported if it is not here or not visible.
Device find_device(DeviceType type, const Uuid& uuid);
/// The reverse; all zero for the CPU. Throws invalid_argument.
Uuid uuid_of(Device device);
/// Lives until the process ends, so that tables can point at it.
const DeviceIdentity& identity_of(Device device);
/// Copies by the backend that knows both sides.
void copy_bytes(const Transfer& transfer, Stream stream = {});
/// Copies, and waits until it is done.
void copy_bytes_and_wait(const Transfer& transfer);

}  // namespace onecopy
