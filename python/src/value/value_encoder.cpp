// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "array/numpy.h"
#include "binding/gil.h"
#include "onecopy/share/share.h"
#include "torch/torch.h"
#include "value/seen_objects.h"
#include "value/value_format.h"
#include "value/values.h"

namespace onecopy::python {
namespace {

constexpr int kHost = -1;

/// kHost also for a card that has no target.
int target_of(const DeviceMap& devices, int here) {
  for (const auto& [from, to] : devices.cards)
    if (from == here) return to;
  return devices.is_automatic && devices.numbers_agree ? here : kHost;
}

/// One call of encode_value().
class Encoder {
 public:
  Encoder(Message& message, Tensors tensors, const Receiver& receiver)
      : message_(message), tensors_(tensors), receiver_(receiver) {}

  bool write_all(PyObject* value) {
    if (!write(value, 0) || is_cyclic_) return false;
    for (const auto& [row, array] : arrays_) message_.tensors[row] = array.tensor();
    return true;
  }
  const TensorCounts& counts() const noexcept { return counts_; }

 private:
  /// REQUIRES: the caller keeps the value meanwhile.
  bool write(PyObject* value, int depth);
  bool write_simple(PyObject* value, PyTypeObject* type, bool& known);
  bool write_int(PyObject* value);
  bool write_long_int(PyObject* value);
  bool write_float(double value);
  bool write_str(PyObject* value);
  bool write_bytes(PyObject* value);
  bool write_tuple(PyObject* value, int depth);
  bool write_list(PyObject* value, int depth);
  bool write_dict(PyObject* value, int depth);
  bool write_tensor(PyObject* value);
  bool write_array(PyObject* value);
  bool write_copy(PyObject* value);
  bool write_marked(PyObject* value);
  bool write_shared(PyObject* tensor);
  bool write_card_copy(PyObject* value, const torch::Copyable& from);
  bool write_inline(const torch::Copyable& from);
  bool write_text(PyObject* object, const char* text, std::size_t size, Tag small, Tag large);

  /// Numbers the object. Returns true if it has been written before; then its reference has been written, too.
  bool is_again(PyObject* object);
  /// Around the items of a list or dict: a value of a call is in none of its own items, on any of its ways.
  void open_if_call(std::uint32_t number) {
    if (tensors_ == Tensors::are_copied) open_.push_back(number);
  }
  void close_if_call() {
    if (tensors_ == Tensors::are_copied) open_.pop_back();
  }
  void write_count(Tag small, std::size_t most, Tag large, std::size_t count);
  template <class T>
  bool write_number(Tag tag, T value) {
    const std::size_t at = message_.data.size();
    message_.data.resize(at + 1 + sizeof value);
    message_.data[at] = static_cast<std::byte>(tag);
    store(message_.data.data() + at + 1, value);
    return true;
  }
  void write_byte(std::size_t byte) { message_.data.push_back(static_cast<std::byte>(byte)); }
  void append(const char* from, std::size_t size) {
    const auto* bytes = reinterpret_cast<const std::byte*>(from);
    message_.data.insert(message_.data.end(), bytes, bytes + size);
  }

  Message& message_;
  const Tensors tensors_;
  const Receiver& receiver_;
  std::vector<std::pair<std::size_t, SharedArray>>
      arrays_;  ///< copied, by their rows, if all can be written
  SeenObjects seen_;
  std::uint32_t numbered_ = 0;
  TensorCounts counts_;
  std::vector<std::uint32_t>
      open_;                ///< numbers of tuples, whose beginning no reader refers to; of all in calls
  bool is_cyclic_ = false;  ///< an object refers to one of those that it is in
};

/// Keeps an object that a container may lose while another thread runs.
class Hold {
 public:
  explicit Hold(PyObject* object) : object_(object) { Py_INCREF(object); }
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;
  ~Hold() { Py_DECREF(object_); }

