// SPDX-License-Identifier: Apache-2.0
#include "value/message.h"

#include <fmt/format.h>
#include <nanobind/stl/string.h>

#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "array/numpy.h"
#include "binding/bytes.h"
#include "binding/device.h"
#include "binding/gil.h"
#include "binding/kept.h"
#include "binding/no_collection.h"
#include "core/throw_error.h"
#include "onecopy/share/share.h"
#include "torch/torch.h"
#include "value/leaf.h"
#include "value/tags.h"
#include "value/values.h"

namespace onecopy::python {
namespace {

using value::kDataIsTensor;
using value::kFlagsShift;
using value::kFormMask;
using value::kPickleForm;
using value::kTensorForm;
using value::kValuesForm;

/// The size from which data is written into shared memory, and read in place.
constexpr std::size_t kLargeData = std::size_t{32} << 10;
constexpr std::size_t kCopyWithoutGil = std::size_t{256} << 10;
/// The max number of tensors beside the data of a message, which may be a tensor, too. See sender.cpp.
constexpr std::size_t kMaxRows = 65'534;

/// The number of objects that would start the garbage collector several times, although none of them is garbage.
constexpr std::size_t kManyTensors = 1000;

/// A row of a pickled message that is a whole torch.UntypedStorage.
constexpr std::uint32_t kStorage = 0x100;

[[noreturn]] void refuse_message(const char* problem) {
  throw_error(ErrorCode::bad_handle, "the message for Python is malformed: {}", problem);
}

void move_data_to_tensor(Message& message) {
  const std::size_t size = message.data.size();
  Tensor data = empty(Layout(DType::u8, {static_cast<std::int64_t>(size)}));
  const auto copy = [&] { return std::memcpy(data.data(), message.data.data(), size); };
  size >= kCopyWithoutGil ? without_gil(copy) : copy();
  message.tensors.push_back(std::move(data));
  message.data.clear();
  message.tag |= kDataIsTensor;
}

/// The tensors that a pickler meets, as rows of the message. The pickle names the tensors by index. When the rows are full,
/// further tensors are pickled by the registered reducers.
class Rows {
 public:
  explicit Rows(nb::object opener) : opener_(std::move(opener)) {}

  /// A pickler's reducer_override.
  nb::object reduce(nb::handle object);
  std::vector<Tensor>& tensors() noexcept { return tensors_; }

 private:
  nb::object add(Tensor tensor, std::uint32_t flags) {
    tensors_.push_back(std::move(tensor));
    return nb::make_tuple(opener_, nb::make_tuple(tensors_.size() - 1, flags));
  }

  nb::object opener_;  ///< the function that the pickle calls to open a row
  std::vector<Tensor> tensors_;
};

bool is_storage(nb::handle object) {
  if (!torch::is_loaded()) return false;
  const nb::object type = nb::module_::import_("torch").attr("UntypedStorage");
  if (object.type().ptr() != type.ptr()) return false;
  return torch::device_of(object).has_value();
}

/// Returns whether onecopy.multiprocessing has registered reducers, which pickle a tensor as its handle.
bool has_reducers() {
  return nb::steal(PyImport_GetModule(nb::str("onecopy.multiprocessing").ptr())).is_valid();
}

nb::object Rows::reduce(nb::handle object) {
  if (tensors_.size() >= kMaxRows && has_reducers()) return nb::borrow(Py_NotImplemented);
  if (auto found = leaf(object).tensor(For::message)) {
    return add(std::move(found->tensor), found->flags);
  } else if (is_read_only_array(object.ptr())) {
    // Protocol 5 keeps the read-only flag of the sender's view, but the receiver owns its copy.
    return object.attr("__reduce_ex__")(4);
  } else if (!PyType_Check(object.ptr()) && is_storage(object)) {
    return add(torch::share_storage(object.ptr()), kStorage);
  }
  return nb::borrow(Py_NotImplemented);
}

/// The rows of the message that this thread is unpickling.
thread_local std::span<const Tensor> unpickled_rows;

/// Makes the rows of a message current while it is unpickled. Unpickling may read another message.
class Unpickling {
 public:
  explicit Unpickling(std::span<const Tensor> rows) : outer_(std::exchange(unpickled_rows, rows)) {}
  Unpickling& operator=(Unpickling&&) = delete;
  ~Unpickling() { unpickled_rows = outer_; }

