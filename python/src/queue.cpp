// SPDX-License-Identifier: Apache-2.0
#include "onecopy/channel/queue.h"

#include <fmt/format.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "bytes.h"
#include "device.h"
#include "gil.h"
#include "message.h"
#include "onecopy/core/error.h"
#include "onecopy/share/share.h"

/// onecopy.Queue. An attempt is made with the GIL; only whoever has to wait lets go of it.
namespace onecopy::python {
namespace {

using std::chrono::nanoseconds;

/// A queue as Python has it: others run while it is left.
class Queue : public onecopy::Queue {
 public:
  explicit Queue(onecopy::Queue queue) : onecopy::Queue(std::move(queue)) {}
  Queue(Queue&&) = default;
  ~Queue() {
    drop_without_gil([this] { const onecopy::Queue last(std::move(*this)); });
  }
};

bool put_until(Queue& queue, const Message& message, Clock::time_point deadline) {
  const Stream stream = stream_of(message.tensors);
  const auto attempt = [&](nanoseconds time) {
    return unless_stopped([&] { return queue.try_put(message, time, stream); });
  };
  const auto at_once = [&] { return attempt(nanoseconds{0}); };
  const bool on_device = std::any_of(message.tensors.begin(), message.tensors.end(),
                                     [](const Tensor& tensor) { return !is_on_host(tensor); });
  // Hosts of devices whose streams write no words wait for the stream, which may need Python itself.
  return (on_device ? without_gil(at_once) : at_once()) || wait_until(deadline, attempt);
}

std::optional<Message> get_until(Queue& queue, Clock::time_point deadline, Stream stream) {
  const auto attempt = [&](nanoseconds time) {
    return unless_stopped([&] { return queue.try_get(time, stream); });
  };
  std::optional<Message> message = unless_stopped([&] { return queue.try_get_at_once(stream); });
  if (message) return message;
  if (deadline != Clock::time_point::min()) return wait_until(deadline, attempt);
  if (queue.empty() && !queue.is_closed()) return {};
  return without_gil([&] { return attempt(nanoseconds{0}); });
}

[[noreturn]] void throw_timeout(const char* what, nb::handle timeout) {
  throw Error(ErrorCode::timeout, fmt::format("{} within {} s", what, nb::str(timeout).c_str()));
}

/// Would an attempt without waiting fail for want of space? Then nothing need be encoded, which moves tensors.
bool is_hopeless(const Queue& queue, Clock::time_point deadline) {
  return deadline == Clock::time_point::min() && queue.maxsize() != 0 && queue.size() >= queue.maxsize() &&
         !queue.is_closed();
}

bool encode_and_put(Queue& queue, nb::handle object, Clock::time_point deadline) {
  return !is_hopeless(queue, deadline) && put_until(queue, encode_message(object), deadline);
}

void put(Queue& queue, nb::handle object, nb::handle timeout) {
  if (!encode_and_put(queue, object, deadline_of(timeout))) throw_timeout("the queue was full", timeout);
}

nb::object get(Queue& queue, nb::handle timeout) {
  const Stream stream = stream_to_take_in();
  std::optional<Message> message = get_until(queue, deadline_of(timeout), stream);
  if (!message) throw_timeout("nothing came through the queue", timeout);
  return decode_message(*std::move(message), stream);
}

bool try_put(Queue& queue, nb::handle object) {
  return encode_and_put(queue, object, Clock::time_point::min());
}

nb::object try_get(Queue& queue, nb::object otherwise) {
  const Stream stream = stream_to_take_in();
  std::optional<Message> message = get_until(queue, Clock::time_point::min(), stream);
  return message ? decode_message(*std::move(message), stream) : std::move(otherwise);
}

/// For calls with `block` and `timeout`, as the standard library's queues have them.
Clock::time_point deadline_if(nb::handle block, nb::handle timeout) {
  const int is_blocking = PyObject_IsTrue(block.ptr());
  if (is_blocking < 0) throw nb::python_error();
  return is_blocking ? deadline_of(timeout) : Clock::time_point::min();
}

/// queue.Empty or queue.Full, which are exceptions without a message.
[[noreturn]] void raise_from_queue(const char* name) {
  const nb::object type = nb::module_::import_("queue").attr(name);
  PyErr_SetNone(type.ptr());
  throw nb::python_error();
}

/// The object's message; nothing when pickling it threw and `report`, unless that is None, was told. Only what
/// pickling throws is the object's fault: errors of waiting are the caller's to know.
std::optional<Message> encode_or_report(nb::handle object, nb::handle report) {
  try {
    return encode_message(object);
  } catch (nb::python_error& error) {
    if (report.is_none() || !error.matches(PyExc_Exception)) throw;
    call_python([&] { return report(error.value(), object); });
  }
  return {};
}

/// An object on its way into the queue, for callers that do something else with each attempt.
/// Thread safety: none.
struct Putting {
  Queue& queue;  ///< kept by Python
  Message message;
  Clock::time_point deadline;
};

/// Nothing when `report` was told.
std::optional<Putting> begin_put(Queue& queue, nb::handle object, nb::handle block, nb::handle timeout,
                                 nb::handle report) {
  const Clock::time_point deadline = deadline_if(block, timeout);
  if (is_hopeless(queue, deadline)) raise_from_queue("Full");
  std::optional<Message> message = encode_or_report(object, report);
  if (!message) return {};
  return Putting{queue, *std::move(message), deadline};
}

nb::object put_or_full(Queue& queue, nb::handle object, nb::handle block, nb::handle timeout,
                       nb::handle report) {
  const auto putting = begin_put(queue, object, block, timeout, report);
  if (putting && !put_until(queue, putting->message, putting->deadline)) raise_from_queue("Full");
  return nb::none();
}

bool put_at_once(const Putting& putting) {
  return put_until(putting.queue, putting.message, Clock::time_point::min());
}

/// Raises queue.Full also when there is space by now, but the deadline has passed.
void wait_for_space(const Putting& putting) {
  const auto attempt = [&](nanoseconds time) { return putting.queue.wait_for_space(time); };
  if (!wait_until(putting.deadline, attempt)) raise_from_queue("Full");
}

void init_putting(nb::module_& m) {
  nb::class_<Putting>(m, "_Putting")
      .def("at_once", &put_at_once, "Puts the object if there is space now; is it in the queue?")
      .def("wait_for_space", &wait_for_space, "Waits; raises queue.Full when the time is over.");
}

nb::object get_or_empty(Queue& queue, nb::handle block, nb::handle timeout) {
  const Stream stream = stream_to_take_in();
  std::optional<Message> message = get_until(queue, deadline_if(block, timeout), stream);
  if (!message) raise_from_queue("Empty");
  return decode_message(*std::move(message), stream);
}

Queue make(std::int64_t maxsize) {
  return Queue(onecopy::Queue::create({.maxsize = maxsize > 0 ? static_cast<std::uint64_t>(maxsize) : 0}));
}

Queue connect_bytes(nb::bytes handle) {
  const ByteSpan bytes = span_of(handle);
  return Queue(without_gil([&] { return onecopy::Queue::connect(Handle::from_bytes(bytes)); }));
}

/// What daemon threads keep that wait when the interpreter ends is no leak to be warned of.
void expect_waiting_threads() {
  Py_AtExit([] {
    if (threads_without_gil != 0) nb::set_leak_warnings(false);
  });
}

void init_messages(nb::class_<Queue>& queue) {
  queue
      .def("put", &put, nb::arg("obj").none(), nb::arg("timeout") = nb::none(),
           nb::sig("def put(self, obj: object, timeout: float | None = None) -> None"),
           "Put any object that can be pickled; tensors are shared, not copied.\n"
           "\n"
           "Args:\n"
           "    timeout: seconds to wait at most while the queue is full; None for ever.\n"
           "\n"
           "Raises:\n"
           "    Timeout, Closed, OutOfMemory, and what pickling raises: nothing was put then.")
      .def("get", &get, nb::arg("timeout") = nb::none(),
           nb::sig("def get(self, timeout: float | None = None) -> typing.Any"),
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
      .def("try_put", &try_put, nb::arg("obj").none(), nb::sig("def try_put(self, obj: object) -> bool"),
           "Put without waiting; False when the queue is full. Raises as ``put()`` does.")
      .def("try_get", &try_get, nb::arg("default") = nb::none(),
           nb::sig("def try_get(self, default: object = None) -> typing.Any"),
           "The next object without waiting, or ``default`` when there is none. Raises as ``get()`` does.")
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
      m, "Queue", nb::is_weak_referenceable(),
      "Objects, in order, from any number of processes to any number of processes. Given to others\n"
      "as an argument of a process or through another queue.\n"
      "\n"
      "A tensor alone and plain values (None, bool, int, float, complex, str, bytes, tuple, list,\n"
      "dict, and tensors among them) cross without pickle. Tensors are those of onecopy and torch;\n"
      "numpy arrays are pickled, and so copied: put the onecopy.Tensor, and call ``.numpy()`` where\n"
      "it arrives. What was put is delivered also when its putter is gone by then; what a process had\n"
      "got, and was killed with, is not delivered again. ``onecopy.multiprocessing.Queue`` has the\n"
      "interface of the standard library's.\n"
      "\n"
      "Args:\n"
      "    maxsize: how many objects it holds at most; 0 means: as many as memory allows.");
  queue.def(nb::new_(&make), nb::arg("maxsize") = 0);
  init_messages(queue);
  expect_waiting_threads();
  queue
      .def(
          "close", [](Queue& q) { without_gil([&] { q.close(); }); },
          "For all processes: puts fail from here on, gets drain what is there.")
      .def_prop_ro("closed", &Queue::is_closed, "Has any process closed it?")
      .def("size", &Queue::size, "Objects in it now; others may change it at any time.")
      .def("empty", &Queue::empty, "Is nothing in it now?")
      .def(
          "ready_fd", [](const Queue& q) { return without_gil([&] { return q.ready_fd(); }); },
          "A descriptor that select, poll and epoll find readable while ``get()`` would not wait. It may "
          "be\n"
          "so a little longer, so use ``try_get()`` then. It is nobody's to read or close.")
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
