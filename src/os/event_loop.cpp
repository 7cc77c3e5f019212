// SPDX-License-Identifier: Apache-2.0
#include "os/event_loop.h"

#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <exception>
#include <set>
#include <string>
#include <system_error>

#include "core/point.h"
#include "onecopy/core/error.h"
#include "os/blocked_signals.h"
#include "os/log.h"

namespace onecopy {
namespace {

constexpr std::uint64_t kWakeToken = 0;

/// Logs each text once, since an error at one packet recurs at the next thousand. Logs a lack of descriptors once, too,
/// because its text names another file each time.
void say_once(const std::exception& e) {
  constexpr std::size_t kMaxTexts = 64;
  thread_local std::set<std::string> said;
  if (said.size() >= kMaxTexts) said.clear();
  const std::string text = fmt::format("a background thread of onecopy: {}", e.what());
  const auto* error = dynamic_cast<const Error*>(&e);
  const bool is_lack = error && error->code() == ErrorCode::out_of_descriptors;
  if (said.insert(is_lack ? "no descriptors" : text).second) log_warning(text);
}

/// Runs `f` and logs its exception. Returns false if it threw.
template <class F>
bool run_logged(const F& f) noexcept {
  try {
    f();
    return true;
  } catch (const std::exception& e) {
    try {
      say_once(e);
    } catch (const std::exception&) {  // no memory for the words either
    }
  }
  return false;
}

}  // namespace

EventLoop::EventLoop(const char* thread_name)
    : thread_name_(thread_name), poller_(std::in_place), wake_(std::in_place) {
  poller_->add(wake_->fd(), kWakeToken);
}

void EventLoop::add(int fd, Task handler, bool edge, bool writable) {
  const LockGuard lock(mutex_);
  ensure_thread();  // first, because after a failure nothing may be left that calls `handler`
  const std::uint64_t token = ++last_token_;
  auto called = std::make_shared<Task>(std::move(handler));
  std::map<int, std::uint64_t> number{{fd, token}};  // afterwards only the system can fail
  std::map<std::uint64_t, Entry> entry{{token, Entry{fd, edge, writable, std::move(called)}}};
  poller_->add(fd, token, edge, writable);
  entries_.merge(entry);
  token_of_.erase(fd);
  token_of_.merge(number);
}

void EventLoop::rearm(int fd) {
  if (!poller_) return;
  const LockGuard lock(mutex_);
  const auto at = token_of_.find(fd);
  if (at == token_of_.end()) return;
  const Entry& entry = entries_[at->second];
  poller_->rearm(fd, at->second, entry.edge, entry.writable);
}

void EventLoop::remove(int fd) noexcept {
  if (!poller_) return;
  const LockGuard lock(mutex_);
  const auto at = token_of_.find(fd);
  if (at == token_of_.end()) return;
  poller_->remove(fd);
  entries_.erase(at->second);
  token_of_.erase(at);
}

void EventLoop::ensure_thread() {
  wanted_ = true;
  if (thread_.joinable() || stopping_) return;
  const BlockedSignals blocked;
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error& e) {
    throw Error(ErrorCode::out_of_memory,
                fmt::format("cannot start the thread {}: {}; raise the limit of processes "
                            "(`ulimit -u`) or of address space (`ulimit -v`)",
                            thread_name_, e.what()),
                e.code().value(), ErrorDomain::posix);
  }
}

/// Starts the thread. Returns false if the system's limit of threads is reached.
bool EventLoop::try_thread() noexcept {
  return run_logged([&] {
    mutex_.assert_held();
    ensure_thread();
  });
}

void EventLoop::start() {
  const LockGuard lock(mutex_);
  ensure_thread();
}

void EventLoop::stay_awake(std::chrono::microseconds max) noexcept { awake_until_ = Clock::now() + max; }

void EventLoop::stop() noexcept {
  {
    // The lock makes a thread visible that another caller is starting now; no thread starts later.
    const LockGuard lock(mutex_);
    stopping_ = true;
  }
  if (wake_) wake_->set();
  if (thread_.joinable()) thread_.join();
}

void EventLoop::start_again() noexcept {
  const LockGuard lock(mutex_);
  stopping_ = false;
  wake_->clear();
  if (wanted_ && !try_thread()) forget_requests();
}

