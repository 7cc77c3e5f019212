// SPDX-License-Identifier: Apache-2.0
#include "values.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "onecopy/core/error.h"
#include "torch.h"

namespace onecopy::python {
namespace {

constexpr int kMostDeep = 32;

/// What a value begins with. The short forms have a number in their low bits.
enum Tag : std::uint8_t {
  kSmallInt = 0x00,    ///< 0 to 127
  kShortStr = 0x80,    ///< 0 to 31 bytes
  kShortTuple = 0xa0,  ///< 0 to 15 values
  kShortList = 0xb0,   ///< 0 to 7 values
  kShortDict = 0xb8,   ///< 0 to 7 pairs
  kNone = 0xc0,
  kFalse = 0xc1,
  kTrue = 0xc2,
  kInt8 = 0xc3,
  kInt16 = 0xc4,
  kInt32 = 0xc5,
  kInt64 = 0xc6,
  kLongInt = 0xc7,
  kFloat = 0xc8,
  kComplex = 0xc9,
  kStr = 0xca,      ///< u8 length
  kLongStr = 0xcb,  ///< u32 length, numbered
  kBytes = 0xcc,
  kLongBytes = 0xcd,
  kTuple = 0xce,
  kList = 0xcf,
  kDict = 0xd0,
  kTensor = 0xd1,
  kAgain = 0xd2,  ///< u32 number of a tensor, container, long str or bytes before it
};

/// The numbers of the objects that may occur again. Holds them, so that no address means two of them.
class Seen {
 public:
  Seen() = default;
  Seen(const Seen&) = delete;
  Seen& operator=(const Seen&) = delete;
  ~Seen() {
    for (const Entry& entry : entries_) Py_XDECREF(entry.object);
  }

  /// The object's number, or kNew after it was given `number`.
  std::uint32_t find_or_add(PyObject* object, std::uint32_t number) {
    if (2 * (used_ + 1) > entries_.size()) grow();
    Entry& entry = place(object);
    if (entry.object) return entry.number;
    Py_INCREF(object);
    entry = {object, number};
    ++used_;
    return kNew;
  }
  static constexpr std::uint32_t kNew = ~0U;

 private:
  struct Entry {
    PyObject* object = nullptr;
    std::uint32_t number = 0;
  };

  Entry& place(const PyObject* object) noexcept {
    const std::size_t mask = entries_.size() - 1;
    std::size_t at = (reinterpret_cast<std::uintptr_t>(object) >> 4) * 0x9e3779b97f4a7c15ULL >> 32;
    while (entries_[at & mask].object && entries_[at & mask].object != object) ++at;
    return entries_[at & mask];
  }

  void grow() {
    std::vector<Entry> old(entries_.empty() ? 16 : 2 * entries_.size());
    old.swap(entries_);
    for (const Entry& entry : old)
      if (entry.object) place(entry.object) = entry;
  }

  std::vector<Entry> entries_;  ///< a power of two, open addressing
  std::size_t used_ = 0;
};

/// One call of encode_value().
class Encoder {
 public:
  explicit Encoder(Message& message) : message_(message) {}

  bool write_all(PyObject* value) { return write(value, 0) && !is_cyclic_; }

 private:
  /// REQUIRES: somebody keeps the value meanwhile.
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
  bool write_text(PyObject* object, const char* text, std::size_t size, Tag small, Tag large);

