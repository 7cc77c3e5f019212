// SPDX-License-Identifier: Apache-2.0
#include "simulators/common/stream_work.h"

#include <chrono>
#include <thread>
#include <utility>

namespace sim {

void Progress::advance(int result) {
  const std::lock_guard lock(mutex_);
  if (failure_ == 0) failure_ = result;
  ++completed_;
  changed_.notify_all();
}

int Progress::wait(std::uint64_t ticket) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return completed_ >= ticket; });
  return failure_;
}

bool Progress::wait_for(std::uint64_t ticket, int milliseconds) {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, std::chrono::milliseconds(milliseconds),
                           [&] { return completed_ >= ticket; });
}

int wait_for_all(const std::vector<Reach>& all, const Clock& clock) {
  int result = 0;
  for (const Reach& reach : all)
    if (const int failure = reach.wait()) result = failure;
  WindowOrder::instance().host_waited(clock);
  return result;
}

Reach StreamWork::reach() const {
  const std::lock_guard lock(mutex_);
  return {progress_, submitted_};
}

int StreamWork::synchronize() {
  const Clock clock = WindowOrder::instance().clock_of(line);
  return wait_for_all({reach()}, clock);
}

bool StreamWork::synchronize_for(int milliseconds) {
  const Clock clock = WindowOrder::instance().clock_of(line);
  const Reach until = reach();
  if (!until.progress->wait_for(until.ticket, milliseconds)) return false;
  WindowOrder::instance().host_waited(clock);
  return true;
}

bool StreamWork::is_idle() const {
  const Clock clock = WindowOrder::instance().clock_of(line);
  if (!reach().is_reached()) return false;
  WindowOrder::instance().host_waited(clock);
  return true;
}

void StreamWork::add(Work work) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return room_ == 0 || queue_.size() < room_; });
  queue_.push_back(std::move(work));
  ++submitted_;
  if (!has_thread_) std::thread([this] { run(); }).detach();
  has_thread_ = true;
  changed_.notify_all();
}

void StreamWork::run() {
  for (;;) {
    Work next;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return !queue_.empty() || ending_; });
      if (queue_.empty()) break;
      next = std::move(queue_.front());
      queue_.pop_front();
      changed_.notify_all();
    }
    if (delay_us_ > 0) std::this_thread::sleep_for(std::chrono::microseconds(delay_us_));
    const int result = next();
    next = nullptr;  // releases its objects before a caller can know that it is done
    progress_->advance(result);
  }
  delete this;
}

void StreamWork::end() {
  std::unique_lock lock(mutex_);
  ending_ = true;
  if (has_thread_) {
    changed_.notify_all();
    return;
  }
  lock.unlock();
  delete this;
}

}  // namespace sim

extern "C" __attribute__((visibility("default"))) std::size_t sim_unordered() {
  return sim::WindowOrder::instance().count();
}

extern "C" __attribute__((visibility("default"))) const char* sim_first_unordered() {
  return sim::WindowOrder::instance().first();
}
