// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cxxabi.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <exception>
#include <optional>
#include <string>
#include <type_traits>

#include "binding/kept.h"
#include "binding/module.h"
#include "onecopy/core/error.h"
#include "os/deadline.h"

/// Waiting without the GIL, independent of the way in which the interpreter ends.
namespace onecopy::python {

using Clock = std::chrono::steady_clock;

/// Waits for ever. A thread that wants the GIL of an interpreter that is going away ends here: its stack cannot be
/// unwound, and the process is about to exit.
[[noreturn]] inline void park() noexcept {
  for (;;) ::pause();
}

/// Calls a function that runs Python code. If the interpreter goes away, a daemon thread may be ended in there, and
/// is parked then. Put it close around the call: frames in between are unwound without the GIL.
template <class Call>
auto call_python(Call&& call) {
  try {
    return call();
  } catch (abi::__forced_unwind&) {
    park();
  }
}

#if defined(Py_LIMITED_API)
// Each interpreter from 3.12 on has one of them, and the stable ABI none.
extern "C" {
[[gnu::weak]] int Py_IsFinalizing();
[[gnu::weak]] int _Py_IsFinalizing();  // NOLINT(bugprone-reserved-identifier): CPython's name
}
#endif

inline bool is_finalizing() noexcept {
#if defined(Py_LIMITED_API)
  return (Py_IsFinalizing ? Py_IsFinalizing() : _Py_IsFinalizing()) != 0;
#elif PY_VERSION_HEX >= 0x030D0000
  return Py_IsFinalizing() != 0;
#else
  return _Py_IsFinalizing() != 0;
#endif
}

/// Takes the GIL again. CPython before 3.14 ends daemon threads here by pthread_exit. That would unwind through
/// frames that do not allow it, and abort the process.
inline void take_gil(PyThreadState* state) {
  if (is_finalizing() && ::getpid() != ::gettid()) park();
  try {
    PyEval_RestoreThread(state);
  } catch (abi::__forced_unwind&) {
    park();
  }
}

/// Copies of so many bytes and more are made without the GIL.
inline constexpr std::size_t kLargeCopy = std::size_t{64} << 10;

/// How many threads are inside of without_gil() now. Threads that are inside when the interpreter ends keep their
/// objects for ever, which is no leak of ours.
inline std::atomic<int> threads_without_gil{0};

/// Runs work() without the GIL. Its exceptions are thrown with the GIL held. REQUIRES: the GIL is held; work() uses
/// nothing of Python.
template <class Work>
auto without_gil(Work&& work) {
  if constexpr (std::is_void_v<std::invoke_result_t<Work>>) {
    without_gil([&] { return work(), true; });
  } else {
    std::optional<std::invoke_result_t<Work>> result;
    std::exception_ptr error;
    threads_without_gil.fetch_add(1, std::memory_order_relaxed);
    PyThreadState* const state = PyEval_SaveThread();
    try {
      result.emplace(work());
    } catch (const std::exception&) {
      error = std::current_exception();
    }
    take_gil(state);
    threads_without_gil.fetch_sub(1, std::memory_order_relaxed);
    if (error) std::rethrow_exception(error);
    return std::move(*result);
  }
}

/// Runs work() with the GIL, in a thread of Python that let go of it or has it. REQUIRES: work() throws nothing.
template <class Work>
void with_gil(Work&& work) noexcept {
  if (is_finalizing() && ::getpid() != ::gettid()) park();
  const PyGILState_STATE state = call_python([] { return PyGILState_Ensure(); });
  work();
  PyGILState_Release(state);
}

/// Runs drop() without the GIL: releasing memory may have to wait for streams of devices or for other processes. If
/// the interpreter goes away, the GIL is kept: no other thread may have it then. REQUIRES: the GIL is held; drop()
/// uses nothing of Python.
template <class Drop>
void drop_without_gil(Drop&& drop) noexcept {
  if (is_finalizing()) drop();
  else without_gil(drop);
}

/// Returns the seconds of a timeout that is not None. Raises TypeError.
inline double seconds_of(nb::handle timeout) {
  const double seconds = PyFloat_AsDouble(timeout.ptr());
  if (seconds != -1.0 || !PyErr_Occurred()) return seconds;
  if (!PyErr_ExceptionMatches(PyExc_TypeError)) throw nb::python_error();
  PyErr_Clear();
  const std::string type = nb::type_name(timeout.type()).c_str();
  throw nb::type_error(("timeout must be a number of seconds or None, not " + type).c_str());
}

/// The deadline of a call with this number of seconds: None is never, zero and less is now. Raises TypeError, and
/// InvalidArgument, a ValueError, for NaN.
inline Deadline deadline_of_seconds(nb::handle timeout) {
  if (timeout.is_none()) return kForever;
  return Deadline::after_seconds(seconds_of(timeout));
}

/// deadline_of_seconds() for calls without `block`. A bool is taken for a misplaced `block` and refused: it would
/// mean a second or no wait. `instead` names the call to use. Raises TypeError.
inline Deadline deadline_of(nb::handle timeout, const char* instead = "") {
  if (!PyBool_Check(timeout.ptr())) return deadline_of_seconds(timeout);
  const std::string message = std::string("timeout must be seconds, or None for ever, not ") +
                              (timeout.is(nb::handle(Py_True)) ? "True" : "False") + instead;
  throw nb::type_error(message.c_str());
}

inline constexpr std::chrono::milliseconds kSlice{100};

/// Only the main thread runs Python's signal handlers, so only it has to look for signals.
inline std::chrono::nanoseconds longest_slice() noexcept {
  constexpr std::chrono::hours kLong{24};
  return ::getpid() == ::gettid() ? std::chrono::nanoseconds(kSlice) : std::chrono::nanoseconds(kLong);
}

/// Calls attempt(time to wait) without the GIL until its result is true or the deadline has passed. In every slice
/// signal handlers run, and look(). An exception of any of them ends the wait. REQUIRES: the GIL is held; an attempt
/// without waiting has failed.
template <class Attempt, class Look>
auto wait_looking(Deadline deadline, std::chrono::nanoseconds slice, Attempt&& attempt, Look&& look) {
  using Result = std::invoke_result_t<Attempt, std::chrono::nanoseconds>;
  for (;;) {
    const std::chrono::nanoseconds left = deadline.left(slice);
    if (left == std::chrono::nanoseconds{0}) return Result{};
    Result result = without_gil([&] { return attempt(left); });
    if (result) return result;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
    drop_unneeded();
    look();
  }
}

/// A queue or pipe while another process is stopped, and keeps its lock or does not answer: no item came, none fits.
template <class Attempt>
auto unless_stopped(Attempt&& attempt) -> decltype(attempt()) {
  try {
    return attempt();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::timeout) throw;
    return {};
  }
}

template <class Attempt>
auto wait_until(Deadline deadline, Attempt&& attempt) {
  return wait_looking(deadline, longest_slice(), std::forward<Attempt>(attempt), [] {});
}

}  // namespace onecopy::python
