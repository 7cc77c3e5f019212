// SPDX-License-Identifier: Apache-2.0
#include "os/watch.h"

#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <set>
#include <string>
#include <system_error>

#include "onecopy/core/error.h"
#include "os/blocked_signals.h"
#include "os/log.h"

namespace onecopy {
namespace {

constexpr std::uint64_t kWakeToken = 0;

/// An error at one packet comes at the next thousand, too. A text is logged once, and so is a lack of descriptors,
/// which names another file each time.
void say_once(const std::exception& e) {
  constexpr std::size_t kMostTexts = 64;
  thread_local std::set<std::string> said;
  if (said.size() >= kMostTexts) said.clear();
  const std::string text = fmt::format("onecopy's watch thread: {}", e.what());
  const auto* error = dynamic_cast<const Error*>(&e);
  const bool is_lack = error && error->code() == ErrorCode::out_of_descriptors;
  if (said.insert(is_lack ? "no descriptors" : text).second) log_warning(text);
}

/// Returns false if it threw.
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

Watch::Watch() : poller_(std::in_place), wake_(std::in_place) { poller_->add(wake_->fd(), kWakeToken); }

Watch::~Watch() { stop(); }

void Watch::add(int fd, Handler handler, bool edge) {
  const LockGuard lock(mutex_);
  ensure_thread();  // first: if anything fails, nothing may be left that calls `handler`
  const std::uint64_t token = ++last_token_;
  auto called = std::make_shared<Handler>(std::move(handler));
  std::map<int, std::uint64_t> number{{fd, token}};  // from here on only the system can fail
  std::map<std::uint64_t, Entry> entry{{token, Entry{fd, edge, std::move(called)}}};
  poller_->add(fd, token, edge);
  entries_.merge(entry);
  token_of_.erase(fd);
  token_of_.merge(number);
}

void Watch::rearm(int fd) {
  if (!poller_) return;
  const LockGuard lock(mutex_);
  const auto at = token_of_.find(fd);
  if (at != token_of_.end()) poller_->rearm(fd, at->second, entries_[at->second].edge);
}

void Watch::remove(int fd) noexcept {
  if (!poller_) return;
  const LockGuard lock(mutex_);
  const auto at = token_of_.find(fd);
  if (at == token_of_.end()) return;
  poller_->remove(fd);
  entries_.erase(at->second);
  token_of_.erase(at);
}

void Watch::add_tick(Tick tick) {
  const LockGuard lock(mutex_);
  ticks_.push_back(std::move(tick));
}

void Watch::request_tick() noexcept {
  if (!poller_ || ticking_.load(std::memory_order_relaxed) || ticking_.exchange(true)) return;
  const LockGuard lock(mutex_);
  if (try_thread()) wake_->set();
  else ticking_ = false;  // the next caller tries again
}

void Watch::ensure_thread() {
  wanted_ = true;
  if (thread_.joinable() || stopping_) return;
  const BlockedSignals blocked;
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error& e) {
    throw Error(ErrorCode::out_of_memory,
                fmt::format("cannot start onecopy's watch thread: {}; raise the limit of processes "
                            "(`ulimit -u`) or of address space (`ulimit -v`)",
                            e.what()),
                e.code().value(), ErrorDomain::posix);
  }
}

/// Returns false if the system has no more threads.
bool Watch::try_thread() noexcept {
  return run_logged([&] {
    mutex_.assert_held();
    ensure_thread();
  });
}

void Watch::start() {
  const LockGuard lock(mutex_);
  ensure_thread();
}

void Watch::stay_awake(std::chrono::microseconds most) noexcept {
  awake_until_ = std::chrono::steady_clock::now() + most;
}

void Watch::may_sleep() noexcept { awake_until_ = {}; }

void Watch::stop() noexcept {
  {
    // A thread that another caller is starting now is seen, none is started later.
    const LockGuard lock(mutex_);
    stopping_ = true;
  }
  if (wake_) wake_->set();
  if (thread_.joinable()) thread_.join();
}

void Watch::start_again() noexcept {
  const LockGuard lock(mutex_);
  stopping_ = false;
  wake_->clear();
  if (ticking_) wake_->set();
  if (wanted_ && !try_thread()) ticking_ = false;
}

void Watch::abandon() noexcept {
  poller_.reset();
  wake_.reset();
}

void Watch::run() noexcept {
  pthread_setname_np(pthread_self(), "onecopy-watch");
  running_ = this;
  if (last_tick_ == std::chrono::steady_clock::time_point::min())
    last_tick_ = std::chrono::steady_clock::now();
  while (!stopping_) {
    run_logged([&] { wait_and_handle(); });
    const auto now = std::chrono::steady_clock::now();
    if (!is_ticking()) {
      last_tick_ = now;
    } else if (now >= last_tick_ + pause()) {
      hurried_ = false;
      tick();
      last_tick_ = hurried_ ? now - pause() : now;
    }
  }
}

void Watch::wait_and_handle() {
  using std::chrono::milliseconds;
  const auto now = std::chrono::steady_clock::now();
  const auto left = std::chrono::ceil<milliseconds>(last_tick_ + pause() - now);
  const bool awake = now < awake_until_;
  const auto wait = awake          ? milliseconds{0}
                    : is_ticking() ? std::max(left, milliseconds{0})
                                   : milliseconds{-1};
  const auto tokens = poller_->wait(wait);
  for (const std::uint64_t token : tokens) handle(token);
  if (awake && tokens.empty()) std::this_thread::yield();
}

void Watch::handle(std::uint64_t token) noexcept {
  if (token == kWakeToken) {
    if (!stopping_) wake_->clear();
    return;
  }
  std::shared_ptr<Handler> handler;
  {
    const LockGuard lock(mutex_);
    const auto at = entries_.find(token);
    if (at == entries_.end()) return;
    handler = at->second.handler;
  }
  run_logged(*handler);
}

/// An event that was asked for may come soon. One that has been waited for before may take longer still.
void Watch::tick() noexcept {
  const bool was_asked = ticking_.exchange(false);  // a caller from here on gets another tick
  Again again = Again::soon;                        // also for a tick that failed
  run_logged([&] { again = call_ticks(); });
  if (again == Again::soon) ticking_ = true;
  if (again == Again::later) pause_ = was_asked ? kTickTime : std::min(2 * pause_, kLongestPause);
  else pause_ = pause_.zero();
}

Watch::Again Watch::call_ticks() {
  std::vector<Tick> ticks;  // called without the lock
  {
    const LockGuard lock(mutex_);
    ticks = ticks_;
  }
  Again again = Again::no;
  for (const Tick& t : ticks)
    if (!run_logged([&] { again = std::max(again, t()); })) again = Again::soon;
  return again;
}

}  // namespace onecopy
