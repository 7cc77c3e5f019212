// SPDX-License-Identifier: Apache-2.0
#include "onecopy/channel/listener.h"

#include <nanobind/stl/string.h>

#include <utility>

#include "binding/args.h"
#include "binding/bytes.h"
#include "binding/gil.h"
#include "binding/pipe.h"
#include "onecopy/core/error.h"

/// Binds onecopy.Listener and onecopy.connect.
namespace onecopy::python {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

/// The listener of Python. One thread at a time may accept; any thread may close it.
class SharedListener {
 public:
  explicit SharedListener(Listener listener)
      : listener_(std::make_shared<Listener>(std::move(listener))), address_(listener_->address()) {}

  const std::string& address() const noexcept { return address_; }
  void close() noexcept {
    refused_ = refused();
    listener_.reset();
  }
  bool is_closed() const noexcept { return !listener_; }
  std::uint64_t refused() const noexcept { return listener_ ? listener_->refused() : refused_; }
  std::optional<Pipe> accept(Deadline deadline);
  int ready_fd() const;

 private:
  struct Turn {
    bool& busy;
    ~Turn() { busy = false; }
  };

  std::shared_ptr<Listener> listener_;  ///< shared with the call of accept() that waits
  std::string address_;
  std::uint64_t refused_ = 0;  ///< until it was closed
  bool is_accepting_ = false;
};

std::optional<Pipe> SharedListener::accept(Deadline deadline) {
  if (!listener_) throw Error(ErrorCode::closed, "the listener is closed");
  if (is_accepting_)
    throw Error(ErrorCode::invalid_argument, "another thread is in this listener's accept()");
  is_accepting_ = true;
  const Turn turn{is_accepting_};
  const std::shared_ptr<Listener> listener = listener_;
  const auto attempt = [&](nanoseconds time) {
    return listener->try_accept(std::chrono::duration_cast<milliseconds>(time));
  };
  if (auto pipe = without_gil([&] { return attempt(nanoseconds{0}); })) return pipe;
  return wait_looking(deadline, kSlice, attempt, [this] {
    if (!listener_) throw Error(ErrorCode::closed, "another thread closed the listener");
  });
}

int SharedListener::ready_fd() const {
  if (!listener_) throw Error(ErrorCode::closed, "the listener is closed");
  if (is_accepting_)
    throw Error(ErrorCode::invalid_argument, "another thread is in this listener's accept()");
  return listener_->ready_fd();
}

/// Returns the address, or raises an error with advice for the forms that multiprocessing.connection accepts.
std::string address_arg(nb::handle value) {
  if (nb::isinstance<nb::str>(value)) return text_of(value, "address");
  std::string message =
      "address must be a str such as \"unix:/path\", \"unix:@name\" or \"tcp:127.0.0.1:0\", not " +
      short_repr(value);
  if (PyTuple_Check(value.ptr()) && NB_TUPLE_GET_SIZE(value.ptr()) == 2)
    message += std::string("; write \"tcp:") +
               nb::str(nb::handle(NB_TUPLE_GET_ITEM(value.ptr(), 0))).c_str() + ":" +
               nb::str(nb::handle(NB_TUPLE_GET_ITEM(value.ptr(), 1))).c_str() + "\"";
  raise_type_error(message);
}

nb::bytes key_arg(nb::handle value) {
  if (nb::isinstance<nb::bytes>(value)) return nb::borrow<nb::bytes>(value);
  raise_type_error("key must be bytes, not " + short_repr(value) +
                   (nb::isinstance<nb::str>(value) ? "; its .encode() is" : ""));
}

SharedListener listen(nb::handle at, nb::handle with) {
  const std::string address = address_arg(at);
  const nb::bytes key = key_arg(with);
  return SharedListener(without_gil([&] { return Listener::listen(address, span_of(key)); }));
}

PipeEnd accept(SharedListener& listener, nb::handle timeout) {
  std::optional<Pipe> pipe = listener.accept(deadline_of(timeout));
  if (pipe) return PipeEnd(*std::move(pipe));
  throw Error(ErrorCode::timeout,
              std::string("no client connected within ") + nb::str(timeout).c_str() + " s");
}

PipeEnd connect_to(nb::handle to, nb::handle key, nb::handle timeout) {
  const std::string address = address_arg(to);
  const nb::bytes secret = key_arg(key);
  const Deadline deadline = deadline_of(timeout);
  ConnectionAttempt connecting(address, span_of(secret));
  const auto attempt = [&](nanoseconds time) {
    return connecting.try_finish(std::chrono::ceil<milliseconds>(time));
  };
  std::optional<Pipe> pipe = without_gil([&] { return attempt(nanoseconds{0}); });
  if (!pipe) pipe = wait_until(deadline, attempt);
  if (pipe) return PipeEnd(*std::move(pipe));
  throw Error(ErrorCode::timeout,
              "the listener at " + address + " did not answer within " + nb::str(timeout).c_str() + " s");
}

}  // namespace

