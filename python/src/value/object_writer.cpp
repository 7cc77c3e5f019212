// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "array/numpy.h"
#include "array/source.h"
#include "binding/gil.h"
#include "onecopy/core/error.h"
#include "onecopy/share/share.h"
#include "share/session.h"
#include "torch/torch.h"
#include "value/class_plan.h"
#include "value/hash_cost.h"
#include "value/large_bytes.h"
#include "value/seen_objects.h"
#include "value/small_vector.h"
#include "value/values.h"
#include "value/writer.h"

namespace onecopy::python {
namespace {

using torch::TorchTensor;
using value::HashCost;
using value::kMaxDepth;
using value::max_key_parts;
using value::SmallVector;

constexpr const char* kTooDeep = "it is nested more than 32 deep; send it flat";
constexpr int kHost = -1;
constexpr std::size_t kUsualObjects = 8;  ///< the usual number of numbered objects in a call
constexpr std::size_t kMaxInline = 4096;  ///< the maximum size in bytes of a tensor within the message

/// Walks over one value, for one call of encode_value().
class ObjectWriter {
 public:
  ObjectWriter(Message& message, const EncodeOptions& options)
      : message_(message), begin_(message.data.size()), out_(message.data), options_(options) {}

  bool write_all(PyObject* value) {
    if (!write(value, 0)) return false;
    if (is_cyclic_) return cannot("it contains itself");
    if (is_deep_) return cannot("tuples are nested more than 32 deep in it; send it flat");
    if (key_parts_ > max_key_parts(size())) return cannot("the keys of its dicts have too many parts");
    if (message_.data.size() > UINT32_MAX) return cannot("it has 4 GiB and more without its tensors");
    make_copies();
    return true;
  }
  const TensorCounts& counts() const noexcept { return counts_; }

 private:
  /// A tensor of the CPU or of a card whose elements are copied into a row at the end.
  struct LateCopy {
    std::size_t row;
    nb::object tensor;
    Layout layout;
    Device home;
  };

  /// A str, bytes or bytearray that is copied into a row at the end.
  struct LateRow {
    std::size_t row;
    nb::object object;
    ByteSpan bytes;  ///< empty for a bytearray, whose bytes may move
  };

  /// Writes a value. REQUIRES: the caller holds a reference to the value until write() returns.
  bool write(PyObject* value, int depth);
  bool write_simple(PyObject* value, PyTypeObject* type, bool& known);
  bool write_int(PyObject* value);
  bool write_long_int(PyObject* value);
  bool write_str(PyObject* value, int depth);
  bool write_bytes(PyObject* value);
  bool write_tuple(PyObject* value, int depth);
  bool write_list(PyObject* value, int depth);
  bool write_dict(PyObject* value, int depth);
  bool write_tensor(PyObject* value, int depth);
  bool write_array(PyObject* value, int depth);
  bool write_copy(PyObject* tensor, int depth);
  bool write_card_copy(const TorchTensor& from, int depth);
  bool write_shared(PyObject* tensor, int depth);
  bool write_row(const Tensor& tensor, std::uint32_t flags);
  bool write_large(PyObject* object, ByteSpan bytes, std::uint8_t flags);
  bool write_other(PyObject* object, int depth);
  bool write_parts(PyObject* object, nb::handle reduced, int depth);
  bool write_planned(PyObject* object, const ClassPlan& plan, int depth);
  bool write_fields(PyObject* object, PyObject* fields, int depth);
  bool write_key(PyObject* key, int depth);
  std::size_t add_numbered() {
    numbered_.emplace_back();
    return numbered_.size() - 1;
  }
  std::size_t size() const noexcept { return message_.data.size() - begin_; }

  /// Numbers the object. If the object was written before, writes a reference to it and returns true.
  bool is_again(PyObject* object);
  /// Marks a container while its items are written. In a call, no container may contain itself; elsewhere a list or
  /// dict may.
  void open(std::size_t number) { numbered_[number].is_open = true; }
  void close(std::size_t number) { numbered_[number].is_open = false; }
  bool is_large(std::size_t size) const noexcept {
    return size >= kLargeBytes && options_.tensors == Tensors::are_copied;
  }
  bool may_contain_itself() const noexcept { return options_.tensors == Tensors::are_shared; }
  void note_sent(PyObject* tensor) {
    if (options_.sent) options_.sent->push_back(nb::borrow(tensor));
  }
  bool cannot(const char* why) const;
  void add_late_copy(const TorchTensor& from, Device home);
  void make_copies();
  Tensor made_copy(const LateCopy& copy);

