// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <shared_mutex>

/// The macros of Clang's thread-safety analysis: a member that is GUARDED_BY() a Mutex is accessed only while the mutex
/// is held, and a function that REQUIRES() one is called only then. Other compilers ignore the macros.
#if defined(__clang__)
#define ONECOPY_ANNOTATION(x) __attribute__((x))
#else
#define ONECOPY_ANNOTATION(x)
#endif

#define CAPABILITY(name) ONECOPY_ANNOTATION(capability(name))
#define SCOPED_CAPABILITY ONECOPY_ANNOTATION(scoped_lockable)
/// Marks a member that is read and written with the lock held; with PT_GUARDED_BY, the object that it points to.
#define GUARDED_BY(mutex) ONECOPY_ANNOTATION(guarded_by(mutex))
#define PT_GUARDED_BY(mutex) ONECOPY_ANNOTATION(pt_guarded_by(mutex))
/// Marks a mutex that is taken after the other one.
#define ACQUIRED_AFTER(mutex) ONECOPY_ANNOTATION(acquired_after(mutex))
/// Marks a function: the caller holds the lock (REQUIRES), must not hold it (EXCLUDES), holds it afterwards (ACQUIRE),
/// or holds it before but not afterwards (RELEASE).
#define REQUIRES(...) ONECOPY_ANNOTATION(requires_capability(__VA_ARGS__))
#define EXCLUDES(...) ONECOPY_ANNOTATION(locks_excluded(__VA_ARGS__))
#define ACQUIRE(...) ONECOPY_ANNOTATION(acquire_capability(__VA_ARGS__))
#define RELEASE(...) ONECOPY_ANNOTATION(release_capability(__VA_ARGS__))
/// Marks the same for readers, several of which may hold the lock at once.
#define REQUIRES_SHARED(...) ONECOPY_ANNOTATION(requires_shared_capability(__VA_ARGS__))
#define ACQUIRE_SHARED(...) ONECOPY_ANNOTATION(acquire_shared_capability(__VA_ARGS__))
#define RELEASE_SHARED(...) ONECOPY_ANNOTATION(release_shared_capability(__VA_ARGS__))
#define TRY_ACQUIRE(...) ONECOPY_ANNOTATION(try_acquire_capability(__VA_ARGS__))
#define ASSERT_CAPABILITY(mutex) ONECOPY_ANNOTATION(assert_capability(mutex))
/// Marks a function whose locks the analysis cannot follow; a comment gives the reason.
#define NO_THREAD_SAFETY_ANALYSIS ONECOPY_ANNOTATION(no_thread_safety_analysis)

namespace onecopy {

/// A std::mutex that the analysis can check.
class CAPABILITY("mutex") Mutex {
 public:
  void lock() ACQUIRE() { mutex_.lock(); }
  void unlock() RELEASE() { mutex_.unlock(); }
  bool try_lock() TRY_ACQUIRE(true) { return mutex_.try_lock(); }
  /// Tells the analysis, in a lambda, that the enclosing function holds the lock.
  void assert_held() const ASSERT_CAPABILITY(this) {}

 private:
  friend class Condition;
  std::mutex mutex_;
};

/// A std::shared_mutex that the analysis can check.
class CAPABILITY("shared_mutex") SharedMutex {
 public:
  void lock() ACQUIRE() { mutex_.lock(); }
  void unlock() RELEASE() { mutex_.unlock(); }
  void lock_shared() ACQUIRE_SHARED() { mutex_.lock_shared(); }
  void unlock_shared() RELEASE_SHARED() { mutex_.unlock_shared(); }

 private:
  std::shared_mutex mutex_;
};

/// A scope that holds a SharedMutex as its only writer.
class SCOPED_CAPABILITY WriterLock {
 public:
  explicit WriterLock(SharedMutex& mutex) ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  ~WriterLock() RELEASE() { mutex_.unlock(); }
  WriterLock& operator=(WriterLock&&) = delete;

 private:
  SharedMutex& mutex_;
};

/// A scope that holds a SharedMutex beside other readers.
class SCOPED_CAPABILITY ReaderLock {
 public:
  explicit ReaderLock(SharedMutex& mutex) ACQUIRE_SHARED(mutex) : mutex_(mutex) { mutex_.lock_shared(); }
  ~ReaderLock() RELEASE() { mutex_.unlock_shared(); }
  ReaderLock& operator=(ReaderLock&&) = delete;

 private:
  SharedMutex& mutex_;
};

/// A scope that holds a Mutex.
class SCOPED_CAPABILITY LockGuard {
 public:
  explicit LockGuard(Mutex& mutex) ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  /// Takes over a mutex that the caller has locked.
  LockGuard(Mutex& mutex, std::adopt_lock_t) REQUIRES(mutex) : mutex_(mutex) {}
  ~LockGuard() RELEASE() { mutex_.unlock(); }
  LockGuard& operator=(LockGuard&&) = delete;

 private:
  Mutex& mutex_;
};

/// A scope that holds a Mutex and may release it for a while.
class SCOPED_CAPABILITY ReleasableLock {
 public:
  explicit ReleasableLock(Mutex& mutex) ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  ~ReleasableLock() RELEASE() {
    if (is_held_) mutex_.unlock();
  }
  ReleasableLock& operator=(ReleasableLock&&) = delete;

  void lock() ACQUIRE() {
    mutex_.lock();
    is_held_ = true;
  }
  void unlock() RELEASE() {
    is_held_ = false;
    mutex_.unlock();
  }

 private:
  Mutex& mutex_;
  bool is_held_ = true;
};

/// A condition variable for data that a Mutex guards.
class Condition {
 public:
  void wait(Mutex& mutex) REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    changed_.wait(lock);
    lock.release();
  }
  /// Waits until a notification or the deadline. Returns false at the deadline.
  template <class Clock, class Duration>
  bool wait_until(Mutex& mutex, const std::chrono::time_point<Clock, Duration>& deadline) REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    const bool is_early = changed_.wait_until(lock, deadline) == std::cv_status::no_timeout;
    lock.release();
    return is_early;
  }
  void notify_one() noexcept { changed_.notify_one(); }
  void notify_all() noexcept { changed_.notify_all(); }

 private:
  std::condition_variable changed_;
};

}  // namespace onecopy