void init_listener(nb::module_& m) {
  nb::class_<SharedListener>(
      m, "Listener",
      "A listener that accepts processes of this host that know the key, and makes a pipe with each.\n"
      "\n"
      "Both sides prove that they know the key, which is never sent.\n"
      "\n"
      "Args:\n"
      "    address: ``unix:/path``, ``unix:@name`` or ``tcp:127.0.0.1:port`` (port 0: any free port).\n"
      "    key: any bytes, at least one.")
      .def(nb::new_(&listen), nb::arg("address").none(), nb::arg("key").none(),
           "Raises InvalidArgument for other addresses and an empty key, System when the address is\n"
           "taken.")
      .def_prop_ro("address", &SharedListener::address, "The address to connect to, with the actual port.")
      .def("accept", &accept, nb::arg("timeout") = nb::none(),
           nb::sig("def accept(self, timeout: float | None = None) -> PipeEnd"),
           "Returns this side's end of the pipe with the next client that knows the key.\n"
           "\n"
           "Other clients are refused and do not end the wait; ``refused`` counts them.\n"
           "\n"
           "Args:\n"
           "    timeout: the maximum time to wait in seconds; None waits for ever.\n"
           "\n"
           "Raises:\n"
           "    Timeout, Closed.")
      .def("fileno", &SharedListener::ready_fd,
           "Returns a descriptor that select, poll and epoll find readable while a client connects.\n"
           "\n"
           "Call ``accept(timeout=0)`` then. It may raise Timeout, since a client connects in several\n"
           "steps. Do not read or close the descriptor.")
      .def_prop_ro(
          "refused", &SharedListener::refused,
          "The number of clients that were refused: they did not know the key, or ran as another user.\n"
          "The first refusal is logged as a warning.")
      .def("close", &SharedListener::close, "Closes the listener. Existing pipes stay open.")
      .def_prop_ro("closed", &SharedListener::is_closed, "Whether this process has closed the listener.")
      .def(
          "__enter__", [](nb::handle self) { return nb::borrow(self); },
          nb::sig("def __enter__(self) -> Listener"))
      .def(
          "__exit__", [](SharedListener& listener, const nb::args&) { listener.close(); },
          nb::sig("def __exit__(self, *args: object) -> None"))
      .def("__repr__", [](const SharedListener& listener) {
        return "<onecopy.Listener at " + listener.address() + (listener.is_closed() ? ", closed>" : ">");
      });
  m.def("connect", &connect_to, nb::arg("address").none(), nb::arg("key").none(),
        nb::arg("timeout").none() = 10.0,
        nb::sig("def connect(address: str, key: bytes, timeout: float | None = 10.0) -> PipeEnd"),
        "Connects to a listener. Returns this side's end of a new pipe.\n"
        "\n"
        "Args:\n"
        "    address: the listener's address.\n"
        "    key: the listener's key.\n"
        "    timeout: the maximum time to wait in seconds; None waits for ever.\n"
        "\n"
        "Raises:\n"
        "    PeerDied: no process listens at the address.\n"
        "    BadSecret: the listener uses another key.\n"
        "    OtherUser: the listener on a Unix socket belongs to another user.\n"
        "    Timeout: the listener did not answer.");
}

}  // namespace onecopy::python
