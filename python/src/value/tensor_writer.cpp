// SPDX-License-Identifier: Apache-2.0
// Writes the tensors and arrays of a value.
#include <cstring>
#include <utility>

#include "array/source.h"
#include "binding/gil.h"
#include "onecopy/core/error.h"
#include "onecopy/share/share.h"
#include "share/session.h"
#include "value/object_writer.h"

namespace onecopy::python {

using torch::TorchTensor;

namespace {

constexpr int kHost = -1;
constexpr std::size_t kMaxInline = 4096;  ///< the maximum size in bytes of a tensor within the message

/// Returns a torch tensor whose elements lie one behind the other as they are. Empty for others.
std::optional<TorchTensor> row_major(PyObject* object) {
  auto tensor = TorchTensor::of(object);
  return tensor && tensor->is_row_major() ? std::move(tensor) : std::nullopt;
}

}  // namespace

bool ObjectWriter::write_tensor(PyObject* value, int depth) {
  const bool is_torch = torch::is_tensor(value);
  if (is_torch && options_.tensors == Tensors::are_copied) return write_copy(value, depth);
  if (is_torch) return is_again(value) || write_shared(value, depth);
  if (const Tensor* const ours = as_onecopy_tensor(value)) {
    if (is_again(value)) return true;
    if (options_.tensors == Tensors::are_copied) ++counts_.lent;
    return write_row(sendable(*ours), 0);
  }
  if (options_.tensors == Tensors::are_shared) return write_array(value, depth);
  if (PyByteArray_CheckExact(value) && is_large(static_cast<std::size_t>(PyByteArray_Size(value))) &&
      options_.reduce.is_valid())
    return write_large(value, {}, onecopy::value::kByteArrayRow);
  return write_other(value, depth);
}

/// Writes a large object as the next row, which is copied at the end.
bool ObjectWriter::write_large(PyObject* object, ByteSpan bytes, std::uint8_t flags) {
  if (is_again(object)) return true;
  rows_.push_back({message_.tensors.size(), nb::borrow(object), bytes});
  return write_row({}, flags);
}

bool ObjectWriter::write_row(const Tensor& tensor, std::uint32_t flags) {
  message_.tensors.push_back(tensor);
  out_.tensor(static_cast<std::uint8_t>(flags));
  return true;
}

bool ObjectWriter::write_shared(PyObject* tensor, int depth) {
  auto shared = torch::share(tensor);
  if (!shared) return write_other(tensor, depth);
  static_assert((torch::kKnownFlags | kNumpyFlag) <= UINT8_MAX && (torch::kKnownFlags & kNumpyFlag) == 0);
  note_sent(tensor);
  return write_row(shared->tensor, shared->flags);
}

bool ObjectWriter::write_array(PyObject* value, int depth) {
  auto array = SharedArray::of(value);
  if (!array) return write_other(value, depth);
  if (is_again(value)) return true;
  arrays_.emplace_back(message_.tensors.size(), *std::move(array));
  return write_row({}, kNumpyFlag);
}

bool ObjectWriter::write_copy(PyObject* tensor, int depth) {
  auto from = row_major(tensor);
  nb::object plain = nb::borrow(tensor);
  if (!from && !options_.reduce.is_valid()) {  // no form but that of a contiguous tensor
    plain = torch::contiguous(tensor);
    from = row_major(plain.ptr());
  }
  if (!from) return write_other(tensor, depth);
  if (from->device != kCpu) return write_card_copy(*from, depth);
  if (options_.receiver && target_of(options_.receiver->devices, kHost) != kHost)
    return write_other(tensor, depth);
  if (is_again(tensor)) return true;
  note_sent(tensor);
  const auto flags = static_cast<std::uint8_t>(from->leaf_flags());
  if (from->layout.nbytes() <= kMaxInline) {
    out_.inline_tensor(flags, from->layout, from->data);
    ++counts_.inlined;
    return true;
  }
  add_late_copy(*from, kCpu);
  out_.tensor(flags);
  return true;
}

/// Writes a copy of a tensor on a card. The copy is made on the target card if this process knows its number, so that
/// the receiver need not copy.
bool ObjectWriter::write_card_copy(const TorchTensor& from, int depth) {
  const int target = options_.receiver ? target_of(options_.receiver->devices, from.device.index) : kHost;
  if (from.device.type != DeviceType::cuda || from.layout.numel() == 0 || target < 0 || target > UINT8_MAX)
    return write_other(from.object.ptr(), depth);
  if (is_again(from.object.ptr())) return true;
  note_sent(from.object.ptr());
  Device home = from.device;
  if (options_.receiver->devices.numbers_agree) home.index = static_cast<std::int16_t>(target);
  add_late_copy(from, home);
  out_.card_tensor(static_cast<std::uint8_t>(from.leaf_flags()), static_cast<std::uint8_t>(target));
  return true;
}

void ObjectWriter::add_late_copy(const TorchTensor& from, Device home) {
  copies_.push_back({message_.tensors.size(), nb::borrow(from.object), from.layout, home});
  message_.tensors.emplace_back();
}

void ObjectWriter::make_copies() {
  for (const auto& [row, array] : arrays_) message_.tensors[row] = array.tensor();
  for (const LateCopy& copy : copies_) message_.tensors[copy.row] = made_copy(copy);
  for (const auto& [row, object, bytes] : rows_)
    message_.tensors[row] = bytes.empty() ? row_of_bytearray(object.ptr()) : row_of(bytes);
}

/// Makes the copy. Reads the tensor's layout again, since Python code may have resized the tensor.
Tensor ObjectWriter::made_copy(const LateCopy& late) {
  const auto from = row_major(late.tensor.ptr());
  if (!from || from->layout != late.layout)
    throw nb::type_error("a value cannot cross: a tensor of it has changed meanwhile");
  if (late.home != kCpu) {
    if (auto copy = torch::copy_on_card(*from, late.home)) return ++counts_.copied, *std::move(copy);
    throw Error(ErrorCode::unsupported, "a tensor of a card has no memory that other processes can have");
  }
  ++counts_.copied;
  Tensor copy = empty(from->layout);
  const auto fill = [&] { return std::memcpy(copy.data(), from->data, copy.nbytes()); };
  copy.nbytes() >= kLargeCopy ? without_gil(fill) : fill();
  return copy;
}

int target_of(const DeviceMap& devices, int here) {
  for (const auto& [from, to] : devices.cards)
    if (from == here) return to;
  return devices.is_automatic && devices.numbers_agree ? here : kHost;
}

}  // namespace onecopy::python
