// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <csignal>
#include <cstddef>
#include <functional>
#include <new>

#include "os/mapping.h"
#include "os/memfd.h"
#include "support/eventually.h"

namespace onecopy::testing {

/// A forked process that runs `body` and ends. EXPECT and ASSERT work in the body: their failures are printed and
/// counted in the exit status, which join() returns. The child dies with the thread that forked it, so no test leaves
/// processes behind.
///
/// Thread safety: used by one thread. The destructor kills a child that still runs.
class Child {
 public:
  /// The exit status of a body that threw; the message is printed to stderr.
  static constexpr int kThrew = 101;

  explicit Child(const std::function<void()>& body);
  Child(Child&& other) noexcept;
  Child& operator=(Child&&) = delete;
  ~Child();

  int pid() const noexcept { return pid_; }
  bool has_ended();
  /// Waits until the child ends. Returns the number of failures in the body, kThrew, the body's argument of _exit, or
  /// minus the signal that killed the child. At the deadline it kills the child, and the test fails. The deadline is
  /// later than the deadline of an eventually() in the body, whose failure says more.
  int join(std::chrono::milliseconds deadline = 2 * kPatience);
  /// Kills the child and waits until it has ended.
  void kill(int signal = SIGKILL);
  /// Sends a signal. After SIGSTOP, waits until the child has stopped.
  void signal(int number) noexcept;

 private:
  int pid_;
  bool reaped_ = false;
  int status_ = 0;
};

/// A Child that must end without a failure: its destructor waits for the child and checks the status. After a fatal
/// failure of the test it kills the child.
class JoinedChild : public Child {
 public:
  using Child::Child;
  ~JoinedChild();
};

/// A T in memory that later children share with the test: flags, counters, RobustMutex.
template <class T>
class Shared {
 public:
  Shared() : memory_(Mapping::of(create_memfd("test", sizeof(T)), sizeof(T), Access::read_write)) {
    new (memory_.data()) T();
  }

  T& operator*() const noexcept { return *memory_.as<T>(); }
  T* operator->() const noexcept { return memory_.as<T>(); }

 private:
  Mapping memory_;
};

}  // namespace onecopy::testing
