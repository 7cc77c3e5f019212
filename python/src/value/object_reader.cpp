// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <array>
#include <cstring>
#include <utility>

#include "binding/args.h"
#include "binding/bytes.h"
#include "binding/gil.h"
#include "torch/torch.h"
#include "value/class_plan.h"
#include "value/large_bytes.h"
#include "value/reader.h"
#include "value/values.h"

namespace onecopy::python {
namespace {

/// Makes the objects of one value that value::Reader reads.
class ObjectSink {
 public:
  using Object = nb::object;

  ObjectSink(std::span<const Tensor> tensors, const TensorOpener& open, const DecodeOptions& options)
      : tensors_(tensors), open_(open), options_(options) {}

  nb::object none() { return nb::none(); }
  nb::object boolean(bool truth) { return nb::bool_(truth); }
  nb::object integer(std::int64_t number) { return owned(PyLong_FromLongLong(number)); }
  nb::object long_integer(ByteSpan bytes) {
    return nb::handle(reinterpret_cast<PyObject*>(&PyLong_Type))
        .attr("from_bytes")(to_python(bytes), "little", nb::arg("signed") = true);
  }
  nb::object real(double number) { return owned(PyFloat_FromDouble(number)); }
  nb::object complex(double real, double imaginary) {
    return owned(PyComplex_FromDoubles(real, imaginary));
  }
  nb::object text(ByteSpan utf8);
  nb::object bytes(ByteSpan bytes) {
    return owned(PyBytes_FromStringAndSize(reinterpret_cast<const char*>(bytes.data()),
                                           static_cast<Py_ssize_t>(bytes.size())));
  }
  nb::object tensor(std::size_t index, std::uint8_t flags) {
    if ((flags & value::kRowFlags) != 0) return row(tensors_[index], flags);
    return received(open_(tensors_[index], flags));
  }
  nb::object card_tensor(std::size_t index, std::uint8_t flags, std::uint8_t card) {
    require_call("a tensor for a card");
    return received(open_(tensors_[index], flags | (card + 1U) << 8));
  }
  nb::object inline_tensor(std::uint8_t flags, const Layout& layout, ByteSpan elements) {
    require_call("the elements of a tensor");
    if (!torch::is_loaded()) import_package("torch", "a torch.Tensor of another process");
    return received(torch::copy_of(layout, elements, flags));
  }
  nb::object unfinished() { value::refuse("it refers to an object that is not there"); }

  template <class Next>
  nb::object tuple(std::size_t count, Next&& next) {
    nb::object tuple = owned(PyTuple_New(static_cast<Py_ssize_t>(count)));
    for (std::size_t i = 0; i < count; ++i)
      NB_TUPLE_SET_ITEM(tuple.ptr(), static_cast<Py_ssize_t>(i), next().release().ptr());
    return tuple;
  }
  /// Makes a list value by value, since a list can contain itself and other threads must always see a whole list.
  template <class Next, class Begun>
  nb::object list(std::size_t count, Next&& next, Begun&& begun) {
    nb::object list = owned(PyList_New(0));
    begun(list);
    for (std::size_t i = 0; i < count; ++i)
      if (PyList_Append(list.ptr(), next().ptr()) < 0) throw nb::python_error();
    return list;
  }
  template <class Next, class Begun>
  nb::object dict(std::size_t count, Next&& next, Begun&& begun) {
    nb::object dict = owned(PyDict_New());
    begun(dict);
    for (std::size_t i = 0; i < count; ++i) {
      const nb::object key = next();
      set(dict, key, next());
    }
    return dict;
  }
  template <class Next>
  nb::object object(std::string_view kind, std::size_t count, Next&& next) {
    if (!options_.rebuild.is_valid()) value::refuse("it has an object that only calls have");
    nb::object parts = owned(PyTuple_New(static_cast<Py_ssize_t>(count + 1)));
    NB_TUPLE_SET_ITEM(parts.ptr(), 0, text(std::as_bytes(std::span(kind))).release().ptr());
    for (std::size_t i = 0; i < count; ++i)
      NB_TUPLE_SET_ITEM(parts.ptr(), static_cast<Py_ssize_t>(i + 1), next().release().ptr());
    if (const ClassPlan plan =
            count < 2 ? ClassPlan()
                      : ClassPlan::of_name(options_.classes, kind, NB_TUPLE_GET_ITEM(parts.ptr(), 1)))
      if (nb::object planned = plan.make(parts); planned.is_valid()) return planned;
    return received(
        call_python([&] { return owned(PyObject_Call(options_.rebuild.ptr(), parts.ptr(), nullptr)); }));
  }

