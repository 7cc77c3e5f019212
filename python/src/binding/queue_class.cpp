// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <nanobind/stl/string.h>

#include "binding/args.h"
#include "binding/bytes.h"
#include "binding/open.h"
#include "binding/queue.h"
#include "onecopy/share/share.h"

namespace onecopy::python {
namespace {

Queue make_queue(nb::handle size, bool ends_with_producers) {
  if (!PyIndex_Check(size.ptr()))
    raise_type_error(fmt::format("maxsize must be an int, not {}", short_repr(size)));
  const Py_ssize_t maxsize = PyNumber_AsSsize_t(size.ptr(), PyExc_OverflowError);
  if (maxsize == -1 && PyErr_Occurred()) throw nb::python_error();
  return Queue(onecopy::Queue::create({.maxsize = maxsize > 0 ? static_cast<std::uint64_t>(maxsize) : 0,
                                       .ends_with_producers = ends_with_producers}));
}

Queue connect(nb::handle handle) {
  const Handle from = handle_arg(handle, "handle");
  return Queue(without_gil([&] { return onecopy::Queue::connect(from); }));
}

Queue connect_bytes(const nb::bytes& handle) { return connect(handle); }

/// Excludes objects of daemon threads that wait when the interpreter ends from the report of leaks.
void expect_waiting_threads() {
  Py_AtExit([] {
    if (threads_without_gil != 0) nb::set_leak_warnings(false);
  });
}

}  // namespace

void init_queue(nb::module_& m) {
  init_putting(m);
  nb::class_<Queue> queue(
      m, "Queue", nb::is_weak_referenceable(), nb::sig("class Queue(typing.Generic[_T])"),
      "A queue that passes objects, in order, between any number of processes.\n"
      "\n"
      "Pass the queue to another process as an argument of the process or through another queue.\n"
      "\n"
      "Plain values (None, bool, int, float, complex, str, bytes, tuple, list, dict) and tensors in\n"
      "them are sent without pickle. Tensors of onecopy and torch are shared, and so are numpy arrays\n"
      "on memory of onecopy. Other numpy arrays are copied once if they have 64 KiB or more; smaller\n"
      "arrays and arrays of objects are pickled.\n"
      "\n"
      "Objects are delivered at most once: an object is delivered even if its producer has ended, and\n"
      "is lost if its consumer is killed after ``get()``. ``onecopy.multiprocessing.Queue`` has the\n"
      "interface of the standard library.\n"
      "\n"
      "Args:\n"
      "    maxsize: the maximum number of objects in the queue; 0 for no limit but memory.\n"
      "    ends_with_producers: closes the queue once no process is left that has put an object, as after\n"
      "        a kill: gets return the remaining objects and then raise Closed, and loops end. Without\n"
      "        this, a get waits for other producers.");
  queue.def(nb::new_(&make_queue), nb::arg("maxsize").none() = 0, nb::kw_only(),
            nb::arg("ends_with_producers") = false);
  const nb::object alias = nb::module_::import_("types").attr("GenericAlias");
  queue.attr("__class_getitem__") =
      nb::module_::import_("builtins").attr("classmethod")(alias);  // Queue[int], for annotations
  init_messages(queue);
  expect_waiting_threads();
  queue
      .def_static(
          "connect", &connect, nb::arg("handle").none(),
          nb::sig("def connect(handle: Handle | bytes | bytearray | memoryview | str) -> "
                  "Queue[typing.Any]"),
          "Opens the queue that a program in Python or C++ has made, by its handle, bytes or text.\n"
          "\n"
          "Raises:\n"
          "    StaleHandle, OwnerDied: no process has the queue open.\n"
          "    BadHandle: this is not the handle of a queue.")
      .def(
          "handle", [](const Queue& q) { return q.handle(); },
          "Returns a handle, with which another program opens the queue while any process has the queue\n"
          "open: ``str(queue.handle())`` is a text for ``Queue.connect()``, and for ``Queue::connect()`` "
          "in\n"
          "C++.")
      .def(
          "close", [](Queue& q) { without_gil([&] { q.close(); }); },
          "Closes the queue for all processes: puts fail, and gets return the remaining objects.")
      .def_prop_ro("closed", &Queue::is_closed, "Whether any process has closed the queue.")
      .def("size", &Queue::size,
           "Returns the number of objects in the queue, which other processes may change at any time.")
      .def("empty", &Queue::empty, "Returns whether the queue is empty now.")
      .def(
          "fileno", [](const Queue& q) { return without_gil([&] { return q.ready_fd(); }); },
          "Returns a descriptor that select, poll and epoll find readable while ``get()`` would not wait.\n"
          "\n"
          "It may stay readable a little longer, so call ``try_get()`` then. Do not read or close it. The\n"
          "first call starts a thread in this process, which sleeps until an object comes.")
      .def_prop_ro("maxsize", &Queue::maxsize, "The maximum number of objects; 0 for no limit.")
      .def(
          "__reduce__",
          [](nb::handle q) -> nb::object {
            return nb::module_::import_("onecopy.pickling.messages").attr("reduce_queue")(q);
          },
          nb::sig("def __reduce__(self) -> tuple[typing.Any, ...]"))
      .def("__len__", &Queue::size)
      .def("__bool__", [](const Queue&) { return true; })
      .def(
          "_handle_bytes", [](const Queue& q) { return to_python(q.handle().to_bytes()); },
          "Returns a handle for a process that connects while this process holds the queue open.")
      .def(
          "_held_handle_bytes", [](const Queue& q) { return to_python(hold(q.handle()).to_bytes()); },
          "Returns a handle for a process that connects within ten minutes.")
      .def("__repr__", [](const Queue& q) {
        return fmt::format("<onecopy.Queue {}{} objects{}>", q.size(),
                           q.maxsize() ? fmt::format(" of {}", q.maxsize()) : "",
                           q.is_closed() ? ", closed" : "");
      });
  m.def("_connect_queue", &connect_bytes, nb::arg("handle"));
}

}  // namespace onecopy::python
