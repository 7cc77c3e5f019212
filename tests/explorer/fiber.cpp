// SPDX-License-Identifier: Apache-2.0
// The check of longjmp() takes a switch between stacks for an error.
#undef _FORTIFY_SOURCE
#include "explorer/fiber.h"

#include <csetjmp>
#include <cstdint>
#include <utility>
#include <vector>

#include <ucontext.h>

#ifdef ONECOPY_ASAN_FIBERS
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace onecopy::explorer {

// swapcontext() makes two system calls a switch. It enters a fiber once; after that setjmp and
// longjmp switch in nanoseconds. AddressSanitizer follows swapcontext() only.
constexpr bool kJump = !kAddressSanitizer;

struct Fiber::Context {
  std::vector<std::byte> stack = std::vector<std::byte>(256 << 10);
  ucontext_t here{};
  ucontext_t resumer{};
  std::jmp_buf here_jump{};
  std::jmp_buf resumer_jump{};
  bool entered = false;
#ifdef ONECOPY_ASAN_FIBERS
  const void* resumer_stack = nullptr;
  std::size_t resumer_size = 0;
#endif
};

Fiber::Fiber() : context_(std::make_unique<Context>()) {}

Fiber::~Fiber() = default;

void Fiber::start(std::function<void()> body) {
  Context& c = *context_;
  body_ = std::move(body);
  finished_ = false;
  c.entered = false;
#ifdef ONECOPY_ASAN_FIBERS
  // An abandoned body leaves its frames poisoned.
  __asan_unpoison_memory_region(c.stack.data(), c.stack.size());
#endif
  getcontext(&c.here);
  c.here.uc_stack.ss_sp = c.stack.data();
  c.here.uc_stack.ss_size = c.stack.size();
  c.here.uc_link = nullptr;
  const auto self = reinterpret_cast<std::uintptr_t>(this);
  makecontext(&c.here, reinterpret_cast<void (*)()>(&Fiber::enter), 2,
              static_cast<unsigned>(self & 0xffff'ffffu), static_cast<unsigned>(self >> 32));
}

void Fiber::enter(unsigned low, unsigned high) {
  reinterpret_cast<Fiber*>(std::uintptr_t{high} << 32 | low)->run();
}

void Fiber::run() {
#ifdef ONECOPY_ASAN_FIBERS
  __sanitizer_finish_switch_fiber(nullptr, &context_->resumer_stack, &context_->resumer_size);
#endif
  body_();
  finished_ = true;
  yield();  // never comes back
}

void Fiber::resume() {
  Context& c = *context_;
  if (kJump) {
    if (_setjmp(c.resumer_jump) != 0) return;
    if (c.entered) _longjmp(c.here_jump, 1);
    c.entered = true;
    setcontext(&c.here);
  }
#ifdef ONECOPY_ASAN_FIBERS
  void* fake = nullptr;
  __sanitizer_start_switch_fiber(&fake, c.stack.data(), c.stack.size());
#endif
  swapcontext(&c.resumer, &c.here);
#ifdef ONECOPY_ASAN_FIBERS
  __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#endif
}

void Fiber::yield() {
  Context& c = *context_;
  if (kJump) {
    if (_setjmp(c.here_jump) == 0) _longjmp(c.resumer_jump, 1);
    return;
  }
#ifdef ONECOPY_ASAN_FIBERS
  void* fake = nullptr;
  __sanitizer_start_switch_fiber(&fake, c.resumer_stack, c.resumer_size);
#endif
  swapcontext(&c.here, &c.resumer);
#ifdef ONECOPY_ASAN_FIBERS
  __sanitizer_finish_switch_fiber(fake, &c.resumer_stack, &c.resumer_size);
#endif
}

}  // namespace onecopy::explorer
