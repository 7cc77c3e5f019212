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

/// A forked process that runs `body` and ends. EXPECT and ASSERT work inside: their failures are
/// printed and counted in the exit status, which join() returns. It dies with the thread that forked
/// it, so no test leaves processes behind.
///
/// Thread safety: used by one thread. Destroying it kills a child that still runs.
class Child {
 public:
  /// Exit status of a body that threw; the message is on stderr.
  static constexpr int kThrew = 101;

  explicit Child(const std::function<void()>& body);
  Child(Child&& other) noexcept;
  Child& operator=(Child&&) = delete;
  ~Child();

  int pid() const noexcept { return pid_; }
  bool has_ended();
  /// Waits for the end. Returns the number of failures inside, kThrew, the body's argument of _exit, or minus the
  /// signal that killed it. At the deadline the child is killed, and the test fails. The deadline is later than that
  /// of an eventually() inside, whose failure says more.
  int join(std::chrono::milliseconds deadline = 2 * kPatience);
  /// Kills it and waits for its end.
  void kill(int signal = SIGKILL);
  /// For SIGSTOP, after which it has stopped, and SIGCONT.
  void signal(int number) noexcept;

 private:
  int pid_;
  bool reaped_ = false;
  int status_ = 0;
};

/// A Child that must end without a failure: its destructor waits for the end and expects that. After a fatal failure of
/// the test it kills the child.
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
