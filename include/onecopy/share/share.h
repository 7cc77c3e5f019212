// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "onecopy/device/stream.h"
#include "onecopy/memory/tensor.h"
#include "onecopy/share/handle.h"

namespace onecopy {

/// Returns a new tensor, row-major, uninitialised, in memory that other processes can open at no further cost.
/// `layout` must be contiguous. Throws out_of_memory with the numbers. On a device it first waits, five seconds at
/// most, for memory whose release is pending in streams.
Tensor empty(const Layout& layout, Device device = kCpu);

/// Options of empty().
struct AllocateOptions {
  /// Pinned for this process's cards, see onecopy/share/pin.h; only memory of the CPU.
  bool pinned = false;
  Device device = kCpu;
};
/// Returns empty() with options.
Tensor empty(const Layout& layout, const AllocateOptions& options);

/// A tensor of our own with the same elements, row-major: the way to share foreign memory.
Tensor copy(const TensorView& source);
/// A copy on another device. copy_into() (onecopy/memory/copy.h) fills existing tensors.
Tensor copy(const TensorView& source, Device device);

/// Shares memory in place that a framework or a driver call allocated on a device. The tensor keeps `owner` until no
/// process uses the memory any more; then `owner` is dropped, on any thread. Other processes can see the whole
/// allocation that the view lies in. Throws unsupported for memory that cannot be given to others (the CPU's,
/// managed, or of a stream-ordered pool), invalid_argument if it is not memory of that device.
Tensor adopt(const TensorView& view, std::shared_ptr<const void> owner);

/// Names a tensor for other processes. The tensor must have been made by empty(), copy(), adopt() or a loader, or
/// opened here. A borrowed tensor may be shared on, also after its owner's death. Costs no system call. Throws
/// invalid_argument for memory of other libraries (use copy()).
Handle share(const Tensor& tensor);

/// The tensor that a handle names, on the maker's memory. The first open of an owner connects to it; later ones cost
/// well under a microsecond.
///
/// Throws stale_handle (freed meanwhile), owner_died, peer_died (the owner lives, and cannot be reached from this
/// network namespace), timeout (the owner does not answer for ten seconds: it is stopped). Throws other_boot,
/// other_user, bad_secret, bad_handle, version_mismatch, read_only (only lent for reading), unsupported (no way to the
/// device). Throws out_of_memory, out_of_descriptors, out_of_mappings. Nothing is held or mapped then.
Tensor open(const Handle& handle, Access access = Access::read_write);

/// Returns all bytes of the block that a tensor lies in, which views share: a framework's storage. As many as were
/// requested of empty(), on the tensor's own mapping. Throws invalid_argument for memory of other libraries.
std::span<std::byte> storage(const Tensor& tensor);
/// Returns whether share() can name it: false for memory of other libraries, and for no tensor at all.
bool is_shareable(const Tensor& tensor) noexcept;

/// Makes a handle to be written down: this process keeps the block until the first open() of the bytes or text, in
/// any process, ten minutes at most. Afterwards they hold nothing. Visible in stats().in_transit and `onecopy ls`.
/// Does not outlive this process. Throws invalid_argument for a handle that was itself read from bytes or text.
Handle hold(const Handle& handle);
/// Ends a hold whose handle will not be opened. Has no effect if the hold is over.
void end_hold(const Handle& handle) noexcept;

/// A file of shared memory made by other means (a memfd, a file in /dev/shm), in place, as a row of the `size` bytes
/// from `offset` on. Its pages are reserved, so that touching them cannot end in SIGBUS. `fd` is duplicated and stays
/// the caller's. Throws invalid_argument, read_only, out_of_memory, out_of_descriptors, out_of_mappings. REQUIRES:
/// the file is not shrunk.
Tensor adopt_file(int fd, std::size_t size, std::size_t offset = 0);

/// Options of open().
struct OpenOptions {
  Access access = Access::read_write;
  /// The device that is to use it; by default the memory's own. On CUDA only that device gets a context.
  std::optional<Device> device{};
  /// Work given to this stream of `device` from now on happens after the work that the sharer's stream had in it. The
  /// lease ends after the work in the stream when the last copy of the tensor goes. Also throws peer_died if the sharer
  /// has died, or its device has failed, before its stream was done. REQUIRES: the stream lives until then.
  std::optional<Stream> stream{};
  /// Pins the memory for this process's cards, see onecopy/share/pin.h. Has no effect on memory of devices.
  bool pinned = false;
};
/// Opens, on another device of this process if wanted: see use_on(). Nothing is copied.
Tensor open(const Handle& handle, const OpenOptions& options);

/// A tensor on its memory for use on another device of this process. That device reads and writes the memory in
/// place, through peer access. The addresses stay, except for another process's memory of cudaMalloc, which is opened
/// once more. Handles made from it name the memory's own device. Throws unsupported if there is no way between the
/// two, invalid_argument for another kind of device.
Tensor use_on(const Tensor& tensor, Device device);

/// The action if others could see more than the tensor through its handle. That is the rest of the tensor's storage or,
/// for adopted memory, of the whole allocation, in which a framework may keep other tensors. Counted to the byte, but
/// for rounding: behind a tensor at the beginning of a framework's allocation, up to 511 bytes are allowed.
enum class Exact : std::uint8_t {
  no,      ///< share it
  refuse,  ///< throw unsupported, with the numbers
  copy,    ///< share a copy, which lives as long as the handle
};
/// Options of share(). Streams order the work of tensors on devices; tensors on the CPU have no streams. If the
/// device's streams can wait for words in memory, the host waits for nothing.
struct ShareOptions {
  Exact exact = Exact::no;
  /// The opener's stream will wait for all work in this stream now. A copy is made in it, too.
  std::optional<Stream> stream{};
};
Handle share(const Tensor& tensor, const ShareOptions& options);

/// A tensor on its memory for use in another stream: the memory is kept until that stream has passed the end of the
/// last copy of the result. REQUIRES: the stream lives until then.
Tensor record_stream(const Tensor& tensor, Stream stream);

/// The ways to allocate segments, with the names of torch.multiprocessing.
enum class Strategy : std::uint8_t {
  file_descriptor,  ///< anonymous memory, nothing to leak: the default
  file_system,      ///< named files in shared_directory(), for users that need names
};
void set_strategy(Strategy strategy);
Strategy strategy() noexcept;

}  // namespace onecopy
