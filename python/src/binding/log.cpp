// SPDX-License-Identifier: Apache-2.0
#include "os/log.h"

#include <nanobind/stl/string.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <utility>
#include <vector>

#include "binding/gil.h"
#include "binding/module.h"
#include "os/blocked_signals.h"
#include "os/fork_hook.h"
#include "os/mutex.h"

/// Passes lines of the library to Python's logging. Any thread may log while it holds locks of the library, so it must
/// not wait for the GIL. A separate thread, which the first line starts, passes the lines on.
namespace onecopy::python {
namespace {

struct Line {
  LogLevel level;
  std::string text;
};

/// The lines that wait to be passed on. Thread safety: all functions may be called concurrently. Never destroyed, since
/// its thread waits in it.
class Lines {
 public:
  void push(Line line) {
    const LockGuard lock(mutex_);
    lines_.push_back(std::move(line));
    if (!std::exchange(has_thread_, true)) start();
    more_.notify_one();
  }

  /// Takes all lines when the thread has handed over those that it took, or after 5 s, since a handler may never return.
  std::vector<Line> take_last() {
    const LockGuard lock(mutex_);
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(5);
    while (is_handing_over_ && handed_over_.wait_until(mutex_, until)) continue;
    return std::exchange(lines_, {});
  }

 private:
  void start() {
    const BlockedSignals blocked;  // the thread inherits it: handlers run elsewhere
    std::thread([this] { run(); }).detach();
  }
  void wait() {
    const LockGuard lock(mutex_);
    while (lines_.empty()) more_.wait(mutex_);
  }
  std::vector<Line> take() {
    const LockGuard lock(mutex_);
    is_handing_over_ = true;
    return std::exchange(lines_, {});
  }
  void end_hand_over() {
    const LockGuard lock(mutex_);
    is_handing_over_ = false;
    handed_over_.notify_all();
  }
  [[noreturn]] void run();

  Mutex mutex_;
  Condition more_, handed_over_;
  std::vector<Line> lines_ GUARDED_BY(mutex_);
  bool has_thread_ GUARDED_BY(mutex_) = false, is_handing_over_ GUARDED_BY(mutex_) = false;
};

std::atomic<Lines*> g_lines{nullptr};

int level_of_python(LogLevel level) noexcept {
  switch (level) {
    case LogLevel::debug: return 10;
    case LogLevel::info: return 20;
    case LogLevel::warning: return 30;
    case LogLevel::error: return 40;
  }
  return 40;
}

/// Passes lines to onecopy.binding.log.emit(). Handlers report their own exceptions. REQUIRES: the GIL.
void hand_over(const std::vector<Line>& lines) {
  try {
    const nb::object emit =
        call_python([] { return nb::module_::import_("onecopy.binding.log").attr("emit"); });
    for (const Line& line : lines) {
      const nb::str text(line.text.data(), line.text.size());
      call_python([&] { return emit(level_of_python(line.level), text); });
    }
  } catch (nb::python_error& error) {
    error.restore();
    PyErr_WriteUnraisable(nullptr);
  }
}

void Lines::run() {
  ::pthread_setname_np(::pthread_self(), "onecopy-log");
  for (;;) {
    wait();
    if (is_finalizing()) park();
    const PyGILState_STATE state = call_python([] { return PyGILState_Ensure(); });
    hand_over(take());
    end_hand_over();
    PyGILState_Release(state);
  }
}

void sink(LogLevel level, std::string_view text) { g_lines.load()->push({level, std::string(text)}); }

/// Passes on the remaining lines; later lines go to stderr. REQUIRES: the GIL.
void stop() {
  set_log_sink(nullptr);
  if (Lines* const lines = g_lines.load()) hand_over(without_gil([lines] { return lines->take_last(); }));
}

void log_line(const std::string& level, const std::string& text) {
  without_gil([&] {
    if (level == "error") return log_error(text);
    if (level == "warning") return log_warning(text);
    if (level == "info") return log_info(text);
    log_debug(text);
  });
}

/// A forked child has no thread, and another thread's lock may be held for ever.
const ForkHook kLinesAtFork{ForkRank::leaves, {.in_child = [] {
                              if (g_lines.load()) g_lines.store(new Lines);
                            }}};

void start() {
  g_lines.store(new Lines);
  set_log_sink(&sink);
}

}  // namespace

void init_log(nb::module_& m) {
  m.def("_start_log", &start, "Makes the library pass its log lines to onecopy.binding.log.emit().");
  m.def("_stop_log", &stop, "Makes the library write its log lines to stderr again.");
  m.def("_log_line", &log_line, nb::arg("level"), nb::arg("text"),
        "Logs a line through the library, for tests.");
}

}  // namespace onecopy::python
