// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "binding/args.h"
#include "binding/bytes.h"
#include "onecopy/core/error.h"
#include "torch/torch.h"
#include "value/value_format.h"
#include "value/values.h"

namespace onecopy::python {
namespace {

/// One call of decode_value().
class Decoder {
 public:
  Decoder(ByteSpan data, std::span<const Tensor> tensors, const TensorOpener& open, Tensors kind)
      : rest_(data), tensors_(tensors), open_(open), kind_(kind) {}

  nb::object read(int depth);
  void check_end() const {
    if (!rest_.empty()) refuse_value(fmt::format("{} bytes follow its value", rest_.size()));
    if (!tensors_.empty())
      refuse_value(fmt::format("nothing refers to {} of its tensors", tensors_.size()));
  }

 private:
  nb::object read_long(Tag tag, int depth);
  nb::object read_number(Tag tag);
  nb::object read_long_int();
  nb::object read_str(std::size_t size);
  nb::object read_bytes(std::size_t size);
  nb::object read_tuple(std::size_t count, int depth);
  nb::object read_list(std::size_t count, int depth);
  nb::object read_dict(std::size_t count, int depth);
  nb::object read_tensor();
  nb::object read_card_tensor();
  nb::object open_next(std::uint32_t flags);
  nb::object read_again();
  nb::object read_inline();

  ByteSpan take(std::size_t size) {
    if (rest_.size() < size) refuse_value("it is cut off");
    const ByteSpan taken = rest_.first(size);
    rest_ = rest_.subspan(size);
    return taken;
  }
  template <class T>
  T number() {
    return load<T>(take(sizeof(T)).data());
  }
  /// Nothing large is made for a wrong length. REQUIRES: every item takes `bytes` at least.
  void check_count(std::size_t count, std::size_t bytes, int depth) const {
    if (count > rest_.size() / bytes) refuse_value("a container is longer than the message");
    if (depth == kMostDeep) refuse_value("it is nested too deeply");
  }
  static nb::object made(PyObject* object) {
    if (!object) throw nb::python_error();
    return nb::steal(object);
  }
  nb::object numbered(nb::object object) {
    numbered_.push_back(object);
    return object;
  }

