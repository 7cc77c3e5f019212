// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "onecopy/core/api.h"
#include "onecopy/device/stream.h"
#include "onecopy/memory/tensor.h"
#include "onecopy/share/handle.h"

ONECOPY_API_BEGIN
namespace onecopy {

/// Returns a new tensor, row-major and uninitialised, in memory that other processes can open at no further cost.
/// `layout` must be contiguous. Throws out_of_memory with the numbers; on a device only after waiting up to five
/// seconds for memory whose release is pending in streams.
Tensor empty(const Layout& layout, Device device = kCpu);

/// The options of empty().
struct AllocateOptions {
  /// Pins the memory for this process's cards, see onecopy/share/pin.h. REQUIRES: `device` is the CPU.
  bool pinned = false;
  Device device = kCpu;
};
/// Returns a new tensor that was allocated with these options.
Tensor empty(const Layout& layout, const AllocateOptions& options);

/// Returns a row-major copy in shareable memory, which is the way to share memory of another library.
Tensor copy(const TensorView& source);
/// Returns a copy on another device. copy_into() (onecopy/memory/copy.h) copies into existing tensors.
Tensor copy(const TensorView& source, Device device);

/// Makes memory of a device shareable in place, which a framework or a driver call allocated. The memory's `owner` is
/// kept until no process uses the memory, and then dropped on any thread. Other processes can see the whole allocation
/// that contains the view. Throws unsupported for memory that cannot be shared (of the CPU, managed, or of a
/// stream-ordered pool), and invalid_argument for memory that does not belong to that device.
Tensor adopt(const TensorView& view, std::shared_ptr<const void> owner);

/// Returns a handle that names the tensor for other processes. The tensor must come from empty(), copy(), adopt(), a
/// loader or open(). A borrowed tensor may be shared on, even after its owner's death. Costs no system call. Throws
/// invalid_argument for memory of other libraries (use copy()).
Handle share(const Tensor& tensor);

/// Opens the tensor that a handle names, on the same memory. The first open() of an owner connects to it; later ones
/// take well under a microsecond.
///
/// Throws stale_handle (the block was freed), owner_died, peer_died (the owner lives but cannot be reached from this
/// network namespace), timeout (the owner is stopped: no reply for ten seconds, or OpenOptions::timeout), other_boot, other_user, bad_secret,
/// bad_handle, version_mismatch, read_only (the maker lends it for reading only), unsupported (the device cannot be
/// used from here), out_of_memory, out_of_descriptors and out_of_mappings. Nothing is held or mapped after an error.
Tensor open(const Handle& handle, Access access = Access::read_write);

/// Returns all bytes of the block that contains the tensor (the storage, in the words of frameworks), in the tensor's
/// own mapping: as many as were requested of empty(). Throws invalid_argument for memory of other libraries.
std::span<std::byte> storage(const Tensor& tensor);
/// Returns whether share() accepts the tensor: false for memory of other libraries and for an empty Tensor.
bool is_shareable(const Tensor& tensor) noexcept;

/// Returns a handle that may be written down: this process keeps the block until the first open() of the bytes or text,
/// in any process, for at most ten minutes; later opens find nothing kept. The hold ends with this process, and is
/// visible in stats().in_transit and `onecopy ls`. Throws invalid_argument for a handle that was itself read from bytes
/// or text.
Handle hold(const Handle& handle);
/// Ends a hold whose handle will not be opened. Does nothing if the hold is over.
void end_hold(const Handle& handle) noexcept;

/// Returns a tensor of `size` bytes, from `offset` on, in place on a file of shared memory that was made by other means
/// (a memfd, a file in /dev/shm). Reserves the file's pages, so that an access cannot end in SIGBUS. Duplicates `fd`.
/// Throws invalid_argument, read_only, out_of_memory, out_of_descriptors, out_of_mappings. REQUIRES: the file is not
/// shrunk.
Tensor adopt_file(int fd, std::size_t size, std::size_t offset = 0);

/// The options of open().
struct OpenOptions {
  Access access = Access::read_write;
  /// The device that will use the memory; by default the memory's own device. On CUDA only that device gets a context.
  std::optional<Device> device{};
  /// A stream of `device`. Work given to it after open() runs after the work that the sharer's stream held at share().
  /// The lease ends after the work that the stream holds when the last copy of the tensor is dropped. open() also
  /// throws peer_died if the sharer has died, or its device has failed, before its stream was done. REQUIRES: the
  /// stream lives until then.
  std::optional<Stream> stream{};
  /// Pins the memory for this process's cards, see onecopy/share/pin.h. Does nothing for memory of a device.
  bool pinned = false;
  /// The max time to wait for a process that must be asked and does not answer (SIGSTOP, a debugger): at least a tenth
  /// of a second and at most ten seconds, which is the default. open() throws timeout then.
  std::optional<std::chrono::nanoseconds> timeout{};
};
/// Opens a tensor, for another device of this process if the options name one: see use_on(). Nothing is copied.
Tensor open(const Handle& handle, const OpenOptions& options);

/// Returns a tensor on the same memory for another device of this process, which accesses it through peer access. The
/// addresses stay the same, except for memory that another process allocated with cudaMalloc, which is opened once
/// more. Handles made from the tensor name the memory's own device. Throws unsupported if there is no way between the
/// two devices, and invalid_argument for another type of device.
Tensor use_on(const Tensor& tensor, Device device);

/// The reaction of share() when other processes could see more through the handle than the tensor: the rest of its
/// storage or, for adopted memory, the rest of the allocation, where a framework may keep other tensors. The check is
/// exact to the byte, except that up to 511 bytes are allowed behind a tensor at the start of a framework's allocation,
/// for rounding.
enum class Exact : std::uint8_t {
  no,      ///< share the tensor
  refuse,  ///< throw unsupported, with the numbers
  copy,    ///< share a copy, which lives as long as the handle
};
/// The options of share(). Streams order the work of tensors on devices; tensors on the CPU have no streams. The host
/// does not wait if the device's streams can wait for words in memory.
struct ShareOptions {
  Exact exact = Exact::no;
  /// Makes the opener's stream wait for all work that this stream holds now. A copy is made in this stream as well.
  std::optional<Stream> stream{};
};
Handle share(const Tensor& tensor, const ShareOptions& options);

/// Returns a tensor on the same memory for use in another stream: the memory is kept until that stream has done the
/// work that it holds when the last copy of the result is dropped. REQUIRES: the stream lives until then.
Tensor record_stream(const Tensor& tensor, Stream stream);

/// The ways to allocate segments, named as in torch.multiprocessing.
enum class Strategy : std::uint8_t {
  file_descriptor,  ///< anonymous memory that cannot leak: the default
  file_system,      ///< named files in shared_directory(), for users that need names
};
void set_strategy(Strategy strategy);
Strategy strategy() noexcept;

}  // namespace onecopy
ONECOPY_API_END
