// SPDX-License-Identifier: Apache-2.0
#include "binding/queue.h"

#include <fmt/format.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <optional>
#include <vector>

#include "binding/args.h"
#include "binding/device.h"
#include "onecopy/core/error.h"

/// Puts into and gets from a onecopy.Queue. A call first tries with the GIL held, and releases the GIL only if it has to wait.
namespace onecopy::python {
namespace {

using std::chrono::nanoseconds;

/// Tries to put the message once. Returns whether it is in the queue. If the creator of a segment must be asked first,
/// waits for the creator until the deadline.
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
  // If a device's streams cannot write to host memory, the host waits for the stream, whose work may need the GIL.
  return (departure.needs_a_device ? without_gil(at_once) : at_once()) || without_gil(ask_and_put);
}

bool put_until(Queue& queue, const Message& message, Deadline deadline) {
  const Departure departure(message.tensors);
  return put_now(queue, message, departure, deadline) || wait_until(deadline, [&](nanoseconds time) {
           return unless_stopped([&] { return queue.try_put(message, time, departure.stream); });
         });
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

/// Raises a Timeout that also derives from queue.Empty or queue.Full.
[[noreturn]] void raise_timeout(const char* kind, const char* what, nb::handle timeout) {
  const std::string message = fmt::format("{} within {} s", what, nb::str(timeout).c_str());
  const nb::object make =
      call_python([] { return nb::module_::import_("onecopy.errors").attr("_timeout_of_queue"); });
  raise(call_python([&] {
    return nb::object(nb::steal(PyObject_CallFunction(make.ptr(), "ss", kind, message.c_str())));
  }));
}

/// Returns whether a call that may not wait would find the queue full. Then the value need not be encoded, which moves
/// tensors.
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

void put_nowait(Queue& queue, nb::handle object) { put(queue, object, nb::int_(0)); }
nb::object get_nowait(Queue& queue) { return get_object(queue, nb::int_(0)); }

bool try_put(Queue& queue, nb::handle object) { return encode_and_put(queue, object, kNow); }

/// Returns the next object for a loop. Raises StopIteration once the queue is closed and empty.
nb::object next(Queue& queue) {
  try {
    return get_object(queue, nb::none());
  } catch (const Error& error) {
    if (error.code() != ErrorCode::closed) throw;
    throw nb::stop_iteration();
  }
}

/// Returns a coroutine of onecopy.binding.queue_asyncio, which waits in the event loop of its caller.
nb::object get_async(nb::handle queue, const char* function) {
  const nb::object coroutine = nb::module_::import_("onecopy.binding.queue_asyncio").attr(function);
  return call_python([&] { return coroutine(queue); });
}

nb::object try_get(Queue& queue, nb::object otherwise) {
  const Stream stream = stream_to_take_in();
  std::optional<Message> message = get_until(queue, kNow, stream);
  return message ? decode_message(*std::move(message), stream) : std::move(otherwise);
}

/// Returns the deadline of a call with `block` and `timeout`, the arguments of the standard library's queues.
Deadline deadline_if(nb::handle block, nb::handle timeout) {
  const int is_blocking = PyObject_IsTrue(block.ptr());
  if (is_blocking < 0) throw nb::python_error();
  return is_blocking ? deadline_of_seconds(timeout) : kNow;
}

/// Raises queue.Empty or queue.Full, without a message.
[[noreturn]] void raise_from_queue(const char* name) {
  const nb::object type = nb::module_::import_("queue").attr(name);
  PyErr_SetNone(type.ptr());
  throw nb::python_error();
}

/// Returns the object's message. If pickling throws, passes the exception to `report` and returns nothing; without a
/// `report` it throws. Errors of waiting are always thrown.
std::optional<Message> encode_or_report(nb::handle object, nb::handle report) {
  try {
    return encode_message(object);
  } catch (nb::python_error& error) {
    if (report.is_none() || !error.matches(PyExc_Exception)) throw;
    call_python([&] { return report(error.value(), object); });
  }
  return {};
}

/// A put in progress, for callers that do other work with each attempt. Thread safety: none.
struct PutAttempt {
  Queue& queue;  ///< kept alive by Python
  Message message;
  Deadline deadline;
};

/// Encodes the object. Returns nothing if pickling failed and `report` was called.
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

/// Waits for space. Raises queue.Full once the deadline has passed, even if there is space by then.
void wait_for_space(const PutAttempt& putting) {
  const auto attempt = [&](nanoseconds time) { return putting.queue.wait_for_space(time); };
  if (!wait_until(putting.deadline, attempt)) raise_from_queue("Full");
}

nb::object get_or_empty(Queue& queue, nb::handle block, nb::handle timeout) {
  const Stream stream = stream_to_take_in();
  std::optional<Message> message = get_until(queue, deadline_if(block, timeout), stream);
  if (!message) raise_from_queue("Empty");
  return decode_message(*std::move(message), stream);
}

}  // namespace

void init_putting(nb::module_& m) {
  nb::class_<PutAttempt>(m, "_Putting")
      .def("at_once", &put_at_once, "Puts the object if there is space now. Returns whether it did.")
      .def("wait_for_space", &wait_for_space, "Waits for space. Raises queue.Full after the timeout.");
}

void init_messages(nb::class_<Queue>& queue) {
  queue
      .def(
          "put", &put, nb::arg("obj").none(), nb::arg("timeout") = nb::none(),
          nb::sig("def put(self, obj: _T, timeout: float | None = None) -> None"),
          "Puts any object that can be pickled. Tensors are shared, not copied.\n"
          "\n"
          "Args:\n"
          "    timeout: the maximum time to wait in seconds while the queue is full; None waits for ever.\n"
          "\n"
          "Raises:\n"
          "    Timeout, Closed, OutOfMemory, and exceptions of pickling: nothing was put.")
      .def("get", &get_object, nb::arg("timeout") = nb::none(),
           nb::sig("def get(self, timeout: float | None = None) -> _T"),
           "Returns the next object.\n"
           "\n"
           "Args:\n"
           "    timeout: the maximum time to wait in seconds; None waits for ever.\n"
           "\n"
           "Raises:\n"
           "    Timeout: no object came.\n"
           "    Closed: the queue is closed and empty.\n"
           "    StaleHandle, OwnerDied, PeerDied: the object and its tensors are lost.\n"
           "    OutOfDescriptors, OutOfMappings, OutOfMemory: the object is still in the queue.")
      .def("try_put", &try_put, nb::arg("obj").none(), nb::sig("def try_put(self, obj: _T) -> bool"),
           "Puts an object without waiting. Returns False if the queue is full. Raises as ``put()`` does.")
      .def("try_get", &try_get, nb::arg("default") = nb::none(),
           nb::sig("def try_get(self, default: typing.Any = None) -> typing.Any"),
           "Returns the next object, or ``default`` if the queue is empty. Raises as ``get()`` does.")
      .def("put_nowait", &put_nowait, nb::arg("obj").none(),
           nb::sig("def put_nowait(self, obj: _T) -> None"), "Is ``put(obj, timeout=0)``.")
      .def("get_nowait", &get_nowait, nb::sig("def get_nowait(self) -> _T"), "Is ``get(timeout=0)``.")
      .def(
          "aget", [](nb::handle q) { return get_async(q, "get"); },
          nb::sig("def aget(self) -> typing.Coroutine[typing.Any, typing.Any, _T]"),
          "Waits for the next object without blocking the event loop of asyncio: ``await "
          "queue.aget()``.\n"
          "\n"
          "A cancelled call, also by ``asyncio.timeout()`` or ``asyncio.wait_for()``, loses no object.\n"
          "Other tasks run between two objects. Raises as ``get()`` does, except Timeout.")
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

}  // namespace onecopy::python
