// SPDX-License-Identifier: Apache-2.0
// Writes the tensors and arrays of a value.
#include <algorithm>
#include <cstring>
#include <utility>

#include "binding/gil.h"
#include "binding/kept.h"
#include "onecopy/core/error.h"
#include "onecopy/share/share.h"
#include "share/session.h"
#include "value/leaf.h"
#include "value/object_writer.h"

namespace onecopy::python {

using torch::TorchTensor;

namespace {

constexpr int kHost = -1;
constexpr std::size_t kMaxInline = 4096;  ///< the maximum size in bytes of a tensor within the message

/// Returns a contiguous tensor of the same values that is neither conjugated nor negated lazily, or the tensor itself if
/// it is not strided.
nb::object contiguous(PyObject* tensor) {
  nb::object given = nb::borrow(tensor);
  if (!given.attr("layout").is(nb::module_::import_("torch").attr("strided"))) return given;
  nb::object copy = given.attr("detach")();
  for (const char* const step : {"resolve_conj", "resolve_neg", "contiguous"}) copy = copy.attr(step)();
  return copy;
}

/// Releases copies that other processes no longer hold, without waiting for the next timer.
void take_back_copies() {
  if (Session* const session = Session::existing()) without_gil([&] { session->take_back(); });
  drain_decrefs();
}

Tensor with_room(const Layout& layout, Device home) {
  const std::size_t bytes = std::max(layout.nbytes(), Backend::kAsideRoom);
  const Tensor made = empty(Layout(DType::u8, {static_cast<std::int64_t>(bytes)}), home);
  return {made.block(), made.data(), layout, home, made.access()};
}

/// Returns whether the error means that a card is unreachable, full or missing.
bool is_no_room(ErrorCode code) {
  return code == ErrorCode::unsupported || code == ErrorCode::out_of_memory ||
         code == ErrorCode::out_of_mappings || code == ErrorCode::invalid_argument;
}

/// Copies a tensor to memory of the card `home`. Avoids the processors of the card if possible, since
/// a copy by them would wait until the card switches to this process.
Tensor written_to(Device home, const TorchTensor& from) {
  const Stream stream = torch::current_stream(from.device);
  return without_gil([&] {
    Tensor made = record_stream(use_on(with_room(from.layout, home), from.device), stream);
    const Transfer transfer{made.data(), from.device, from.data, from.device, made.nbytes()};
    if (home == from.device) backend(home.type).copy_aside(transfer, stream);
    else copy_bytes(transfer, stream);
    return made;
  });
}

/// Copies a tensor from its card to the card `home`. The tensor's own card makes the copy in its current stream. If
/// `home` is unreachable or full, the copy is made on the tensor's own card. Empty for a tensor that cannot be shared.
/// REQUIRES: from.is_row_major(), on a card, and not empty.
std::optional<Tensor> copy_on_card(const TorchTensor& from, Device home) {
  constexpr std::size_t kLarge = std::size_t{1} << 20;
  constexpr std::size_t kScarce = std::size_t{256} << 20;
  const std::size_t bytes = from.layout.nbytes();
  if (bytes >= kScarce) take_back_copies();
  try {
    Tensor made = written_to(home, from);
    if (bytes >= kLarge && bytes < kScarce) take_back_copies();  // while the card copies
    return made;
  } catch (const Error& error) {
    if (!is_no_room(error.code())) throw;
  }
  const nb::object copy = from.object.attr("detach")().attr("clone")();
  auto shared = leaf(copy).tensor(For::others);
  if (!shared) return std::nullopt;
  return std::move(shared->tensor);
}

}  // namespace

bool ObjectWriter::write_tensor(PyObject* value, int depth) {
  const bool is_copied = options_.tensors == Tensors::are_copied;
  if (is_copied && torch::is_tensor(value)) return write_copy(value, depth);
  if (is_tensor(value)) return is_again(value) || write_shared(value, depth);
  if (!is_copied) return write_array(value, depth);
  if (PyByteArray_CheckExact(value) && is_large(static_cast<std::size_t>(PyByteArray_Size(value))) &&
      options_.reduce.is_valid())
    return write_large(value, {}, onecopy::value::kByteArrayRow);
  return write_other(value, depth);
}

bool ObjectWriter::write_shared(PyObject* tensor, int depth) {
  auto shared = leaf(tensor).tensor(For::others);
  if (!shared) return write_other(tensor, depth);
  static_assert((torch::kKnownFlags | kNumpyFlag) <= UINT8_MAX && (torch::kKnownFlags & kNumpyFlag) == 0);
  ++counts_.lent;
  return write_row(std::move(shared->tensor), shared->flags);
}

bool ObjectWriter::write_array(PyObject* value, int depth) {
  auto array = SharedArray::of(value);
  if (!array) return write_other(value, depth);
  if (is_again(value)) return true;
  arrays_.emplace_back(message_.tensors.size(), *std::move(array));
  return write_row({}, kNumpyFlag);
}

bool ObjectWriter::write_copy(PyObject* tensor, int depth) {
  auto from = leaf(tensor).row_major();
  nb::object plain = nb::borrow(tensor);
  if (!from && !options_.reduce.is_valid()) {  // no form but that of a contiguous tensor
    plain = contiguous(tensor);
    from = leaf(plain).row_major();
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
  const auto from = leaf(late.tensor).row_major();
  if (!from || from->layout != late.layout)
    throw nb::type_error("a value cannot cross: a tensor of it has changed meanwhile");
  if (late.home != kCpu) {
    if (auto copy = copy_on_card(*from, late.home)) return ++counts_.copied, *std::move(copy);
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
