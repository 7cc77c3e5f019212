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

/// The bridge to PyTorch. It is never linked and never imported by us: torch is found in sys.modules
/// once a program has imported it.
///
/// A torch storage that lies in our memory is known here by the block's address. One block is one
/// storage object in this process, whether it was moved here or opened here.
/// Thread safety: all functions are called with the GIL held.
namespace onecopy::python::torch {

/// Properties of a torch tensor beside its elements. The numbers travel in messages.
enum Flags : std::uint32_t {
  kTorch = 1,
  kRequiresGrad = 2,
  kParameter = 4,  ///< torch.nn.Parameter
  kConj = 8,       ///< lazily conjugated
  kNeg = 16,       ///< lazily negated
};
inline constexpr std::uint32_t kKnownFlags = 31;

/// A torch tensor as ours, with its flags for messages.
struct FlaggedTensor {
  Tensor tensor;
  std::uint32_t flags = kTorch;
};

/// Whether this interpreter has imported torch, completely.
bool is_loaded();
/// Exactly torch.Tensor or torch.nn.Parameter: subclasses have content unknown to onecopy.
bool is_tensor(PyObject* object);
/// Whether it is an instance of torch.Tensor or of a subclass.
bool is_any_tensor(PyObject* object);

/// The device of a torch.Tensor or torch.UntypedStorage; empty for devices that onecopy lacks.
std::optional<Device> device_of(nb::handle object);

/// The tensor as ours. A storage of the CPU is moved into shared memory in place, unless it is there already: every
/// alias of it follows. Memory of a device is shared in place, and kept from torch's allocator until no process has
/// it any more. Empty for objects that are no plain strided tensors of these: the pickling reducers take care of
/// those. Raises torch's own error for tensors inside an autograd graph. REQUIRES: is_tensor(tensor).
std::optional<FlaggedTensor> share(PyObject* tensor);
/// A torch tensor on our memory. Throws bad_handle for flags that contradict the tensor.
nb::object open(const Tensor& tensor, std::uint32_t flags);
/// open() of each, in a third of the time where neighbours lie in one block. REQUIRES: flags for each, of share().
std::vector<nb::object> open_all(std::span<const Tensor> tensors, std::span<const std::uint32_t> flags);

/// A tensor in a piece of memory: its layout, and the bytes in front of it.
struct View {
  Layout layout;
  std::size_t offset;
};
/// Returns torch tensors on memory that torch does not know, a row of bytes. Each tensor keeps the memory. Imports torch.
std::vector<nb::object> views_of(const Tensor& memory, std::span<const View> views);

/// A tensor whose elements lie one behind the other.
struct Copyable {
  Layout layout;
  Device device;
  const std::byte* data;
};
/// Empty for other tensors, and for tensors with more content than their elements: conjugated lazily, for example.
std::optional<Copyable> copyable(PyObject* tensor);
/// A copy of a card's tensor in memory of the card `home`, made by the tensor's own card in the order of its current
/// stream. Where `home` is out of reach or full, in the tensor's own memory. Empty for tensors that cannot be shared.
/// REQUIRES: `from` is copyable(tensor), on a card, with elements.
std::optional<Tensor> copy_on_card(PyObject* tensor, const Copyable& from, Device home);
/// A new torch tensor with memory of torch's own. REQUIRES: as many bytes as the layout has.
nb::object copy_of(const Layout& layout, ByteSpan elements);

/// All of the block that the tensor lies in, a row of bytes.
Tensor all_of_block(const Tensor& tensor);
/// All of the block that a torch.UntypedStorage lies in, a row of bytes, and where in there the storage begins.
std::pair<Tensor, std::size_t> share_block_of(PyObject* storage);
/// share_block_of() for a storage that is a whole block. Throws unsupported for others.
Tensor share_storage(PyObject* storage);
nb::object open_storage(const Tensor& bytes);
/// Drops blocks of storages that torch moved itself and has freed: torch does not report that.
void collect();
/// torch's current device of that type; 0 while torch has not used such devices.
std::int16_t current_ordinal(DeviceType type);
/// torch's current stream of a device; the default stream while torch has not used such devices.
Stream current_stream(Device device);
/// The current stream of torch's current CUDA device while it is being captured; the default stream otherwise.
Stream captured_stream();
/// Keeps the memory of a torch tensor until the stream has come past the end of its storage here, too. False for
/// memory that is torch's own: its allocator has to be told.
bool record_stream(PyObject* tensor, Stream stream);

/// The block that a torch.Tensor of the CPU lies in, if that is memory of ours already; nothing is moved.
std::optional<Tensor> find_shared(PyObject* tensor);

/// Does the storage lie in memory of ours?
bool is_shared(PyObject* storage);

}  // namespace onecopy::python::torch
