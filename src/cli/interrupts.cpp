// SPDX-License-Identifier: Apache-2.0
#include "interrupts.h"

#include <csignal>
#include <ctime>

#include "onecopy/core/error.h"

namespace onecopy::cli {
namespace {

sigset_t ending_signals() noexcept {
  sigset_t set;
  ::sigemptyset(&set);
  for (int signal : {SIGINT, SIGTERM, SIGHUP}) ::sigaddset(&set, signal);
  return set;
}

}  // namespace

Interrupts::Interrupts() {
  const sigset_t set = ending_signals();
  ::pthread_sigmask(SIG_BLOCK, &set, nullptr);
  ::signal(SIGPIPE, SIG_IGN);
}

bool Interrupts::pending() noexcept { return wait_for(std::chrono::nanoseconds{0}); }

bool Interrupts::wait_for(std::chrono::nanoseconds time) noexcept {
  const sigset_t set = ending_signals();
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(time);
  const timespec most{static_cast<time_t>(seconds.count()), static_cast<long>((time - seconds).count())};
  if (!seen_ && ::sigtimedwait(&set, nullptr, &most) > 0) seen_ = true;
  return seen_;
}

void Interrupts::check() {
  if (pending()) throw Error(ErrorCode::closed, "interrupted");
}

void Interrupts::wait() noexcept {
  while (!wait_for(std::chrono::hours(24))) {
  }
}

}  // namespace onecopy::cli