  /// An object that has a number.
  struct Numbered {
    HashCost cost;         ///< the cost of hashing a complete tuple, or an object made of parts
    bool is_open = false;  ///< whether its items are being written, which must not refer to it
  };

  Message& message_;
  const std::size_t begin_;
  value::Writer out_;
  const EncodeOptions& options_;
  std::vector<std::pair<std::size_t, SharedArray>> arrays_;  ///< the arrays by row, copied at the end
  std::vector<LateCopy> copies_;
  std::vector<LateRow> rows_;
  SeenObjects seen_;
  SmallVector<Numbered, kUsualObjects> numbered_;  ///< the objects by number
  TensorCounts counts_;
  SmallVector<PyObject*, kUsualObjects> open_objects_;  ///< the objects whose parts are being written
  bool is_cyclic_ = false;
  HashCost cost_;                ///< the cost of the last written value
  std::uint64_t key_parts_ = 0;  ///< the parts of all keys
  bool is_deep_ = false;         ///< whether references nest tuples deeper than kMaxDepth
};

/// Returns a torch tensor whose elements lie one behind the other as they are. Empty for others.
std::optional<TorchTensor> row_major(PyObject* object) {
  auto tensor = TorchTensor::of(object);
  return tensor && tensor->is_row_major() ? std::move(tensor) : std::nullopt;
}

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

/// Returns false, or throws TypeError with the reason if a reducer is set.
bool ObjectWriter::cannot(const char* why) const {
  if (!options_.reduce.is_valid()) return false;
  throw nb::type_error(fmt::format("a value cannot cross: {}", why).c_str());
}

bool ObjectWriter::write(PyObject* value, int depth) {
  PyTypeObject* const type = Py_TYPE(value);
  cost_ = {};
  if (type == &PyUnicode_Type) return write_str(value, depth);
  bool known = true;
  const bool done = write_simple(value, type, known);
  if (known) return done;
  if (depth == kMaxDepth) return cannot(kTooDeep);
  if (type == &PyTuple_Type) return write_tuple(value, depth);
  if (type == &PyList_Type) return write_list(value, depth);
  if (type == &PyDict_Type) return write_dict(value, depth);
  return write_tensor(value, depth);
}

bool ObjectWriter::write_simple(PyObject* value, PyTypeObject* type, bool& known) {
  if (type == &PyLong_Type) return write_int(value);
  if (type == &PyFloat_Type) return out_.real(PyFloat_AsDouble(value)), true;
  if (type == &PyBytes_Type) return write_bytes(value);
  if (type == &PyComplex_Type)
    return out_.complex(PyComplex_RealAsDouble(value), PyComplex_ImagAsDouble(value)), true;
  known = value == Py_None || type == &PyBool_Type;
  if (value == Py_None) out_.none();
  else if (known) out_.boolean(value == Py_True);
  return known;
}

bool ObjectWriter::write_int(PyObject* value) {
  int overflow = 0;
  const long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
  if (overflow != 0) return write_long_int(value);
  out_.integer(number);
  return true;
}

bool ObjectWriter::write_long_int(PyObject* value) {
  const nb::handle number(value);
  const auto bits = nb::cast<std::size_t>(number.attr("bit_length")());
  const auto bytes =
      nb::borrow<nb::bytes>(number.attr("to_bytes")(bits / 8 + 1, "little", nb::arg("signed") = true));
  if (bytes.size() > UINT32_MAX) return cannot("an int is too large");
  out_.long_integer(std::as_bytes(std::span(bytes.c_str(), bytes.size())));
  return true;
}

bool ObjectWriter::write_str(PyObject* value, int depth) {
  Py_ssize_t size = 0;
  const char* text = PyUnicode_AsUTF8AndSize(value, &size);
  if (!text) {  // contains lone surrogates
    PyErr_Clear();
    return write_other(value, depth);
  }
  const std::string_view utf8(text, static_cast<std::size_t>(size));
  if (is_large(utf8.size()))
    return write_large(value, std::as_bytes(std::span(utf8)), onecopy::value::kTextRow);
  if (utf8.size() > UINT32_MAX) return cannot("a str has 4 GiB and more");
  if (!value::Writer::is_numbered(utf8.size()) || !is_again(value)) out_.text(utf8);
  return true;
}

bool ObjectWriter::write_bytes(PyObject* value) {
  const std::span bytes(PyBytes_AsString(value), static_cast<std::size_t>(Py_SIZE(value)));
  if (is_large(bytes.size())) return write_large(value, std::as_bytes(bytes), onecopy::value::kBytesRow);
  if (bytes.size() > UINT32_MAX) return cannot("bytes have 4 GiB and more");
  if (!value::Writer::is_numbered(bytes.size()) || !is_again(value)) out_.bytes(std::as_bytes(bytes));
  return true;
}

/// Writes a tuple. The empty tuple is never written as a reference, which would be longer.
bool ObjectWriter::write_tuple(PyObject* value, int depth) {
  const std::size_t number = numbered_.size();
  const Py_ssize_t count = NB_TUPLE_GET_SIZE(value);
  if (count == 0) add_numbered();
  else if (is_again(value)) return true;
  out_.tuple(static_cast<std::size_t>(count));
  open(number);
  HashCost cost = HashCost::of_container();
  for (Py_ssize_t i = 0; i < count; ++i) {
    if (!write(NB_TUPLE_GET_ITEM(value, i), depth + 1)) return false;
    cost.add(cost_);
  }
  close(number);
  cost_ = numbered_[number].cost = cost;
  is_deep_ = is_deep_ || cost.height > kMaxDepth;
  return true;
}

bool ObjectWriter::write_list(PyObject* value, int depth) {
  const std::size_t number = numbered_.size();
  if (is_again(value)) return true;
  if (!may_contain_itself()) open(number);
  const Py_ssize_t count = NB_LIST_GET_SIZE(value);
  out_.list(static_cast<std::size_t>(count));
  for (Py_ssize_t i = 0; i < count && i < NB_LIST_GET_SIZE(value); ++i) {
    PyObject* const item = NB_LIST_GET_ITEM(value, i);
    const Hold hold(item);
    if (!write(item, depth + 1)) return false;
  }
  cost_ = {};
  if (!may_contain_itself()) close(number);
  return NB_LIST_GET_SIZE(value) == count || cannot("a list has changed meanwhile");
}

bool ObjectWriter::write_dict(PyObject* value, int depth) {
  const std::size_t number = numbered_.size();
  if (is_again(value)) return true;
  if (!may_contain_itself()) open(number);
  const Py_ssize_t count = NB_DICT_GET_SIZE(value);
  out_.dict(static_cast<std::size_t>(count));
  PyObject *key, *item;
  Py_ssize_t position = 0, written = 0;
  for (; written < count && PyDict_Next(value, &position, &key, &item); ++written) {
    const Hold hold_key(key), hold_item(item);
    if (!write_key(key, depth + 1) || !write(item, depth + 1)) return false;
  }
  cost_ = {};
  if (!may_contain_itself()) close(number);
  return (written == count && NB_DICT_GET_SIZE(value) == count) || cannot("a dict has changed meanwhile");
}

/// Writes a key. Throws for a key that the receiver could not hash, even after unpickling.
bool ObjectWriter::write_key(PyObject* key, int depth) {
  if (!write(key, depth)) return false;
  if (cost_.height > HashCost::kMaxHeight || cost_.parts > max_key_parts(size()))
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("a key of a dict is made of tuples {} deep in each other, with {} parts counted as "
                    "often as they occur, which no other process can hash; use a smaller key",
                    cost_.height, cost_.parts));
  key_parts_ += cost_.parts;
  return true;
}

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

/// Writes an object without a form of its own, and its number after its parts. The writer keeps the object, so that no
/// other object gets its address.
bool ObjectWriter::write_other(PyObject* object, int depth) {
  if (!options_.reduce.is_valid()) return false;
  if (open_objects_.has(object)) return cannot("it contains itself");
  if (const std::uint32_t before = seen_.find(object); before != SeenObjects::kNew) {
    cost_ = numbered_[before].cost;
    return out_.again(before), true;
  }
  open_objects_.emplace_back() = object;
  if (const ClassPlan plan = ClassPlan::of_class(options_.classes, Py_TYPE(object))) {
    if (!write_planned(object, plan, depth)) return false;
  } else {
    const nb::object reduced = call_python([&] { return options_.reduce(nb::handle(object)); });
    if (!write_parts(object, reduced, depth)) return false;
  }
  open_objects_.pop_back();
  is_deep_ = is_deep_ || cost_.height > kMaxDepth;
  const std::size_t number = add_numbered();
  numbered_[number].cost = cost_;
  seen_.find_or_add(object, static_cast<std::uint32_t>(number));
  const bool is_marked = options_.receiver && options_.receiver->marked == Py_TYPE(object);
  if (is_marked) note_sent(nb::object(nb::handle(object).attr("tensor")).ptr());
  else if (torch::is_any_tensor(object)) note_sent(object);
  return true;
}

/// Writes what reduce() would return.
bool ObjectWriter::write_planned(PyObject* object, const ClassPlan& plan, int depth) {
  const std::string_view kind = plan.kind();
  const Py_ssize_t items = kind == "namedtuple" ? NB_TUPLE_GET_SIZE(object) : 1;
  out_.object(kind, static_cast<std::size_t>(items) + 1);
  HashCost cost = HashCost::of_container();
  if (!write(plan.name(), depth + 1)) return false;
  cost.add(cost_);
  if (kind == "record") {
    if (!write_fields(object, plan.fields(), depth + 1)) return false;
    cost.add(cost_);
  } else if (kind == "enum") {
    const nb::object name = nb::handle(object).attr("_name_");
    if (!write(name.ptr(), depth + 1)) return false;
    cost.add(cost_);
  } else {
    for (Py_ssize_t i = 0; i < items; ++i) {
      if (!write(NB_TUPLE_GET_ITEM(object, i), depth + 1)) return false;
      cost.add(cost_);
    }
  }
  cost_ = cost;
  return true;
}

/// Writes the dict of the fields of a dataclass.
bool ObjectWriter::write_fields(PyObject* object, PyObject* fields, int depth) {
  if (depth == kMaxDepth) return cannot(kTooDeep);
  add_numbered();
  const Py_ssize_t count = NB_TUPLE_GET_SIZE(fields);
  out_.dict(static_cast<std::size_t>(count));
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* const name = NB_TUPLE_GET_ITEM(fields, i);
    const nb::object value = call_python([&] { return owned(PyObject_GetAttr(object, name)); });
    if (!write_str(name, depth + 1) || !write(value.ptr(), depth + 1)) return false;
  }
  key_parts_ += static_cast<std::uint64_t>(count);
  cost_ = {};
  return true;
}

