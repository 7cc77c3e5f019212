// SPDX-License-Identifier: Apache-2.0
#include "value/object_writer.h"

#include <fmt/format.h>

#include "binding/gil.h"
#include "core/throw_error.h"

namespace onecopy::python {
namespace {

using value::HashCost;
using value::kMaxDepth;
using value::max_key_parts;

constexpr const char* kTooDeep = "it is nested more than 32 deep; send it flat";

/// Keeps an object that a container may lose while another thread runs.
class Hold {
 public:
  explicit Hold(PyObject* object) : object_(object) { Py_INCREF(object); }
  Hold& operator=(Hold&&) = delete;
  ~Hold() { Py_DECREF(object_); }

 private:
  PyObject* object_;
};

}  // namespace

/// Returns false, or throws TypeError with the reason if a reducer is set.
bool ObjectWriter::cannot(const char* why) const {
  if (!options_.reduce.is_valid()) return false;
  throw nb::type_error(fmt::format("a value cannot cross: {}", why).c_str());
}

bool ObjectWriter::write_all(PyObject* value) {
  if (!write(value, 0)) return false;
  if (is_cyclic_) return cannot("it contains itself");
  if (is_deep_) return cannot("tuples are nested more than 32 deep in it; send it flat");
  if (key_parts_ > value::max_key_parts(size())) return cannot("the keys of its dicts have too many parts");
  if (message_.data.size() > UINT32_MAX) return cannot("it has 4 GiB and more without its tensors");
  make_copies();
  return true;
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

/// Writes a large object as the next row, which is copied at the end.
bool ObjectWriter::write_large(PyObject* object, ByteSpan bytes, std::uint8_t flags) {
  if (is_again(object)) return true;
  rows_.push_back({message_.tensors.size(), nb::borrow(object), bytes});
  return write_row({}, flags);
}

bool ObjectWriter::write_row(Tensor tensor, std::uint32_t flags) {
  message_.tensors.push_back(std::move(tensor));
  out_.tensor(static_cast<std::uint8_t>(flags));
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
    throw_error(ErrorCode::invalid_argument,
                "a key of a dict is made of tuples {} deep in each other, with {} parts counted as "
                "often as they occur, which no other process can hash; use a smaller key",
                cost_.height, cost_.parts);
  key_parts_ += cost_.parts;
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

bool encode_value(PyObject* value, Message& message, const EncodeOptions& options) {
  ObjectWriter writer(message, options);
  const bool is_written = writer.write_all(value);
  if (options.counts) *options.counts = writer.counts();
  return is_written;
}

}  // namespace onecopy::python