 private:
  PyObject* object_;
};

bool Encoder::write(PyObject* value, int depth) {
  PyTypeObject* const type = Py_TYPE(value);
  bool known = true;
  const bool done = write_simple(value, type, known);
  if (known) return done;
  if (depth == kMostDeep) return false;
  if (type == &PyTuple_Type) return write_tuple(value, depth);
  if (type == &PyList_Type) return write_list(value, depth);
  if (type == &PyDict_Type) return write_dict(value, depth);
  return write_tensor(value);
}

bool Encoder::write_simple(PyObject* value, PyTypeObject* type, bool& known) {
  if (type == &PyLong_Type) return write_int(value);
  if (type == &PyUnicode_Type) return write_str(value);
  if (type == &PyFloat_Type) return write_float(PyFloat_AsDouble(value));
  if (type == &PyBytes_Type) return write_bytes(value);
  if (type == &PyComplex_Type)
    return write_number(kComplex, std::array{PyComplex_RealAsDouble(value), PyComplex_ImagAsDouble(value)});
  known = value == Py_None || type == &PyBool_Type;
  if (known) write_byte(value == Py_None ? kNone : value == Py_True ? kTrue : kFalse);
  return known;
}

bool Encoder::write_int(PyObject* value) {
  int overflow = 0;
  const long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
  if (overflow != 0) return write_long_int(value);
  if (number >= 0 && number < 128) {
    write_byte(static_cast<std::size_t>(number));
    return true;
  }
  if (std::in_range<std::int8_t>(number)) return write_number(kInt8, static_cast<std::int8_t>(number));
  if (std::in_range<std::int16_t>(number)) return write_number(kInt16, static_cast<std::int16_t>(number));
  if (std::in_range<std::int32_t>(number)) return write_number(kInt32, static_cast<std::int32_t>(number));
  return write_number(kInt64, static_cast<std::int64_t>(number));
}

bool Encoder::write_long_int(PyObject* value) {
  const nb::handle number(value);
  const auto bits = nb::cast<std::size_t>(number.attr("bit_length")());
  const auto bytes =
      nb::borrow<nb::bytes>(number.attr("to_bytes")(bits / 8 + 1, "little", nb::arg("signed") = true));
  if (bytes.size() > UINT32_MAX) return false;
  write_number(kLongInt, static_cast<std::uint32_t>(bytes.size()));
  append(bytes.c_str(), bytes.size());
  return true;
}

bool Encoder::write_float(double value) { return write_number(kFloat, value); }

bool Encoder::write_str(PyObject* value) {
  Py_ssize_t size = 0;
  const char* text = PyUnicode_AsUTF8AndSize(value, &size);
  if (!text) {  // lone surrogates
    PyErr_Clear();
    return false;
  }
  const auto length = static_cast<std::size_t>(size);
  if (length > 31) return write_text(value, text, length, kStr, kLongStr);
  write_byte(kShortStr | length);
  append(text, length);
  return true;
}

bool Encoder::write_bytes(PyObject* value) {
  return write_text(value, PyBytes_AsString(value), static_cast<std::size_t>(Py_SIZE(value)), kBytes,
                    kLongBytes);
}

bool Encoder::write_text(PyObject* object, const char* text, std::size_t size, Tag small, Tag large) {
  if (size > UINT32_MAX) return false;
  if (size > UINT8_MAX) {
    if (is_again(object)) return true;
    write_number(large, static_cast<std::uint32_t>(size));
  } else {
    write_number(small, static_cast<std::uint8_t>(size));
  }
  append(text, size);
  return true;
}

bool Encoder::write_tuple(PyObject* value, int depth) {
  const std::uint32_t number = numbered_;
  if (is_again(value)) return true;
  const Py_ssize_t count = NB_TUPLE_GET_SIZE(value);
  write_count(kShortTuple, 15, kTuple, static_cast<std::size_t>(count));
  open_.push_back(number);
  for (Py_ssize_t i = 0; i < count; ++i)
    if (!write(NB_TUPLE_GET_ITEM(value, i), depth + 1)) return false;
  open_.pop_back();
  return true;
}

bool Encoder::write_list(PyObject* value, int depth) {
  const std::uint32_t number = numbered_;
  if (is_again(value)) return true;
  open_if_call(number);
  const Py_ssize_t count = NB_LIST_GET_SIZE(value);
  write_count(kShortList, 7, kList, static_cast<std::size_t>(count));
  for (Py_ssize_t i = 0; i < count && i < NB_LIST_GET_SIZE(value); ++i) {
    PyObject* const item = NB_LIST_GET_ITEM(value, i);
    const Hold hold(item);
    if (!write(item, depth + 1)) return false;
  }
  close_if_call();
  return NB_LIST_GET_SIZE(value) == count;  // another thread's change while a tensor was moved
}

bool Encoder::write_dict(PyObject* value, int depth) {
  const std::uint32_t number = numbered_;
  if (is_again(value)) return true;
  open_if_call(number);
  const Py_ssize_t count = NB_DICT_GET_SIZE(value);
  write_count(kShortDict, 7, kDict, static_cast<std::size_t>(count));
  PyObject *key, *item;
  Py_ssize_t position = 0, written = 0;
  for (; written < count && PyDict_Next(value, &position, &key, &item); ++written) {
    const Hold hold_key(key), hold_item(item);
    if (!write(key, depth + 1) || !write(item, depth + 1)) return false;
  }
  close_if_call();
  return written == count && NB_DICT_GET_SIZE(value) == count;
}

/// Larger ones are copied once, into memory that the reader gets.
bool Encoder::write_copy(PyObject* value) {
  constexpr std::size_t kMostInline = 4096;
  if (!torch::is_tensor(value)) return write_marked(value);
  const auto from = torch::copyable(value);
  if (!from) return false;
  if (from->device != kCpu) return write_card_copy(value, *from);
  if (target_of(receiver_.devices, kHost) != kHost) return false;
  if (is_again(value)) return true;
  if (from->layout.nbytes() <= kMostInline) return write_inline(*from);
  Tensor copy = empty(from->layout);
  const auto fill = [&] { return std::memcpy(copy.data(), from->data, copy.nbytes()); };
  copy.nbytes() >= kLargeCopy ? without_gil(fill) : fill();
  message_.tensors.push_back(std::move(copy));
  return write_number(kTensor, static_cast<std::uint8_t>(torch::kTorch));
}

/// A row-major tensor of the CPU that is lent, and no part of a graph of autograd.
bool Encoder::write_marked(PyObject* value) {
  if (!receiver_.marked || Py_TYPE(value) != receiver_.marked) return false;
  const nb::handle marked(value);
  if (PyUnicode_CompareWithASCIIString(nb::object(marked.attr("mode")).ptr(), "borrow") != 0) return false;
  const nb::object tensor = marked.attr("tensor");
  const auto plain = torch::copyable(tensor.ptr());
  if (!plain || plain->device != kCpu || nb::cast<bool>(tensor.attr("requires_grad"))) return false;
  if (is_again(value)) return true;
  ++counts_.lent;
  return write_shared(tensor.ptr());
}

/// On the card that it is for, if that one's number here is known: then its receiver has nothing to copy.
bool Encoder::write_card_copy(PyObject* value, const torch::Copyable& from) {
  const int target = target_of(receiver_.devices, from.device.index);
  if (from.device.type != DeviceType::cuda || from.layout.numel() == 0) return false;
  if (target < 0 || target > UINT8_MAX) return false;
  if (is_again(value)) return true;
  Device home = from.device;
  if (receiver_.devices.numbers_agree) home.index = static_cast<std::int16_t>(target);
  auto copy = torch::copy_on_card(value, from, home);
  if (!copy) return false;
  message_.tensors.push_back(*std::move(copy));
  write_number(kCardTensor, static_cast<std::uint8_t>(torch::kTorch));
  write_byte(static_cast<std::size_t>(target));
  return true;
}

bool Encoder::write_inline(const torch::Copyable& from) {
  write_byte(kInlineTensor);
  write_byte(static_cast<std::size_t>(from.layout.dtype()));
  write_byte(from.layout.ndim());
  for (const std::int64_t size : from.layout.shape())
    append(reinterpret_cast<const char*>(&size), sizeof size);
  append(reinterpret_cast<const char*>(from.data), from.layout.nbytes());
  ++counts_.inlined;
  return true;
}

bool Encoder::write_tensor(PyObject* value) {
  if (tensors_ == Tensors::are_copied) return write_copy(value);
  const bool is_torch = torch::is_tensor(value);
  const Tensor* const ours = is_torch ? nullptr : as_onecopy_tensor(value);
  if (!is_torch && !ours) return write_array(value);
  if (is_again(value)) return true;
  if (is_torch) return write_shared(value);
  message_.tensors.push_back(*ours);
  return write_number(kTensor, std::uint8_t{0});
}

bool Encoder::write_shared(PyObject* tensor) {
  auto shared = torch::share(tensor);
  if (!shared) return false;
  message_.tensors.push_back(std::move(shared->tensor));
  static_assert((torch::kKnownFlags | kNumpyFlag) <= UINT8_MAX && (torch::kKnownFlags & kNumpyFlag) == 0);
  return write_number(kTensor, static_cast<std::uint8_t>(shared->flags));
}

bool Encoder::write_array(PyObject* value) {
  auto array = SharedArray::of(value);
  if (!array) return false;
  if (is_again(value)) return true;
  arrays_.emplace_back(message_.tensors.size(), *std::move(array));
  message_.tensors.emplace_back();
  return write_number(kTensor, static_cast<std::uint8_t>(kNumpyFlag));
}

bool Encoder::is_again(PyObject* object) {
  const std::uint32_t number = numbered_++;
  if (Py_REFCNT(object) == 1) return false;  // no other place has it
  const std::uint32_t before = seen_.find_or_add(object, number);
  if (before == SeenObjects::kNew) return false;
  --numbered_;
  is_cyclic_ = is_cyclic_ || std::find(open_.begin(), open_.end(), before) != open_.end();
  return write_number(kAgain, before);
}

void Encoder::write_count(Tag small, std::size_t most, Tag large, std::size_t count) {
  if (count <= most) write_byte(small | count);
  else write_number(large, static_cast<std::uint32_t>(count));
}

}  // namespace

bool encode_value(PyObject* value, Message& message, Tensors tensors, TensorCounts* counts,
                  const Receiver& receiver) {
  Encoder encoder(message, tensors, receiver);
  const bool is_plain = encoder.write_all(value);
  if (counts) *counts = encoder.counts();
  return is_plain;
}

}  // namespace onecopy::python