  ByteSpan rest_;
  std::span<const Tensor> tensors_;
  const TensorOpener& open_;
  const Tensors kind_;
  std::vector<nb::object> numbered_;  ///< none: a tuple that is not complete yet
};

nb::object Decoder::read(int depth) {
  const auto byte = number<std::uint8_t>();
  if (byte < kShortStr) return made(PyLong_FromLong(byte));
  if (byte < kShortTuple) return read_str(byte - kShortStr);
  if (byte < kShortList) return read_tuple(byte - kShortTuple, depth);
  if (byte < kShortDict) return read_list(byte - kShortList, depth);
  if (byte < kNone) return read_dict(byte - kShortDict, depth);
  return byte < kStr ? read_number(static_cast<Tag>(byte)) : read_long(static_cast<Tag>(byte), depth);
}

nb::object Decoder::read_number(Tag tag) {
  switch (tag) {
    case kNone: return nb::none();
    case kFalse: return nb::bool_(false);
    case kTrue: return nb::bool_(true);
    case kInt8: return made(PyLong_FromLong(number<std::int8_t>()));
    case kInt16: return made(PyLong_FromLong(number<std::int16_t>()));
    case kInt32: return made(PyLong_FromLong(number<std::int32_t>()));
    case kInt64: return made(PyLong_FromLongLong(number<std::int64_t>()));
    case kLongInt: return read_long_int();
    case kFloat: return made(PyFloat_FromDouble(number<double>()));
    default: {
      const auto [real, imaginary] = number<std::array<double, 2>>();
      return made(PyComplex_FromDoubles(real, imaginary));
    }
  }
}

nb::object Decoder::read_long(Tag tag, int depth) {
  switch (tag) {
    case kStr: return read_str(number<std::uint8_t>());
    case kLongStr: return numbered(read_str(number<std::uint32_t>()));
    case kBytes: return read_bytes(number<std::uint8_t>());
    case kLongBytes: return numbered(read_bytes(number<std::uint32_t>()));
    case kTuple: return read_tuple(number<std::uint32_t>(), depth);
    case kList: return read_list(number<std::uint32_t>(), depth);
    case kDict: return read_dict(number<std::uint32_t>(), depth);
    case kTensor: return read_tensor();
    case kInlineTensor: return numbered(read_inline());
    case kCardTensor: return read_card_tensor();
    case kAgain: return read_again();
    default: refuse_value(fmt::format("its byte {:#04x} means nothing", static_cast<unsigned>(tag)));
  }
}

nb::object Decoder::read_long_int() {
  const ByteSpan bytes = take(number<std::uint32_t>());
  return nb::handle(reinterpret_cast<PyObject*>(&PyLong_Type))
      .attr("from_bytes")(to_python(bytes), "little", nb::arg("signed") = true);
}

nb::object Decoder::read_str(std::size_t size) {
  const ByteSpan text = take(size);
  PyObject* const str = PyUnicode_DecodeUTF8(reinterpret_cast<const char*>(text.data()),
                                             static_cast<Py_ssize_t>(size), nullptr);
  if (str || !PyErr_ExceptionMatches(PyExc_UnicodeDecodeError)) return made(str);
  PyErr_Clear();
  refuse_value("a str is not UTF-8");
}

nb::object Decoder::read_bytes(std::size_t size) {
  const ByteSpan bytes = take(size);
  return made(PyBytes_FromStringAndSize(reinterpret_cast<const char*>(bytes.data()),
                                        static_cast<Py_ssize_t>(size)));
}

nb::object Decoder::read_tuple(std::size_t count, int depth) {
  check_count(count, 1, depth);
  const std::size_t number = numbered_.size();
  numbered_.emplace_back();
  nb::object tuple = made(PyTuple_New(static_cast<Py_ssize_t>(count)));
  for (std::size_t i = 0; i < count; ++i)
    NB_TUPLE_SET_ITEM(tuple.ptr(), static_cast<Py_ssize_t>(i), read(depth + 1).release().ptr());
  return numbered_[number] = std::move(tuple);
}

nb::object Decoder::read_list(std::size_t count, int depth) {
  check_count(count, 1, depth);
  // It grows value by value: it can be in itself, and other threads must always see a whole list.
  nb::object list = numbered(made(PyList_New(0)));
  for (std::size_t i = 0; i < count; ++i)
    if (PyList_Append(list.ptr(), read(depth + 1).ptr()) < 0) throw nb::python_error();
  return list;
}

nb::object Decoder::read_dict(std::size_t count, int depth) {
  check_count(count, 2, depth);
  nb::object dict = numbered(made(PyDict_New()));
  for (std::size_t i = 0; i < count; ++i) {
    const nb::object key = read(depth + 1);
    const nb::object value = read(depth + 1);
    if (PyDict_SetItem(dict.ptr(), key.ptr(), value.ptr()) == 0) continue;
    if (!PyErr_ExceptionMatches(PyExc_TypeError)) throw nb::python_error();
    PyErr_Clear();
    refuse_value("a key of a dict is a list or dict");
  }
  return dict;
}

nb::object Decoder::read_tensor() { return numbered(open_next(number<std::uint8_t>())); }

nb::object Decoder::read_card_tensor() {
  if (kind_ != Tensors::are_copied) refuse_value("it has a tensor for a card, as only calls do");
  const std::uint32_t flags = number<std::uint8_t>();
  return numbered(open_next(flags | (number<std::uint8_t>() + 1U) << 8));
}

nb::object Decoder::open_next(std::uint32_t flags) {
  if (tensors_.empty()) refuse_value("it has fewer tensors than it refers to");
  const Tensor& tensor = tensors_.front();
  tensors_ = tensors_.subspan(1);
  return open_(tensor, flags);
}

/// Layout checks dtype and shape, and take() that the elements are there.
nb::object Decoder::read_inline() {
  if (kind_ != Tensors::are_copied) refuse_value("it has the elements of a tensor, as only calls do");
  const auto dtype = number<std::uint8_t>();
  const auto ndim = number<std::uint8_t>();
  if (dtype < static_cast<std::uint8_t>(kFirstDType) || dtype > static_cast<std::uint8_t>(kLastDType))
    refuse_value("a tensor has an unknown dtype");
  const ByteSpan sizes = take(ndim * sizeof(std::int64_t));
  std::vector<std::int64_t> shape(ndim);
  if (ndim != 0) std::memcpy(shape.data(), sizes.data(), sizes.size());
  Layout layout;
  try {
    layout = Layout(static_cast<DType>(dtype), shape);
  } catch (const Error&) {
    refuse_value("a tensor has an impossible shape");
  }
  if (!torch::is_loaded()) import_package("torch", "a torch.Tensor of another process");
  return torch::copy_of(layout, take(layout.nbytes()));
}

nb::object Decoder::read_again() {
  const auto before = number<std::uint32_t>();
  if (before >= numbered_.size() || !numbered_[before].is_valid())
    refuse_value("it refers to an object that is not there");
  return numbered_[before];
}

}  // namespace

nb::object decode_value(ByteSpan data, std::span<const Tensor> tensors, const TensorOpener& open,
                        Tensors kind) {
  Decoder decoder(data, tensors, open, kind);
  nb::object value = decoder.read(0);
  decoder.check_end();
  return value;
}

}  // namespace onecopy::python