  /// Numbers the object. True when it has been written before; then so is the reference to it.
  bool is_again(PyObject* object);
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
  Seen seen_;
  std::uint32_t numbered_ = 0;
  std::vector<std::uint32_t> open_tuples_;  ///< numbers; a reader cannot refer to a tuple's beginning
  bool is_cyclic_ = false;                  ///< something refers to a tuple that it is in
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
  if (type == &PyFloat_Type) return write_float(PyFloat_AS_DOUBLE(value));
  if (type == &PyBytes_Type) return write_bytes(value);
  if (type == &PyComplex_Type) return write_number(kComplex, PyComplex_AsCComplex(value));
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
  return write_text(value, PyBytes_AS_STRING(value), static_cast<std::size_t>(PyBytes_GET_SIZE(value)),
                    kBytes, kLongBytes);
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
  const Py_ssize_t count = PyTuple_GET_SIZE(value);
  write_count(kShortTuple, 15, kTuple, static_cast<std::size_t>(count));
  open_tuples_.push_back(number);
  for (Py_ssize_t i = 0; i < count; ++i)
    if (!write(PyTuple_GET_ITEM(value, i), depth + 1)) return false;
  open_tuples_.pop_back();
  return true;
}

bool Encoder::write_list(PyObject* value, int depth) {
  if (is_again(value)) return true;
  const Py_ssize_t count = PyList_GET_SIZE(value);
  write_count(kShortList, 7, kList, static_cast<std::size_t>(count));
  for (Py_ssize_t i = 0; i < count && i < PyList_GET_SIZE(value); ++i) {
    PyObject* const item = PyList_GET_ITEM(value, i);
    const Hold hold(item);
    if (!write(item, depth + 1)) return false;
  }
  return PyList_GET_SIZE(value) == count;  // another thread's change while a tensor was moved
}

bool Encoder::write_dict(PyObject* value, int depth) {
  if (is_again(value)) return true;
  const Py_ssize_t count = PyDict_GET_SIZE(value);
  write_count(kShortDict, 7, kDict, static_cast<std::size_t>(count));
  PyObject *key, *item;
  Py_ssize_t position = 0, written = 0;
  for (; written < count && PyDict_Next(value, &position, &key, &item); ++written) {
    const Hold hold_key(key), hold_item(item);
    if (!write(key, depth + 1) || !write(item, depth + 1)) return false;
  }
  return written == count && PyDict_GET_SIZE(value) == count;
}

bool Encoder::write_tensor(PyObject* value) {
  const bool is_torch = torch::is_tensor(value);
  const Tensor* const ours = is_torch ? nullptr : as_onecopy_tensor(value);
  if (!is_torch && !ours) return false;
  if (is_again(value)) return true;
  std::uint32_t flags = 0;
  if (is_torch) {
    auto shared = torch::share(value);
    if (!shared) return false;
    flags = shared->flags;
    message_.tensors.push_back(std::move(shared->tensor));
  } else {
    message_.tensors.push_back(*ours);
  }
  static_assert(torch::kKnownFlags <= UINT8_MAX);
  return write_number(kTensor, static_cast<std::uint8_t>(flags));
}

bool Encoder::is_again(PyObject* object) {
  const std::uint32_t number = numbered_++;
  if (Py_REFCNT(object) == 1) return false;  // nobody else knows it, so it is in no other place
  const std::uint32_t before = seen_.find_or_add(object, number);
  if (before == Seen::kNew) return false;
  --numbered_;
  is_cyclic_ =
      is_cyclic_ || std::find(open_tuples_.begin(), open_tuples_.end(), before) != open_tuples_.end();
  return write_number(kAgain, before);
}

void Encoder::write_count(Tag small, std::size_t most, Tag large, std::size_t count) {
  if (count <= most) write_byte(small | count);
  else write_number(large, static_cast<std::uint32_t>(count));
}

[[noreturn]] void refuse(const std::string& problem) {
  throw Error(ErrorCode::bad_handle,
              fmt::format("this is no message of onecopy's Python package: {}", problem));
}

/// One call of decode_value().
class Decoder {
 public:
  Decoder(ByteSpan data, std::span<const Tensor> tensors, const TensorOpener& open)
      : rest_(data), tensors_(tensors), open_(open) {}

