// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#if defined(__has_feature)
#define ONECOPY_HAS_FEATURE(x) __has_feature(x)
#else
#define ONECOPY_HAS_FEATURE(x) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || ONECOPY_HAS_FEATURE(address_sanitizer)
#define ONECOPY_ASAN_FIBERS 1
#endif
#if defined(__SANITIZE_THREAD__) || ONECOPY_HAS_FEATURE(thread_sanitizer)
#define ONECOPY_TSAN_FIBERS 1
#endif

namespace onecopy::explorer {

#ifdef ONECOPY_ASAN_FIBERS
inline constexpr bool kAddressSanitizer = true;
#else
inline constexpr bool kAddressSanitizer = false;
#endif
#ifdef ONECOPY_TSAN_FIBERS
inline constexpr bool kThreadSanitizer = true;
#else
inline constexpr bool kThreadSanitizer = false;
#endif

/// A virtual thread: runs on a stack of its own until it calls yield(), and goes on with the next
/// resume(). One that is never resumed again is abandoned where it stands, as if killed: nothing on
/// its stack is destroyed.
/// Thread safety: none; all fibers run on the thread that resumes them.
class Fiber {
 public:
  Fiber();
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// Begins anew, abandoning what it did before.
  void start(std::function<void()> body);
  /// Runs until the body yields or ends. REQUIRES: started, not finished.
  void resume();
  /// Back to the thread that resumed. Called by the body only.
  void yield();
  bool finished() const noexcept { return finished_; }

 private:
  struct Context;
  static void enter(unsigned low, unsigned high);
  void run();

  std::unique_ptr<Context> context_;
  std::function<void()> body_;
  bool finished_ = true;
};

}  // namespace onecopy::explorer
