// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "binding/module.h"
#include "device/backend.h"
#include "onecopy/core/bytes.h"
#include "onecopy/memory/tensor.h"

/// The bridge to PyTorch. onecopy neither links nor imports torch: it finds torch in sys.modules once the program has
/// imported it.
///
/// A torch storage in memory of onecopy is found by the address of its block. A block has one storage object in this
/// process, whether the storage was moved into the block or the block was opened.
/// Thread safety: all functions are called with the GIL held.
namespace onecopy::python::torch {

/// Properties of a torch tensor besides its elements. Messages contain these numbers.
enum Flags : std::uint32_t {
  kTorch = 1,
  kRequiresGrad = 2,
  kParameter = 4,  ///< torch.nn.Parameter
  kConj = 8,       ///< lazily conjugated
  kNeg = 16,       ///< lazily negated
};
inline constexpr std::uint32_t kKnownFlags = 31;

/// A torch tensor as a Tensor, with its flags for messages.
struct FlaggedTensor {
  Tensor tensor;
  std::uint32_t flags = kTorch;
};

class TorchSymbols;

/// A torch.Tensor or torch.nn.Parameter on memory that onecopy can share, looked at once: where its elements lie. Its
/// flags and its storage are read when they are asked for. Valid until other code of Python runs, which may move or
/// resize the tensor.
struct TorchTensor {
  /// Returns the tensor. Empty for other objects, subclasses included, which may have more content, and for a tensor
  /// that is not strided or whose dtype or device onecopy does not support.
  static std::optional<TorchTensor> of(PyObject* object);

  const TorchSymbols* torch;
  nb::handle object;
  Layout layout;
  Device device;
  std::byte* data;  ///< the first element; unspecified if there are no elements

  /// Returns the flags. Empty for a tensor with hooks, which flags cannot express. Throws torch's own error for a tensor
  /// inside an autograd graph.
  std::optional<std::uint32_t> flags() const;
  /// Returns the flags of a copy of the tensor, which is a leaf: kTorch, kRequiresGrad and kParameter.
  std::uint32_t leaf_flags() const;
  /// Returns kConj and kNeg of a tensor that is lazily conjugated or negated; 0 for others.
  std::uint32_t lazy_bits() const;
  /// Returns whether the elements lie one behind the other as they are.
  bool is_row_major() const { return layout.is_contiguous() && lazy_bits() == 0; }
  /// Returns whether the elements lie in a version of a store.
  bool is_of_version() const noexcept;
  /// Returns the tensor in its version; an empty one if it lies in none.
  Tensor in_version() const;
  nb::object storage() const;
  /// Returns the offset of the first element in the storage.
  std::size_t offset_bytes() const;

  /// Shares the tensor. A storage on the CPU moves into shared memory in place, with all tensors on it, unless it is
  /// there already. Memory of a device is shared in place, and torch's allocator cannot reuse it until no process holds
  /// it. Empty as flags(), which throws, too.
  std::optional<FlaggedTensor> share() &&;
  /// Shares the tensor as share(), but returns the memory that this process reads, which others may not be able to open:
  /// of a stored version, or with pages of this process's own.
  std::optional<FlaggedTensor> here() &&;
};
/// Returns TorchTensor::of(object).share(). Empty also for other objects.
std::optional<FlaggedTensor> share(PyObject* object);

/// Returns whether this interpreter has completely imported torch.
bool is_loaded();
/// Returns whether the object is exactly a torch.Tensor or torch.nn.Parameter. Subclasses may have more content.
bool is_tensor(PyObject* object);
/// Returns whether the object is an instance of torch.Tensor or of a subclass.
bool is_any_tensor(PyObject* object);

/// Returns the device of a torch.Tensor or torch.UntypedStorage; empty for devices that onecopy does not support.
std::optional<Device> device_of(nb::handle object);

/// A guard: while it lives, its thread shares tensors because the user called share(), and not for a message.
class UserShares {
 public:
  UserShares() noexcept { ++depth_; }
  ~UserShares() { --depth_; }
  UserShares& operator=(UserShares&&) = delete;
  static bool here() noexcept { return depth_ != 0; }

 private:
  inline static thread_local int depth_ = 0;
};

/// Returns a torch tensor on the tensor's memory. Throws bad_handle for flags that contradict the tensor.
nb::object open(const Tensor& tensor, std::uint32_t flags);
/// Returns open() of each tensor, in a third of the time if neighbours lie in one block. REQUIRES: flags for each
/// tensor.
std::vector<nb::object> open_all(std::span<const Tensor> tensors, std::span<const std::uint32_t> flags);

/// A tensor in a piece of memory: its layout, and its offset in bytes.
struct View {
  Layout layout;
  std::size_t offset;
};
/// Returns torch tensors on memory that torch does not know, a row of bytes. Each tensor keeps the memory. Imports
/// torch.
std::vector<nb::object> views_of(const Tensor& memory, std::span<const View> views);

/// Returns a new torch tensor in memory of torch's own. Throws bad_handle for flags that contradict the tensor. REQUIRES:
/// as many bytes as the layout has.
nb::object copy_of(const Layout& layout, ByteSpan elements, std::uint32_t flags);
/// Returns the tensor with kRequiresGrad and kParameter as in the flags. REQUIRES: the tensor has no graph.
nb::object as_leaf(nb::object tensor, std::uint32_t flags);

/// Returns the whole block that the tensor lies in, as a row of bytes.
Tensor all_of_block(const Tensor& tensor);
/// Shares a torch.UntypedStorage. Returns the whole block that it lies in, as a row of bytes, and its offset in the
/// block.
std::pair<Tensor, std::size_t> share_block_of(PyObject* storage);
/// Returns share_block_of() for a storage that fills its block. Throws unsupported for others.
Tensor share_storage(PyObject* storage);
nb::object open_storage(const Tensor& bytes);
/// Releases the blocks of storages that torch has moved itself and freed since, which torch does not report.
void collect();
/// Returns torch's current device of this type, or 0 if torch has not used devices of this type.
std::int16_t current_ordinal(DeviceType type);
/// Returns torch's current stream of a device, or the default stream if torch has not used devices of this type.
Stream current_stream(Device device);
/// Returns the current stream of torch's current CUDA device if it is being captured, or else the default stream.
Stream captured_stream();
/// Keeps the memory of a torch tensor, once its storage is released, until this stream has finished its work, too.
/// Returns false for memory of torch's own, which must be recorded with torch's allocator.
bool record_stream(PyObject* tensor, Stream stream);

/// Returns the block that a torch.Tensor on the CPU lies in, if it lies in memory of onecopy already. Moves nothing.
std::optional<Tensor> find_shared(PyObject* tensor);

/// Returns whether the storage lies in a version of a store.
bool is_of_version(nb::handle storage);
/// Returns whether the storage lies in memory of onecopy.
bool is_shared(PyObject* storage);
/// Returns whether the storage has memory that onecopy did not make and never shared.
bool is_private(PyObject* storage);

}  // namespace onecopy::python::torch