  nb::object read(int depth);
  void check_end() const {
    if (!rest_.empty()) refuse(fmt::format("{} bytes follow its value", rest_.size()));
    if (!tensors_.empty()) refuse(fmt::format("nothing refers to {} of its tensors", tensors_.size()));
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
  nb::object read_again();

  ByteSpan take(std::size_t size) {
    if (rest_.size() < size) refuse("it is cut off");
    const ByteSpan taken = rest_.first(size);
    rest_ = rest_.subspan(size);
    return taken;
  }
  template <class T>
  T number() {
    return load<T>(take(sizeof(T)).data());
  }
  /// REQUIRES: every item takes `bytes` at least. Nothing large is made for a length that lies.
  void check_count(std::size_t count, std::size_t bytes, int depth) const {
    if (count > rest_.size() / bytes) refuse("a container is longer than the message");
    if (depth == kMostDeep) refuse("it is nested too deeply");
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
    default: return made(PyComplex_FromCComplex(number<Py_complex>()));
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
    case kAgain: return read_again();
    default: refuse(fmt::format("its byte {:#04x} means nothing", static_cast<unsigned>(tag)));
  }
}

nb::object Decoder::read_long_int() {
  const ByteSpan bytes = take(number<std::uint32_t>());
  return nb::handle(reinterpret_cast<PyObject*>(&PyLong_Type))
      .attr("from_bytes")(nb::bytes(bytes.data(), bytes.size()), "little", nb::arg("signed") = true);
}

nb::object Decoder::read_str(std::size_t size) {
  const ByteSpan text = take(size);
  PyObject* const str = PyUnicode_DecodeUTF8(reinterpret_cast<const char*>(text.data()),
                                             static_cast<Py_ssize_t>(size), nullptr);
  if (str || !PyErr_ExceptionMatches(PyExc_UnicodeDecodeError)) return made(str);
  PyErr_Clear();
  refuse("a str is not UTF-8");
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
    PyTuple_SET_ITEM(tuple.ptr(), static_cast<Py_ssize_t>(i), read(depth + 1).release().ptr());
  return numbered_[number] = std::move(tuple);
}

nb::object Decoder::read_list(std::size_t count, int depth) {
  check_count(count, 1, depth);
  // It grows value by value: it can be in itself, and must be whole whenever somebody looks.
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
    refuse("a key of a dict is a list or dict");
  }
  return dict;
}

nb::object Decoder::read_tensor() {
  const auto flags = number<std::uint8_t>();
  if (tensors_.empty()) refuse("it has fewer tensors than it refers to");
  const Tensor& tensor = tensors_.front();
  tensors_ = tensors_.subspan(1);
  return numbered(open_(tensor, flags));
}

nb::object Decoder::read_again() {
  const auto before = number<std::uint32_t>();
  if (before >= numbered_.size() || !numbered_[before].is_valid())
    refuse("it refers to an object that is not there");
  return numbered_[before];
}

}  // namespace

bool encode_value(PyObject* value, Message& message) { return Encoder(message).write_all(value); }

nb::object decode_value(ByteSpan data, std::span<const Tensor> tensors, const TensorOpener& open) {
  Decoder decoder(data, tensors, open);
  nb::object value = decoder.read(0);
  decoder.check_end();
  return value;
}

nb::object open_tensor(const Tensor& tensor, std::uint32_t flags) {
  if (flags == 0) return nb::cast(tensor);
  if ((flags & ~torch::kKnownFlags) != 0) refuse(fmt::format("a tensor has unknown flags {:#x}", flags));
  if (!torch::is_loaded()) nb::module_::import_("torch");
  return torch::open(tensor, flags);
}

const Tensor* as_onecopy_tensor(PyObject* object) {
  static PyTypeObject* const type = reinterpret_cast<PyTypeObject*>(nb::type<Tensor>().ptr());
  return Py_TYPE(object) == type ? nb::inst_ptr<Tensor>(object) : nullptr;
}

void init_values(nb::module_& m) {
  m.def(
      "_encode_values",
      [](nb::handle value) -> nb::object {
        Message message;
        if (!encode_value(value.ptr(), message)) return nb::none();
        nb::list tensors;
        for (const Tensor& tensor : message.tensors) tensors.append(tensor);
        return nb::make_tuple(nb::bytes(message.data.data(), message.data.size()), tensors);
      },
      nb::arg("value").none(), "The value's bytes and tensors; None when it has to be pickled.");
  m.def(
      "_decode_values",
      [](nb::bytes data, nb::list tensors) {
        std::vector<Tensor> rows;
        for (const nb::handle tensor : tensors) rows.push_back(nb::cast<Tensor>(tensor));
        return decode_value(std::as_bytes(std::span(data.c_str(), data.size())), rows);
      },
      nb::arg("data"), nb::arg("tensors"), "The value that _encode_values() wrote.");
}

}  // namespace onecopy::python
