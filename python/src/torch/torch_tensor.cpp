// SPDX-License-Identifier: Apache-2.0
// Looks at a tensor of torch once, and shares it.
#include <nanobind/stl/string.h>

#include <utility>
#include <vector>

#include "array/exports.h"
#include "binding/gil.h"
#include "binding/kept.h"
#include "core/throw_error.h"
#include "device/pinned_ranges.h"
#include "memory/dlpack_dtype.h"
#include "onecopy/share/pin.h"
#include "onecopy/share/share.h"
#include "onecopy/store/store.h"
#include "share/session.h"
#include "torch/storage_move.h"
#include "torch/torch_api.h"
#include "torch/torch_storages.h"

namespace onecopy::python::torch {

// ---- where a tensor lies

namespace {

/// Returns whether DLPack's code of the dtype also stands for torch's integers of fewer bits, such as int4.
bool is_int_of_bytes(DType dtype) noexcept { return dtype == DType::i8 || dtype == DType::u8; }

std::vector<std::int64_t> numbers(nb::handle tuple) {
  std::vector<std::int64_t> values;
  for (const nb::handle value : tuple) values.push_back(nb::cast<std::int64_t>(value));
  return values;
}

}  // namespace

bool is_loaded() { return TorchSymbols::get() != nullptr; }

bool is_tensor(PyObject* object) {
  const TorchSymbols* torch = TorchSymbols::get();
  return torch && torch->is_tensor(object);
}

bool is_any_tensor(PyObject* object) {
  const TorchSymbols* torch = TorchSymbols::get();
  return torch && PyObject_TypeCheck(object, torch->tensor_type) != 0;
}

std::optional<TorchTensor> TorchTensor::of(PyObject* object) {
  const TorchSymbols* const torch = TorchSymbols::get();
  if (!torch || !torch->is_tensor(object)) return std::nullopt;
  torch->require_names();
  return torch->placed(object);
}

std::optional<TorchTensor> TorchSymbols::placed(PyObject* tensor) const {
  auto found = table_ && table_->view_of_object ? placed_by_table(tensor) : std::nullopt;
  if (!found) found = placed_by_attributes(tensor);
  return found;
}

std::optional<TorchTensor> TorchSymbols::placed_by_table(PyObject* tensor) const {
  DLTensor dl;
  if (table_->view_of_object(tensor, &dl) != 0) {
    PyErr_Clear();  // sparse, quantized, meta, a dtype that DLPack does not have
    return std::nullopt;
  }
  // DLPack has one number for all devices of extensions; torch's attributes name them.
  if (dl.device.device_type != kDLCpu && dl.device.device_type != kDLCuda) return std::nullopt;
  const auto ndim = static_cast<std::size_t>(dl.ndim);
  try {
    const DType dtype = from_dl(dl.dtype);
    if (is_int_of_bytes(dtype) && !get(tensor, dtype_).is(dtypes_[static_cast<std::size_t>(dtype)]))
      return std::nullopt;
    return TorchTensor{this, tensor, Layout(dtype, std::span(dl.shape, ndim), std::span(dl.strides, ndim)),
                       from_dl(dl.device), static_cast<std::byte*>(dl.data) + dl.byte_offset};
  } catch (const Error&) {
    return std::nullopt;
  }
}

std::optional<TorchTensor> TorchSymbols::placed_by_attributes(nb::handle tensor) const {
  const auto device = device_of(tensor);
  if (!device || !tensor.attr("layout").is(strided_) || nb::cast<bool>(tensor.attr("is_nested")))
    return std::nullopt;
  const nb::object dtype = tensor.attr("dtype");
  for (auto i = static_cast<std::size_t>(kFirstDType); i < dtypes_.size(); ++i)
    if (dtypes_[i].is(dtype))
      return TorchTensor{
          this, tensor,
          Layout(static_cast<DType>(i), numbers(tensor.attr("shape")), numbers(tensor.attr("stride")())),
          *device, reinterpret_cast<std::byte*>(number(tensor.attr("data_ptr")()))};
  return std::nullopt;
}

// ---- its properties

namespace {

bool is_in_graph(nb::handle tensor) { return !nb::cast<bool>(tensor.attr("is_leaf")); }

[[noreturn]] void refuse_graph() {
  throw Error(ErrorCode::invalid_argument,
              "Cowardly refusing to serialize non-leaf tensor which requires_grad, since autograd does not "
              "support crossing process boundaries.  If you just want to transfer the data, call detach() "
              "on the tensor before serializing (e.g., putting it on the queue).");
}

}  // namespace

std::uint32_t TorchTensor::lazy_bits() const {
  const bool is_complex = layout.dtype() == DType::c64 || layout.dtype() == DType::c128;
  return (is_complex && torch->is_conj(object) ? kConj : 0u) | (torch->is_neg(object) ? kNeg : 0u);
}

std::optional<std::uint32_t> TorchTensor::flags() const {
  std::uint32_t flags = leaf_flags();
  if ((flags & kRequiresGrad) != 0) {
    if (is_in_graph(object)) refuse_graph();
    if (!nb::getattr(object, "_backward_hooks", nb::none()).is_none()) return std::nullopt;
  }
  return flags | lazy_bits();
}

std::uint32_t TorchTensor::leaf_flags() const {
  return kTorch | (torch->is_parameter(object.ptr()) ? kParameter : 0u) |
         (torch->requires_grad(object) ? kRequiresGrad : 0u);
}

nb::object TorchTensor::storage() const { return torch->storage_of(object); }

std::size_t TorchTensor::offset_bytes() const {
  return layout.numel() == 0 ? 0 : torch->offset(object) * size_of(layout.dtype());
}

// These three functions alone ask whether memory is of a version.
bool TorchTensor::is_of_version() const noexcept { return store::is_stored(data); }

bool is_of_version(nb::handle storage) { return store::is_stored(TorchSymbols::require().data(storage)); }

Tensor TorchTensor::in_version() const { return store::stored_tensor(data, layout); }

// ---- the block that it lies in

namespace {

/// Returns the block at the beginning of the range, if torch uses it or its memory was shared in place.
std::optional<Tensor> known_at(const TorchSymbols& torch, const Range& range, Device device) {
  auto block = storages().block_at(torch, range.begin);
  if (!block && device != kCpu) block = storages().adopted_at(range.begin, range.size, device);
  return block;
}

/// Returns the block of a storage that torch made on memory of onecopy through numpy or DLPack; it may cover only a
/// part.
std::optional<Tensor> lent_elsewhere(const Range& range, Device device) {
  return find_exported({range.begin, row_of_bytes(range.size), device, Access::read_write});
}

/// Shares memory of a device in place. The memory is kept while any process holds it.
Tensor adopted_block(Device device, const TorchSymbols& torch, nb::handle storage, const Range& range) {
  const TensorView view{range.begin, row_of_bytes(range.size), device, Access::read_write};
  Tensor bytes = adopt(view, keep_object(nb::borrow(storage)));
  storages().note_adopted(torch, storage, bytes);
  return bytes;
}

/// Returns what other processes open in place of the tensor: nearly always its own block. A draft of the store is
/// copied.
Tensor sent(Tensor&& tensor) {
  if (is_sendable(tensor)) [[likely]]
    return std::move(tensor);
  return without_gil([&] {
    Tensor other = sendable(tensor);
    return is_shareable(other) ? other : copy(tensor.view());
  });
}

/// Returns the block that a storage lies in, and shares it first if needed. The storage of a version stays where it is, since
/// update() shows other versions there, and is lent. `looked_at`: no block is known there.
Tensor block_of(const TorchSymbols& torch, nb::handle storage, Device device,
                std::optional<Range> looked_at = {}) {
  if (device == kCpu) storages().keep_in_place();
  const Range range = range_of(torch, storage);
  if (store::is_stored(range.begin))
    return sent(store::stored_tensor(range.begin, row_of_bytes(range.size)));
  if (range != looked_at)
    if (auto known = known_at(torch, range, device)) return *std::move(known);
  if (auto lent = lent_elsewhere(range, device)) return *std::move(lent);
  if (range.size == 0) return onecopy::empty(row_of_bytes(0), device);  // empty storages share nothing
  return device == kCpu ? moved_block(torch, storage, range) : adopted_block(device, torch, storage, range);
}

[[noreturn]] void refuse_view(Device device) {
  throw_error(ErrorCode::invalid_argument,
              "this is {}'s view of memory of the host, and stays in this process; share the tensor that "
              "it is a view of",
              device.str());
}

/// Returns another layout on the tensor's block, `offset` bytes after its element 0.
Tensor with_block_of(Tensor&& bytes, std::size_t offset, Layout&& layout, Device device) {
  std::byte* const data = bytes.as<std::byte>() + offset;
  const Access access = bytes.access();
  return {bytes.take_block(), data, std::move(layout), device, access};
}

}  // namespace

std::optional<FlaggedTensor> TorchTensor::share() && {
  auto found = std::move(*this).here();
  if (found) found->tensor = sent(std::move(found->tensor));
  return found;
}

std::optional<FlaggedTensor> TorchTensor::here() && {
  if (PinnedRanges::is_view(device, data)) refuse_view(device);
  const auto flags = this->flags();
  if (!flags) return std::nullopt;
  if (is_of_version()) return FlaggedTensor{in_version(), *flags};
  std::optional<Range> elements;
  if (layout.numel() != 0) {  // most tensors begin a block, so the address finds the block
    elements = Range{data, layout.extent_bytes()};
    if (auto block =
            known_at(*torch, *elements, device))  // the block's address may differ from torch's mapping
      return FlaggedTensor{with_block_of(*std::move(block), 0, std::move(layout), device), *flags};
  }
  if (device == kCpu && !torch->can_exchange() && (*flags & (kConj | kNeg)) == 0)
    if (auto moved = move_alone(*this)) return FlaggedTensor{*std::move(moved), *flags};
  Tensor bytes = block_of(*torch, storage(), device, elements);
  const std::size_t offset = offset_bytes();
  return FlaggedTensor{with_block_of(std::move(bytes), offset, std::move(layout), device), *flags};
}

std::optional<FlaggedTensor> share(PyObject* object) {
  auto tensor = TorchTensor::of(object);
  if (!tensor) return std::nullopt;
  return std::move(*tensor).share();
}

std::pair<Tensor, std::size_t> share_block_of(PyObject* storage) {
  const TorchSymbols& torch = TorchSymbols::require();
  const Tensor bytes = block_of(torch, storage, torch.device_of_storage(storage));
  const auto offset = static_cast<std::size_t>(bytes.as<std::byte>() - onecopy::storage(bytes).data());
  return {all_of_block(bytes), offset};
}

Tensor share_storage(PyObject* storage) {
  auto [block, offset] = share_block_of(storage);
  if (offset == 0 && block.nbytes() == TorchSymbols::require().nbytes(storage)) return std::move(block);
  throw Error(ErrorCode::unsupported,
              "this storage covers only a part of a block of onecopy, and only whole blocks can be shared "
              "as a storage; share the tensor with onecopy.share(), or send it through a queue");
}

bool is_shared(PyObject* storage) {
  const TorchSymbols* torch = TorchSymbols::get();
  const auto device = torch ? device_of(storage) : std::nullopt;
  if (!device) return false;
  try {
    const Range range = range_of(*torch, storage);
    return storages().block_at(*torch, range.begin) || lent_elsewhere(range, *device);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::unsupported) throw;
    return false;  // the storage has no memory
  }
}

bool is_private(PyObject* storage) {
  const TorchSymbols& torch = TorchSymbols::require();
  const Device device = torch.device_of_storage(storage);
  const Range range = range_of(torch, storage);
  if (range.size == 0 || PinnedRanges::is_view(device, range.begin) || is_of_version(storage)) return false;
  return !known_at(torch, range, device) && !lent_elsewhere(range, device);
}

std::optional<Tensor> find_shared(PyObject* tensor) {
  const TorchSymbols* torch = TorchSymbols::get();
  if (!torch || PyObject_TypeCheck(tensor, torch->tensor_type) == 0 || device_of(tensor) != kCpu) return {};
  try {
    const nb::object storage = torch->storage_of(tensor);
    return storages().block_at(*torch, range_of(*torch, storage).begin);
  } catch (const std::exception&) {
    PyErr_Clear();
    return {};  // the storage has no memory
  }
}

}  // namespace onecopy::python::torch
