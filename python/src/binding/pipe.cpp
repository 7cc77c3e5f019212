// SPDX-License-Identifier: Apache-2.0
#include "binding/pipe.h"

#include <fmt/format.h>
#include <nanobind/stl/string.h>

#include <optional>
#include <utility>
#include <vector>

#include "binding/bytes.h"
#include "binding/device.h"
#include "binding/gil.h"
#include "core/throw_error.h"
#include "value/message.h"

/// Binds onecopy.Pipe, onecopy.PipeEnd and onecopy.PipeHandle.
namespace onecopy::python {

PipeEnd::PipeEnd(Pipe pipe)
    : pipe_(new Pipe(std::move(pipe)), [](Pipe* last) { drop_without_gil([=] { delete last; }); }) {
  import_pickling();
}

std::shared_ptr<Pipe> PipeEnd::use() const {
  if (!pipe_) throw Error(ErrorCode::closed, "this end of the pipe is closed");
  return pipe_;
}

namespace {

using std::chrono::nanoseconds;

nb::tuple make_ends() {
  auto [first, second] = without_gil([] { return Pipe::create(); });
  return nb::make_tuple(nb::cast(PipeEnd(std::move(first))), nb::cast(PipeEnd(std::move(second))));
}

void send(const PipeEnd& end, nb::handle object) {
  const Message message = encode_message(object);
  const Departure departure(message.tensors);
  const std::shared_ptr<Pipe> pipe = end.use();
  without_gil([&] { pipe->send(message, departure.stream); });
}

/// Releases handles that are kept for children that have ended, which would make the children's ends look open.
void let_go_of_ended_children() {
  const nb::object module = nb::steal(PyImport_GetModule(nb::str("onecopy.pickling.children").ptr()));
  if (!module.is_valid()) return;
  const nb::object let_go = module.attr("let_go_of_ended");
  call_python([&] { return let_go(); });
}

/// Calls attempt(pipe, time to wait) until it returns true or the deadline has passed.
template <class Attempt>
auto wait_in(const PipeEnd& end, Deadline deadline, Attempt&& attempt) {
  const std::shared_ptr<Pipe> pipe = end.use();
  const auto try_for = [&](nanoseconds time) {
    return unless_stopped([&] { return attempt(*pipe, time); });
  };
  auto result = without_gil([&] { return try_for(nanoseconds{0}); });
  if (result) return result;
  const auto look = [&] {
    let_go_of_ended_children();
    if (end.is_closed()) throw Error(ErrorCode::closed, "another thread closed this end of the pipe");
  };
  return wait_looking(deadline, kSlice, try_for, look);
}

nb::object recv(const PipeEnd& end, nb::handle timeout) {
  const Stream stream = stream_to_take_in();
  const std::vector<DeviceStream> current = current_streams();
  const CurrentStreams in_order(current);
  std::optional<Message> message = wait_in(
      end, deadline_of(timeout), [&](Pipe& pipe, nanoseconds time) { return pipe.try_recv(time, stream); });
  if (message) return decode_message(*std::move(message), stream);
  throw_error(ErrorCode::timeout, "nothing came through the pipe within {} s", nb::str(timeout).c_str());
}

bool poll(const PipeEnd& end, nb::handle timeout) {
  const Deadline deadline = deadline_of(timeout);
  if (end.use()->poll(nanoseconds{0})) return true;  // does not ask another process
  return wait_in(end, deadline, [](Pipe& pipe, nanoseconds time) { return pipe.poll(time); });
}

PipeEnd connect_handle(const PipeHandle& handle) {
  return PipeEnd(without_gil([&] { return Pipe::connect(handle); }));
}

nb::bytes handle_bytes(const PipeHandle& handle) { return to_python(handle.to_bytes()); }

PipeHandle handle_from_bytes(const nb::bytes& bytes) { return PipeHandle::from_bytes(span_of(bytes)); }

void init_handle(nb::module_& m) {
  nb::class_<PipeHandle>(
      m, "PipeHandle",
      "A handle of one end of a pipe, with which another process connects. The object keeps the end\n"
      "open; its bytes or text do not.")
      .def("to_bytes", &handle_bytes, "Returns bytes for ``from_bytes()`` in the other process.")
      .def_static("from_bytes", &handle_from_bytes, nb::arg("data"),
                  "Returns the handle with these bytes. Raises BadHandle, VersionMismatch.")
      .def("__str__", &PipeHandle::to_text, "Returns a text for ``from_text()`` in the other process.")
      .def_static(
          "from_text", [](const std::string& text) { return PipeHandle::from_text(text); }, nb::arg("text"),
          "Returns the handle with this text. Raises BadHandle, VersionMismatch.");
}

}  // namespace

// NOLINTNEXTLINE(readability-function-size): a list of definitions with their docstrings
void init_pipe(nb::module_& m) {
  init_handle(m);
  m.def("Pipe", &make_ends, nb::sig("def Pipe() -> tuple[PipeEnd, PipeEnd]"),
        "Returns both ends of a new pipe.\n"
        "\n"
        "Pass one end to a child as an argument of its process, and close the end here afterwards. For\n"
        "other processes, send ``handle()``.");
  nb::class_<PipeEnd>(m, "PipeEnd", nb::is_weak_referenceable(),
                      "One end of a pipe. Each end receives the objects that the other end sends.\n"
                      "\n"
                      "Several processes may open the same end; the first to receive gets the object.")
      .def_static("connect", &connect_handle, nb::arg("handle"), "Opens the end of a PipeHandle.")
      .def(
          "handle", [](const PipeEnd& end) { return end.use()->handle(); },
          "Returns a handle with which another process opens this end, too.")
      .def("send", &send, nb::arg("obj").none(), nb::sig("def send(self, obj: object) -> None"),
           "Sends any object that can be pickled. Tensors are shared, not copied.\n"
           "\n"
           "Raises:\n"
           "    Closed: no process holds the other end; the death of the last one may be noticed some\n"
           "        objects late.\n"
           "    OutOfMemory, and exceptions of pickling.")
      .def("recv", &recv, nb::arg("timeout") = nb::none(),
           nb::sig("def recv(self, timeout: float | None = None) -> typing.Any"),
           "Returns the next object.\n"
           "\n"
           "Args:\n"
           "    timeout: the maximum time to wait in seconds; None waits for ever.\n"
           "\n"
           "Raises:\n"
           "    Timeout: no object came.\n"
           "    Closed: all objects were received, and no process holds the other end.\n"
           "    StaleHandle, OwnerDied, PeerDied: the object and its tensors are lost.")
      .def("poll", &poll, nb::arg("timeout").none() = 0.0,
           nb::sig("def poll(self, timeout: float | None = 0.0) -> bool"),
           "Returns whether ``recv()`` would return or raise at once. Waits up to ``timeout`` seconds; "
           "None\n"
           "waits for ever.")
      .def(
          "fileno",
          [](const PipeEnd& end) {
            const std::shared_ptr<Pipe> pipe = end.use();
            return without_gil([&] { return pipe->ready_fd(); });
          },
          "Returns a descriptor that select, poll and epoll find readable while ``poll()`` is true.\n"
          "\n"
          "It may stay readable a little longer. When the last process with the other end dies, it "
          "becomes\n"
          "readable within about a tenth of a second. Do not read or close it. The first call starts a\n"
          "thread in this process, which sleeps until an object comes.")
      .def("close", &PipeEnd::close, "Closes this end in this process. Other methods raise Closed then.")
      .def_prop_ro("closed", &PipeEnd::is_closed, "Whether this process has closed the end.")
      .def(
          "__reduce__",
          [](nb::handle end) -> nb::object {
            return nb::module_::import_("onecopy.pickling.messages").attr("reduce_pipe_end")(end);
          },
          nb::sig("def __reduce__(self) -> tuple[typing.Any, ...]"))
      .def(
          "__enter__", [](nb::handle self) { return nb::borrow(self); },
          nb::sig("def __enter__(self) -> PipeEnd"))
      .def(
          "__exit__", [](PipeEnd& end, const nb::args&) { end.close(); },
          nb::sig("def __exit__(self, *args: object) -> None"))
      .def("__repr__", [](const PipeEnd& end) {
        return end.is_closed() ? std::string("<onecopy.PipeEnd, closed>")
                               : fmt::format("<onecopy.PipeEnd {} objects>", end.use()->size());
      });
}

}  // namespace onecopy::python
