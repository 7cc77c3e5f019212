// SPDX-License-Identifier: Apache-2.0
#include "onecopy/channel/queue.h"

#include <fmt/format.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "binding/bytes.h"
#include "binding/device.h"
#include "binding/gil.h"
#include "onecopy/core/error.h"
#include "onecopy/share/share.h"
#include "value/message.h"

/// onecopy.Queue. An attempt is made with the GIL; only a call that has to wait releases it.
namespace onecopy::python {
namespace {

using std::chrono::nanoseconds;

/// A queue as Python has it: others run while it is left.
class Queue : public onecopy::Queue {
 public:
  explicit Queue(onecopy::Queue queue) : onecopy::Queue(std::move(queue)) { import_pickling(); }
  Queue(Queue&&) = default;
  ~Queue() {
    drop_without_gil([this] { const onecopy::Queue last(std::move(*this)); });
  }
};

/// One attempt: is it in the queue now? If a creator has to be asked first, waits for it until the deadline.
bool put_now(Queue& queue, const Message& message, const Departure& departure, Deadline deadline) {
  const auto at_once = [&] {
    return unless_stopped([&] { return queue.try_put_at_once(message, departure.stream); });
  };
  const auto ask_and_put = [&] {
    return unless_stopped([&] {
      queue.prepare_put(message, deadline.left());
      return queue.try_put(message, nanoseconds{0}, departure.stream);
    });
  };
  // If a device's streams write no words, its host waits for the stream, which may need Python itself.
  return (departure.needs_a_device ? without_gil(at_once) : at_once()) || without_gil(ask_and_put);
}

bool put_until(Queue& queue, const Message& message, Deadline deadline) {
  const Departure departure(message.tensors);
  const auto attempt = [&](nanoseconds time) {
    return unless_stopped([&] { return queue.try_put(message, time, departure.stream); });
  };
  return put_now(queue, message, departure, deadline) || wait_until(deadline, attempt);
}

std::optional<Message> get_until(Queue& queue, Deadline deadline, Stream stream) {
  const std::vector<DeviceStream> current = current_streams();
  const CurrentStreams in_order(current);
  const auto attempt = [&](nanoseconds time) {
    return unless_stopped([&] { return queue.try_get(time, stream); });
  };
  std::optional<Message> message = unless_stopped([&] { return queue.try_get_at_once(stream); });
  if (message) return message;
  if (deadline != kNow) return wait_until(deadline, attempt);
  if (queue.empty() && !queue.is_closed()) return {};
  return without_gil([&] { return attempt(nanoseconds{0}); });
}

/// A Timeout that is queue.Empty or queue.Full, too, for programs that know the standard library's queues.
[[noreturn]] void raise_timeout(const char* kind, const char* what, nb::handle timeout) {
  const std::string message = fmt::format("{} within {} s", what, nb::str(timeout).c_str());
  const nb::object make =
      call_python([] { return nb::module_::import_("onecopy.errors").attr("_timeout_of_queue"); });
  const nb::object error = call_python(
      [&] { return nb::steal(PyObject_CallFunction(make.ptr(), "ss", kind, message.c_str())); });
  if (error.is_valid()) PyErr_SetObject(error.type().ptr(), error.ptr());
  throw nb::python_error();
}

/// Would an attempt without waiting fail for want of space? Then encoding, which moves tensors, is left out.
bool is_hopeless(const Queue& queue, Deadline deadline) {
  return deadline == kNow && queue.maxsize() != 0 && queue.size() >= queue.maxsize() && !queue.is_closed();
}

bool encode_and_put(Queue& queue, nb::handle object, Deadline deadline) {
  return !is_hopeless(queue, deadline) && put_until(queue, encode_message(object), deadline);
}

void put(Queue& queue, nb::handle object, nb::handle timeout) {
  constexpr const char* kInstead =
      "; try_put() does not wait, and onecopy.multiprocessing.Queue takes block";
  if (!encode_and_put(queue, object, deadline_of(timeout, kInstead)))
    raise_timeout("Full", "the queue was full", timeout);
}

nb::object get_object(Queue& queue, nb::handle timeout) {
  constexpr const char* kInstead =
      "; try_get() does not wait, and onecopy.multiprocessing.Queue takes block";
  const Deadline deadline = deadline_of(timeout, kInstead);
  const Stream stream = stream_to_take_in();
  std::optional<Message> message = get_until(queue, deadline, stream);
  if (!message) raise_timeout("Empty", "nothing came through the queue", timeout);
  return decode_message(*std::move(message), stream);
}

bool try_put(Queue& queue, nb::handle object) { return encode_and_put(queue, object, kNow); }

/// Returns the next object for a loop: the end of the queue ends the loop.
nb::object next(Queue& queue) {
  try {
    return get_object(queue, nb::none());
  } catch (const Error& error) {
    if (error.code() != ErrorCode::closed) throw;
    throw nb::stop_iteration();
  }
}

/// A coroutine of Python's, which waits in the event loop of its caller.
nb::object get_async(nb::handle queue, const char* function) {
  const nb::object coroutine = nb::module_::import_("onecopy._async").attr(function);
  return call_python([&] { return coroutine(queue); });
}

nb::object try_get(Queue& queue, nb::object otherwise) {
  const Stream stream = stream_to_take_in();
  std::optional<Message> message = get_until(queue, kNow, stream);
  return message ? decode_message(*std::move(message), stream) : std::move(otherwise);
}

/// For calls with `block` and `timeout`, as the standard library's queues have them.
Deadline deadline_if(nb::handle block, nb::handle timeout) {
  const int is_blocking = PyObject_IsTrue(block.ptr());
  if (is_blocking < 0) throw nb::python_error();
  return is_blocking ? deadline_of_seconds(timeout) : kNow;
}

/// queue.Empty or queue.Full, which are exceptions without a message.
[[noreturn]] void raise_from_queue(const char* name) {
  const nb::object type = nb::module_::import_("queue").attr(name);
  PyErr_SetNone(type.ptr());
  throw nb::python_error();
}

/// The object's message. Empty if pickling it threw and `report`, unless that is None, was told. Only exceptions of
/// pickling are the object's fault: errors of waiting go to the caller.
std::optional<Message> encode_or_report(nb::handle object, nb::handle report) {
  try {
    return encode_message(object);
  } catch (nb::python_error& error) {
    if (report.is_none() || !error.matches(PyExc_Exception)) throw;
    call_python([&] { return report(error.value(), object); });
  }
  return {};
}

/// An object on its way into the queue, for callers that do other work with each attempt. Thread safety: none.
struct PutAttempt {
  Queue& queue;  ///< kept by Python
  Message message;
  Deadline deadline;
};

/// Empty if `report` was told.
std::optional<PutAttempt> begin_put(Queue& queue, nb::handle object, nb::handle block, nb::handle timeout,
                                    nb::handle report) {
  const Deadline deadline = deadline_if(block, timeout);
  if (is_hopeless(queue, deadline)) raise_from_queue("Full");
  std::optional<Message> message = encode_or_report(object, report);
  if (!message) return {};
  return PutAttempt{queue, *std::move(message), deadline};
}

nb::object put_or_full(Queue& queue, nb::handle object, nb::handle block, nb::handle timeout,
                       nb::handle report) {
  const auto putting = begin_put(queue, object, block, timeout, report);
  if (putting && !put_until(queue, putting->message, putting->deadline)) raise_from_queue("Full");
  return nb::none();
}

bool put_at_once(const PutAttempt& putting) {
  const Departure departure(putting.message.tensors);
  return put_now(putting.queue, putting.message, departure, putting.deadline);
}

/// Raises queue.Full also if there is space by now, but the deadline has passed.
void wait_for_space(const PutAttempt& putting) {
  const auto attempt = [&](nanoseconds time) { return putting.queue.wait_for_space(time); };
  if (!wait_until(putting.deadline, attempt)) raise_from_queue("Full");
}

void init_putting(nb::module_& m) {
  nb::class_<PutAttempt>(m, "_Putting")
      .def("at_once", &put_at_once, "Puts the object if there is space now; is it in the queue?")
      .def("wait_for_space", &wait_for_space, "Waits; raises queue.Full when the time is over.");
}

nb::object get_or_empty(Queue& queue, nb::handle block, nb::handle timeout) {
  const Stream stream = stream_to_take_in();
  std::optional<Message> message = get_until(queue, deadline_if(block, timeout), stream);
  if (!message) raise_from_queue("Empty");
  return decode_message(*std::move(message), stream);
}

Queue make_queue(std::int64_t maxsize) {
  return Queue(onecopy::Queue::create({.maxsize = maxsize > 0 ? static_cast<std::uint64_t>(maxsize) : 0}));
}

Queue connect_bytes(nb::bytes handle) {
  const ByteSpan bytes = span_of(handle);
  return Queue(without_gil([&] { return onecopy::Queue::connect(Handle::from_bytes(bytes)); }));
}

/// Objects of daemon threads that wait when the interpreter ends are no leak.
void expect_waiting_threads() {
  Py_AtExit([] {
    if (threads_without_gil != 0) nb::set_leak_warnings(false);
  });
}

void init_messages(nb::class_<Queue>& queue) {
  queue
      .def("put", &put, nb::arg("obj").none(), nb::arg("timeout") = nb::none(),
           nb::sig("def put(self, obj: _T, timeout: float | None = None) -> None"),
           "Put any object that can be pickled; tensors are shared, not copied.\n"
           "\n"
           "Args:\n"
           "    timeout: seconds to wait at most while the queue is full; None for ever.\n"
           "\n"
           "Raises:\n"
           "    Timeout, Closed, OutOfMemory, and exceptions of pickling: nothing was put then.")
      .def("get", &get_object, nb::arg("timeout") = nb::none(),
           nb::sig("def get(self, timeout: float | None = None) -> _T"),
           "The next object.\n"
           "\n"
           "Args:\n"
           "    timeout: seconds to wait at most; None for ever.\n"
           "\n"
           "Raises:\n"
           "    Timeout: nothing came.\n"
           "    Closed: the queue is closed and empty.\n"
           "    StaleHandle, OwnerDied, PeerDied: the object's tensors are lost, and it with them.\n"
           "    OutOfDescriptors, OutOfMappings, OutOfMemory: the object is still in the queue.")
      .def("try_put", &try_put, nb::arg("obj").none(), nb::sig("def try_put(self, obj: _T) -> bool"),
           "Put without waiting; False when the queue is full. Raises as ``put()`` does.")
      .def("try_get", &try_get, nb::arg("default") = nb::none(),
           nb::sig("def try_get(self, default: typing.Any = None) -> typing.Any"),
           "The next object without waiting, or ``default`` when there is none. Raises as ``get()`` does.")
      .def(
          "aget", [](nb::handle q) { return get_async(q, "get"); },
          nb::sig("def aget(self) -> typing.Coroutine[typing.Any, typing.Any, _T]"),
          "Waits for the next object in an event loop of asyncio, without a thread: ``await "
          "queue.aget()``.\n"
          "\n"
          "May be cancelled, also by ``asyncio.timeout()`` and ``asyncio.wait_for()``: an object is taken "
          "only\n"
          "in the step that returns it. Other tasks run between two objects. Raises as ``get()`` does, "
          "but\n"
          "Timeout.")
      .def(
          "__iter__", [](nb::handle q) { return nb::borrow(q); },
          nb::sig("def __iter__(self) -> Queue[_T]"),
          "Returns the queue: ``for obj in queue`` gets objects until the queue is closed and empty.")
      .def("__next__", &next, nb::sig("def __next__(self) -> _T"))
      .def(
          "__aiter__", [](nb::handle q) { return nb::borrow(q); },
          nb::sig("def __aiter__(self) -> Queue[_T]"),
          "Returns the queue: ``async for obj in queue`` is ``aget()`` until the queue is closed and "
          "empty.")
      .def(
          "__anext__", [](nb::handle q) { return get_async(q, "get_next"); },
          nb::sig("def __anext__(self) -> typing.Coroutine[typing.Any, typing.Any, _T]"))
      .def("_put", &put_or_full, nb::arg("obj").none(), nb::arg("block").none(), nb::arg("timeout").none(),
           nb::arg("report") = nb::none())
      .def("_begin_put", &begin_put, nb::arg("obj").none(), nb::arg("block").none(),
           nb::arg("timeout").none(), nb::arg("report").none(), nb::keep_alive<0, 1>())
      .def("_get", &get_or_empty, nb::arg("block").none(), nb::arg("timeout").none());
}

}  // namespace

void init_queue(nb::module_& m) {
  init_putting(m);
  nb::class_<Queue> queue(
      m, "Queue", nb::is_weak_referenceable(), nb::sig("class Queue(typing.Generic[_T])"),
      "Objects, in order, from any number of processes to any number of processes. Given to others\n"
      "as an argument of a process or through another queue.\n"
      "\n"
      "A tensor alone and plain values (None, bool, int, float, complex, str, bytes, tuple, list,\n"
      "dict, and tensors among them) cross without pickle. Tensors are those of onecopy and torch;\n"
      "numpy arrays on memory of onecopy cross as they do. Others of 64 KiB and more are copied once,\n"
      "smaller ones and those of objects are pickled.\n"
      "\n"
      "An object is delivered also if its putter is gone by then. An object whose getter was killed is\n"
      "not delivered again. ``onecopy.multiprocessing.Queue`` has the interface of the standard\n"
      "library's.\n"
      "\n"
      "Args:\n"
      "    maxsize: how many objects it holds at most; 0 means: as many as memory allows.");
  queue.def(nb::new_(&make_queue), nb::arg("maxsize") = 0);
  const nb::object alias = nb::module_::import_("types").attr("GenericAlias");
  queue.attr("__class_getitem__") =
      nb::module_::import_("builtins").attr("classmethod")(alias);  // Queue[int], for annotations
  init_messages(queue);
  expect_waiting_threads();
  queue
      .def(
          "close", [](Queue& q) { without_gil([&] { q.close(); }); },
          "For all processes: puts fail from here on, gets drain the rest.")
      .def_prop_ro("closed", &Queue::is_closed, "Has any process closed it?")
      .def("size", &Queue::size, "Objects in it now; others may change it at any time.")
      .def("empty", &Queue::empty, "Is nothing in it now?")
      .def(
          "fileno", [](const Queue& q) { return without_gil([&] { return q.ready_fd(); }); },
          "Returns a descriptor that select, poll and epoll find readable while ``get()`` would not wait. "
          "It\n"
          "may stay readable a little longer, so use ``try_get()`` then. Do not read or close it. The "
          "first\n"
          "call starts a thread in this process, which sleeps until something comes.")
      .def_prop_ro("maxsize", &Queue::maxsize, "Its bound in objects; 0 means none.")
      .def(
          "__reduce__",
          [](nb::handle q) -> nb::object {
            return nb::module_::import_("onecopy._pickling").attr("reduce_queue")(q);
          },
          nb::sig("def __reduce__(self) -> tuple[typing.Any, ...]"))
      .def("__len__", &Queue::size)
      .def("__bool__", [](const Queue&) { return true; })
      .def(
          "_handle_bytes", [](const Queue& q) { return to_python(q.handle().to_bytes()); },
          "For a process that connects while this one has the queue open.")
      .def(
          "_held_handle_bytes", [](const Queue& q) { return to_python(hold(q.handle()).to_bytes()); },
          "For a process that connects within ten minutes.")
      .def("__repr__", [](const Queue& q) {
        return fmt::format("<onecopy.Queue {}{} objects{}>", q.size(),
                           q.maxsize() ? fmt::format(" of {}", q.maxsize()) : "",
                           q.is_closed() ? ", closed" : "");
      });
  m.def("_connect_queue", &connect_bytes, nb::arg("handle"));
}

}  // namespace onecopy::python
