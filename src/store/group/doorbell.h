// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fmt/format.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "onecopy/core/error.h"
#include "os/log.h"
#include "store/group/etcd.h"

namespace onecopy::store::group {

/// A thread that watches the group's keys, and wakes the host after each change; so do the threads of Fetches.
/// Thread safety: wait() is for one thread.
class Doorbell {
 public:
  Doorbell(const EtcdOptions& options, Keys keys)
      : thread_([this, options, keys = std::move(keys)](const std::stop_token& stop) {
          Etcd etcd(options);
          while (!stop.stop_requested()) {
            try {
              etcd.watch(
                  keys.from, keys.to, [this] { ring(); }, [&] { return stop.stop_requested(); });
            } catch (const Error& error) {
              log_debug(fmt::format("the watch of etcd ended: {}", error.what()));
            }
            ring();
            std::this_thread::sleep_for(kPause);
          }
        }) {}

  /// Wakes the host. Thread safety: may be called concurrently.
  void ring() {
    const std::lock_guard lock(mutex_);
    has_rung_ = true;
    rung_.notify_one();
  }
  /// Waits until the bell has rung since the last call.
  void wait(std::chrono::milliseconds max) {
    std::unique_lock lock(mutex_);
    rung_.wait_for(lock, max, [this] { return std::exchange(has_rung_, false); });
  }

 private:
  static constexpr std::chrono::milliseconds kPause{500};

  std::mutex mutex_;
  std::condition_variable rung_;
  bool has_rung_ = false;
  std::jthread thread_;
};

}  // namespace onecopy::store::group
