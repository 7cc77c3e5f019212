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

/// Functions that wait without the GIL, whichever way the interpreter ends.
namespace onecopy::python {

using Clock = std::chrono::steady_clock;

/// Waits for ever. A thread that needs the GIL of an interpreter that is being finalized stops here: its stack cannot
/// be unwound, and the process is about to exit.
[[noreturn]] inline void park() noexcept {
  for (;;) ::pause();
}

/// Calls a function that runs Python code. If CPython ends a daemon thread in the call while the interpreter is being
/// finalized, the thread is parked. Wrap only the call: frames in between are unwound without the GIL.
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

/// Acquires the GIL again. CPython before 3.14 may end a daemon thread here by pthread_exit, which would unwind frames
/// that do not allow it and abort the process; the thread is parked instead.
inline void take_gil(PyThreadState* state) {
  if (is_finalizing() && ::getpid() != ::gettid()) park();
  try {
    PyEval_RestoreThread(state);
  } catch (abi::__forced_unwind&) {
    park();
  }
}

/// Parks a thread that the interpreter ends: nanobind gives a translator of exceptions no exception then.
inline void check_thrown(const std::exception_ptr& thrown) {
  if (thrown) return;
  if (is_finalizing()) park();
  std::terminate();
}

/// The number of bytes from which copies are made without the GIL.
inline constexpr std::size_t kLargeCopy = std::size_t{64} << 10;

/// The number of threads inside without_gil(). Objects of threads that are inside when the interpreter ends are never
/// released, and are not reported as leaks.
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

/// Runs work() with the GIL, in a thread of Python that holds or has released it. REQUIRES: work() does not throw.
template <class Work>
void with_gil(Work&& work) noexcept {
  if (is_finalizing() && ::getpid() != ::gettid()) park();
  const PyGILState_STATE state = call_python([] { return PyGILState_Ensure(); });
  work();
  PyGILState_Release(state);
}

/// Runs Python's handlers of pending signals. Throws their exceptions. REQUIRES: the GIL is not held.
inline void handle_signals() {
  if (::getpid() != ::gettid()) return;
  const nb::gil_scoped_acquire acquire;
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

/// Runs drop() without the GIL, since releasing memory may wait for streams of devices or for other processes. Keeps
/// the GIL while the interpreter is being finalized. REQUIRES: the GIL is held; drop() does not use Python.
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

/// Returns the deadline of a timeout in seconds: None means never, zero and less mean now. Raises TypeError, and
/// InvalidArgument for NaN.
inline Deadline deadline_of_seconds(nb::handle timeout) {
  if (timeout.is_none()) return kForever;
  return Deadline::after_seconds(seconds_of(timeout));
}

/// Returns deadline_of_seconds() for a call without the argument `block`. Raises TypeError for a bool, which is
/// probably a misplaced `block`; `instead` is the advice in the message.
inline Deadline deadline_of(nb::handle timeout, const char* instead = "") {
  if (!PyBool_Check(timeout.ptr())) return deadline_of_seconds(timeout);
  const std::string message = std::string("timeout must be seconds, or None for ever, not ") +
                              (timeout.is(nb::handle(Py_True)) ? "True" : "False") + instead;
  throw nb::type_error(message.c_str());
}

inline constexpr std::chrono::milliseconds kSlice{100};

/// Returns the longest time to wait before looking for signals, which only the main thread handles.
inline std::chrono::nanoseconds longest_slice() noexcept {
  constexpr std::chrono::hours kLong{24};
  return ::getpid() == ::gettid() ? std::chrono::nanoseconds(kSlice) : std::chrono::nanoseconds(kLong);
}

/// Calls attempt(time to wait) without the GIL until it returns true or the deadline has passed. After every slice it
/// runs signal handlers and look(), whose exceptions end the wait. REQUIRES: the GIL is held; an attempt without
/// waiting has failed.
template <class Attempt, class Look>
auto wait_looking(Deadline deadline, std::chrono::nanoseconds slice, Attempt&& attempt, Look&& look) {
  using Result = std::invoke_result_t<Attempt, std::chrono::nanoseconds>;
  for (;;) {
    const std::chrono::nanoseconds left = deadline.left(slice);
    if (left == std::chrono::nanoseconds{0}) return Result{};
    Result result = without_gil([&] { return attempt(left); });
    if (result) return result;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
    drain_decrefs();
    look();
  }
}

/// Calls attempt(). Returns an empty result if another process is stopped while it holds a lock or should answer.
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