void EventLoop::abandon() noexcept {
  poller_.reset();
  wake_.reset();
}

void EventLoop::run() noexcept {
  pthread_setname_np(pthread_self(), thread_name_);
  running_ = this;
  if (rested_at_ == Clock::time_point::min()) rested_at_ = Clock::now();
  while (!stopping_) {
    // The pause keeps the thread from spinning if a program that becomes a daemon has closed the descriptors.
    if (!run_logged([&] { wait_and_handle(); })) std::this_thread::sleep_for(Timer::kSoon);
    const auto now = Clock::now();
    if (now >= next_pass()) pass();
    else if (!pass_requested_) rested_at_ = now;
  }
}

void EventLoop::wait_and_handle() {
  using std::chrono::milliseconds;
  const auto now = Clock::now();
  const auto next = next_pass();
  const bool awake = now < awake_until_;
  auto wait = milliseconds{-1};
  if (awake) wait = milliseconds{0};
  else if (next != Clock::time_point::max())
    wait = std::max(std::chrono::ceil<milliseconds>(next - now), milliseconds{0});
  const auto tokens = poller_->wait(wait);
  for (const std::uint64_t token : tokens) handle(token);
  if (awake && tokens.empty()) std::this_thread::yield();
}

void EventLoop::handle(std::uint64_t token) noexcept {
  if (token == kWakeToken) {
    if (!stopping_) wake_->clear();
    return;
  }
  std::shared_ptr<Task> handler;
  {
    const LockGuard lock(mutex_);
    const auto at = entries_.find(token);
    if (at == entries_.end()) return;
    handler = at->second.handler;
  }
  run_logged(*handler);
}

void EventLoop::add(Timer& timer) {
  const LockGuard lock(mutex_);
  timers_.push_back(&timer);
}

void EventLoop::remove(Timer& timer) noexcept {
  if (!poller_) return;
  const LockGuard lock(mutex_);
  std::erase(timers_, &timer);
  while (running_timer_ == &timer) timer_ended_.wait(mutex_);
}

void EventLoop::request_pass() noexcept {
  if (!poller_ || pass_requested_.exchange(true)) return;
  const LockGuard lock(mutex_);
  if (try_thread()) wake_->set();
  else forget_requests();
}

/// Drops the requests, since no thread can start: the next caller retries.
void EventLoop::forget_requests() noexcept {
  pass_requested_ = false;
  for (Timer* timer : timers_) timer->runs_soon_ = false;
}

EventLoop::Clock::time_point EventLoop::next_pass() const noexcept {
  return pass_requested_ ? std::min(next_due_, rested_at_ + Timer::kSoon) : next_due_;
}

/// Runs all timers that are due or requested. If a timer is added or removed by then, another timer may be skipped; its
/// request stays.
void EventLoop::pass() noexcept {
  point("loop.pass");
  rested_at_ = Clock::now();
  pass_requested_ = false;  // a request from here on gets another pass
  const LockGuard lock(mutex_);
  for (std::size_t i = 0; i < timers_.size(); ++i)
    if (Timer& timer = *timers_[i]; timer.runs_soon_ || timer.due_ <= rested_at_) run(timer);
  next_due_ = Clock::time_point::max();
  for (const Timer* timer : timers_) {
    next_due_ = std::min(next_due_, timer->due_);
    if (timer->runs_soon_) pass_requested_ = true;
  }
}

void EventLoop::run(Timer& timer) noexcept {
  running_timer_ = &timer;
  timer.runs_soon_ = false;
  mutex_.unlock();
  Timer::Pause pause = Timer::kSoon;  // this pause also follows a task that failed
  run_logged([&] { pause = timer.task_(); });
  mutex_.lock();
  running_timer_ = nullptr;
  timer_ended_.notify_all();
  timer.due_ = pause ? rested_at_ + *pause : Clock::time_point::max();
  if (pause && *pause <= Timer::kSoon) timer.runs_soon_ = true;
}

Timer::Timer(EventLoop& loop, std::function<Pause()> task) : loop_(loop), task_(std::move(task)) {
  loop_.add(*this);
}

void Timer::request() noexcept {
  if (runs_soon_.load(std::memory_order_relaxed) || runs_soon_.exchange(true)) return;
  loop_.request_pass();
}

}  // namespace onecopy