bool ObjectWriter::write_parts(PyObject* object, nb::handle reduced, int depth) {
  const Py_ssize_t count = PyTuple_CheckExact(reduced.ptr()) ? NB_TUPLE_GET_SIZE(reduced.ptr()) : 0;
  Py_ssize_t size = 0;
  const char* const kind =
      count == 0 ? nullptr : PyUnicode_AsUTF8AndSize(NB_TUPLE_GET_ITEM(reduced.ptr(), 0), &size);
  if (!kind || size > UINT8_MAX) {
    PyErr_Clear();
    throw nb::type_error(fmt::format("reduce() returned no tuple that begins with a kind for a {}",
                                     nb::type_name(nb::handle(object).type()).c_str())
                             .c_str());
  }
  out_.object({kind, static_cast<std::size_t>(size)}, static_cast<std::size_t>(count - 1));
  HashCost cost = HashCost::of_container();
  for (Py_ssize_t i = 1; i < count; ++i) {
    if (!write(NB_TUPLE_GET_ITEM(reduced.ptr(), i), depth + 1)) return false;
    cost.add(cost_);
  }
  cost_ = cost;
  return true;
}

bool ObjectWriter::is_again(PyObject* object) {
  const std::size_t number = add_numbered();
  if (Py_REFCNT(object) == 1) return false;  // no other reference exists
  const std::uint32_t before = seen_.find_or_add(object, static_cast<std::uint32_t>(number));
  if (before == SeenObjects::kNew) return false;
  numbered_.pop_back();
  cost_ = numbered_[before].cost;
  is_cyclic_ = is_cyclic_ || numbered_[before].is_open;
  out_.again(before);
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

}  // namespace

int target_of(const DeviceMap& devices, int here) {
  for (const auto& [from, to] : devices.cards)
    if (from == here) return to;
  return devices.is_automatic && devices.numbers_agree ? here : kHost;
}

bool encode_value(PyObject* value, Message& message, const EncodeOptions& options) {
  ObjectWriter writer(message, options);
  const bool is_written = writer.write_all(value);
  if (options.counts) *options.counts = writer.counts();
  return is_written;
}

}  // namespace onecopy::python