 private:
  nb::object row(const Tensor& row, std::uint8_t flags) {
    require_call("bytes in a row");
    if ((flags & ~value::kRowFlags) != 0) value::refuse("a row of bytes has the flags of a tensor");
    return object_of_row(row, flags);
  }
  void require_call(const char* what) const {
    if (options_.tensors != Tensors::are_copied)
      value::refuse(fmt::format("it has {}, as only calls have", what));
  }
  nb::object received(nb::object object) {
    if (options_.received && torch::is_any_tensor(object.ptr())) options_.received->push_back(object);
    return object;
  }
  static nb::object decode(ByteSpan utf8);
  static void set(const nb::object& dict, const nb::object& key, const nb::object& value);

  std::span<const Tensor> tensors_;
  const TensorOpener& open_;
  const DecodeOptions& options_;
};

/// A cache of the short strings read most recently, since every message contains names of fields, keys and classes.
/// Thread safety: used with the GIL held.
class RecentText {
 public:
  static constexpr std::size_t kMaxSize = value::kMaxShortText;

  /// Returns the place of a string that may have these bytes.
  static PyObject*& place(ByteSpan utf8) noexcept {
    static std::array<PyObject*, 512> places{};
    std::uint64_t words[4] = {};
    std::memcpy(words, utf8.data(), utf8.size());
    const std::uint64_t mixed = ((words[0] * 31 + words[1]) * 31 + words[2]) * 31 + words[3] + utf8.size();
    return places[mixed * 0x9e3779b97f4a7c15ULL >> 55];
  }
  static bool is(PyObject* str, ByteSpan utf8) noexcept {
    if (!str) return false;
    Py_ssize_t size = 0;
    const char* const text = PyUnicode_AsUTF8AndSize(str, &size);  // cached in the str
    return static_cast<std::size_t>(size) == utf8.size() &&
           std::memcmp(text, utf8.data(), utf8.size()) == 0;
  }
};

nb::object ObjectSink::text(ByteSpan utf8) {
  if (utf8.empty() || utf8.size() > RecentText::kMaxSize) return decode(utf8);
  PyObject*& recent = RecentText::place(utf8);
  if (RecentText::is(recent, utf8)) return nb::borrow(recent);
  nb::object str = decode(utf8);
  if (!PyUnicode_AsUTF8AndSize(str.ptr(), nullptr)) throw nb::python_error();
  nb::object before = nb::steal(std::exchange(recent, nb::object(str).release().ptr()));
  return str;
}

nb::object ObjectSink::decode(ByteSpan utf8) {
  PyObject* const str = PyUnicode_DecodeUTF8(reinterpret_cast<const char*>(utf8.data()),
                                             static_cast<Py_ssize_t>(utf8.size()), nullptr);
  if (str || !PyErr_ExceptionMatches(PyExc_UnicodeDecodeError)) return owned(str);
  PyErr_Clear();
  value::refuse("a str is not UTF-8");
}

void ObjectSink::set(const nb::object& dict, const nb::object& key, const nb::object& value) {
  if (PyDict_SetItem(dict.ptr(), key.ptr(), value.ptr()) == 0) return;
  if (!PyErr_ExceptionMatches(PyExc_TypeError)) throw nb::python_error();
  PyErr_Clear();
  value::refuse("a key of a dict is a list or dict");
}

}  // namespace

nb::object decode_value(ByteSpan data, std::span<const Tensor> tensors, const TensorOpener& open,
                        const DecodeOptions& options) {
  ObjectSink sink(tensors, open, options);
  return value::Reader(data, tensors.size(), sink).read_all();
}

}  // namespace onecopy::python