 private:
  std::span<const Tensor> outer_;
};

nb::object open_row(std::size_t index, std::uint32_t flags) {
  if (index >= unpickled_rows.size()) refuse_message("it names a tensor that it does not have");
  const Tensor& tensor = unpickled_rows[index];
  return flags == kStorage ? torch::open_storage(tensor) : open_tensor(tensor, flags);
}

/// The functions of onecopy.pickling.messages, imported at the first pickle and never released. Not a static variable of a
/// function, since another thread would wait for its initialiser with the GIL held.
struct Pickling {
  PyObject* dumps = nullptr;
  PyObject* loads = nullptr;
  PyObject* open_row = nullptr;
};

const Pickling& pickling() {
  static Pickling functions;
  if (functions.open_row) return functions;
  const nb::object module = nb::module_::import_("onecopy.pickling.messages");
  functions.dumps = nb::getattr(module, "dumps").release().ptr();
  functions.loads = nb::getattr(module, "loads").release().ptr();
  functions.open_row = nb::getattr(module, "open_row").release().ptr();
  return functions;
}

}  // namespace

void import_pickling() { pickling(); }

namespace {

void pickle(nb::handle object, Message& message) {
  const nb::object rows = nb::cast(Rows(nb::borrow(pickling().open_row)));
  const nb::handle dumps = pickling().dumps;
  const nb::object pickled = call_python([&] { return dumps(object, rows); });
  Py_buffer view;
  if (PyObject_GetBuffer(pickled.ptr(), &view, PyBUF_SIMPLE) != 0) throw nb::python_error();
  const auto* begin = static_cast<const std::byte*>(view.buf);
  message = {kPickleForm, Bytes(begin, begin + view.len), std::move(nb::inst_ptr<Rows>(rows)->tensors()),
             MessageKind::python};
  PyBuffer_Release(&view);
}

nb::object unpickle(ByteSpan data, std::span<const Tensor> tensors) {
  const Unpickling now(tensors);
  const nb::object view =
      owned(PyMemoryView_FromMemory(reinterpret_cast<char*>(const_cast<std::byte*>(data.data())),
                                    static_cast<Py_ssize_t>(data.size()), PyBUF_READ));
  const nb::handle loads = pickling().loads;
  return call_python([&] { return loads(view); });
}

nb::object decode_raw(Message&& message) {
  const bool is_tensor = message.tag == 0 && message.data.empty() && message.tensors.size() == 1;
  return is_tensor ? nb::cast(std::move(message.tensors.front())) : nb::cast(std::move(message));
}

nb::object decode_tensor(const Message& message, ByteSpan data, std::span<const Tensor> tensors) {
  if (tensors.size() != 1 || !data.empty()) refuse_message("it should be one tensor");
  return open_tensor(tensors.front(), message.tag >> kFlagsShift);
}

Message make_message(std::uint32_t tag, const nb::bytes& data,
                     const nb::typed<nb::iterable, Tensor>& tensors) {
  const auto* begin = reinterpret_cast<const std::byte*>(data.c_str());
  Message message{tag, Bytes(begin, begin + data.size()), {}};
  for (const nb::handle tensor : tensors) message.tensors.push_back(nb::cast<Tensor>(tensor));
  return message;
}

Message encode_object(nb::handle object) {
  Message message;
  if (auto found = leaf(object).tensor(For::message)) {
    if (found->flags != 0) message.tag = kTensorForm | found->flags << kFlagsShift;
    if (found->flags != 0) message.kind = MessageKind::python;
    message.tensors.push_back(std::move(found->tensor));
    return message;
  }
  if (nb::isinstance<Message>(object)) return *nb::inst_ptr<Message>(object);
  message.tag = kValuesForm;
  message.kind = MessageKind::python;
  if (!encode_value(object.ptr(), message) || message.tensors.size() > kMaxRows) pickle(object, message);
  if (message.data.size() >= kLargeData) move_data_to_tensor(message);
  return message;
}

nb::object decode(Message&& message) {
  if (message.kind != MessageKind::python) return decode_raw(std::move(message));
  std::span<const Tensor> tensors = message.tensors;
  ByteSpan data = message.data;
  if ((message.tag & kDataIsTensor) != 0) {
    if (tensors.empty() || !data.empty() || tensors.back().layout().ndim() != 1 ||
        tensors.back().dtype() != DType::u8 || !is_on_host(tensors.back()) ||
        !tensors.back().layout().is_contiguous())
      refuse_message("its data is not where it should be");
    data = {tensors.back().as<const std::byte>(), tensors.back().nbytes()};
    tensors = tensors.first(tensors.size() - 1);
  }
  const std::uint32_t form = message.tag & kFormMask;
  if (form == kTensorForm) return decode_tensor(message, data, tensors);
  NoCollection no_collection;
  if (tensors.size() >= kManyTensors) no_collection.begin();
  if (message.tag >> kFlagsShift == 0 && form == kValuesForm) return decode_value(data, tensors);
  if (message.tag >> kFlagsShift == 0 && form == kPickleForm) return unpickle(data, tensors);
  refuse_message("its tag is unknown");
}

}  // namespace

Message encode_message(nb::handle object) {
  drain_decrefs();
  return call_python([&] { return encode_object(object); });
}

nb::object decode_message(Message&& message, Stream taken_in) {
  drain_decrefs();
  receive(message.tensors, taken_in);
  return call_python([&] { return decode(std::move(message)); });
}

void init_message(nb::module_& m) {
  nb::class_<Message>(
      m, "Message",
      "A message of queues and pipes between Python and programs in C++: ``tag`` (a number of 32 bits),\n"
      "``data`` (bytes) and ``tensors`` (onecopy.Tensor each).")
      .def(nb::new_(&make_message), nb::arg("tag") = 0, nb::arg("data") = nb::bytes("", 0),
           nb::arg("tensors") = nb::tuple())
      .def_ro("tag", &Message::tag, "The sender's own number.")
      .def_prop_ro(
          "data", [](const Message& message) { return to_python(message.data); }, "Plain bytes.")
      .def_prop_ro(
          "tensors",
          [](const Message& message) -> nb::typed<nb::list, Tensor> { return list_of(message.tensors); },
          "The tensors, not copied.")
      .def("__repr__", [](const Message& message) {
        return fmt::format("<onecopy.Message tag={:#x}, {} bytes, {} tensors>", message.tag,
                           message.data.size(), message.tensors.size());
      });
  nb::class_<Rows>(m, "_Rows").def("reduce", &Rows::reduce, nb::arg("object").none());
  m.def(
      "_decode_message",
      [](std::uint32_t tag, const nb::bytes& data, const nb::typed<nb::iterable, Tensor>& tensors) {
        Message message = make_message(tag, data, tensors);
        message.kind = MessageKind::python;
        return decode_message(std::move(message));
      },
      nb::arg("tag"), nb::arg("data"), nb::arg("tensors"), "What get() makes of a message.");
  m.def("_open_row", &open_row, nb::arg("index"), nb::arg("flags"));
}

}  // namespace onecopy::python
