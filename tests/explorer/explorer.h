// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace onecopy::explorer {

/// The next operation of a virtual thread on an object. Two operations on one object are dependent unless both read;
/// only the order of dependent ones can matter.
enum class Kind : std::uint8_t {
  read,
  write,
  wait,  ///< a write that becomes possible through others and undoes nothing: never tried earlier
};

using ObjectId = std::uint32_t;
inline constexpr ObjectId kNoObject = 0;

/// Numbers the objects of one execution; equal in every execution as long as set-up is equal.
ObjectId new_object() noexcept;

/// A scheduling point: returns once this virtual thread is chosen to act on `object`, which it does
/// before its next scheduling point. `possible` (may be empty) says when it may be chosen. Outside of
/// virtual threads, in set-up and final checks, it returns at once.
void step(Kind kind, ObjectId object, const std::function<bool()>* possible = nullptr);

/// A property does not hold. The execution ends here, the search too, and the trace is kept.
void fail(const char* what);
inline void require(bool holds, const char* what) {
  if (!holds) fail(what);
}

/// std::atomic for virtual threads: every operation is a scheduling point.
template <class T>
class Atomic {
 public:
  Atomic() noexcept : Atomic(T{}) {}
  explicit Atomic(T value) noexcept : id_(new_object()), value_(value) {}
  Atomic(const Atomic&) = delete;
  Atomic& operator=(const Atomic&) = delete;

  T load() const noexcept { return step(Kind::read, id_), value_; }
  void store(T value) noexcept { step(Kind::write, id_), value_ = value; }
  T exchange(T value) noexcept { return step(Kind::write, id_), std::exchange(value_, value); }
  T fetch_add(T by) noexcept {
    return change([&](T v) { return static_cast<T>(v + by); });
  }
  T fetch_sub(T by) noexcept {
    return change([&](T v) { return static_cast<T>(v - by); });
  }
  T fetch_or(T bits) noexcept {
    return change([&](T v) { return static_cast<T>(v | bits); });
  }

 private:
  template <class F>
  T change(const F& f) noexcept {
    step(Kind::write, id_);
    return std::exchange(value_, f(value_));
  }

  ObjectId id_;
  T value_;
};

/// A mutex for virtual threads.
class Lock {
 public:
  Lock() noexcept : id_(new_object()) {}
  void lock();
  void unlock();

 private:
  ObjectId id_;
  bool held_ = false;
  std::function<bool()> free_ = [this] { return !held_; };
};

/// A process: threads that can be killed together, between any two of their steps.
class Process {
 public:
  Process() noexcept : id_(new_object()) {}
  ObjectId id() const noexcept { return id_; }
  /// All its threads stop where they are.
  void kill();
  /// Killed, or all its threads have ended?
  bool is_gone() const;
  /// Returns once it is, as a pidfd reports.
  void wait_until_gone();

 private:
  ObjectId id_;
};

/// A socket with one receiver. Packets of a process stay there after its end.
class Mailbox {
 public:
  explicit Mailbox(const Process& sender) noexcept : id_(new_object()), sender_(sender) {}
  void send();
  /// Waits for a message. False: there is none, and the sender is gone.
  bool receive();

 private:
  ObjectId id_;
  const Process& sender_;
  int sent_ = 0;
  std::function<bool()> ready_ = [this] { return sent_ != 0 || sender_.is_gone(); };
};

/// The machine that protocol code is instantiated with.
struct Virtual {
  template <class T>
  using Atomic = explorer::Atomic<T>;
};

/// Adds a virtual thread. Called by a scenario's constructor.
void thread(const char* name, const Process& process, std::function<void()> body);

struct Result {
  std::uint64_t executions = 0;  ///< run to their end
  std::uint64_t redundant = 0;   ///< cut short: equivalent to one already run
  std::uint64_t steps = 0;
  std::uint64_t longest = 0;       ///< steps of the longest execution
  bool complete = false;           ///< every interleaving was covered
  std::string violation;           ///< empty: none
  std::vector<std::string> trace;  ///< of the violation: the points that each thread passed, in order
  std::string text() const;
};

struct Limits {
  std::uint64_t executions = 2'000'000;
  bool reduce = true;  ///< leave out interleavings that differ in the order of independent steps only
};

/// A scenario's threads are added by its constructor; finish() checks the quiet end.
class Scenario {
 public:
  virtual ~Scenario() = default;
  virtual void finish() = 0;
};
using MakeScenario = std::function<std::unique_ptr<Scenario>()>;

/// Runs a scenario through all its interleavings (sequentially consistent), depth first, without
/// storing states: each execution starts anew and follows a prefix of choices. Of executions that
/// differ only in the order of independent steps one is run: source sets and sleep sets (Abdulla,
/// Aronis, Jonsson, Sagonas: Optimal dynamic partial order reduction, POPL 2014).
Result explore(const MakeScenario& make, Limits limits = {});

template <class S>
Result explore(Limits limits = {}) {
  return explore([] { return std::make_unique<S>(); }, limits);
}

}  // namespace onecopy::explorer
