// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "core/throw_error.h"
#include "onecopy/core/error.h"
#include "store/ferry/pull.h"

namespace onecopy::store::group {

/// The version of an object that a thread brings from other hosts.
struct Fetch {
  explicit Fetch(const Token& which) : version(which) {}

  const Token version;
  std::atomic<bool> is_wanted{true};
  std::atomic<bool> has_ended{false};
  std::uint64_t bytes = 0;     ///< that have come
  std::optional<Error> error;  ///< once it has ended; nothing if the version is whole here

  /// Throws if the version is not wanted any longer. Is called between two chunks.
  void check_wanted() const {
    if (!is_wanted) throw_error(ErrorCode::stale_handle, "the version will not be current");
  }
};

/// Brings versions of several objects at once, each in a thread of its own, so that a large one keeps no other one waiting.
/// Thread safety: none.
class Fetches {
 public:
  static constexpr std::size_t kMax = 4;

  /// `ended`: is called by the thread of each fetch.
  explicit Fetches(std::function<void()> ended) : ended_(std::move(ended)) {}
  ~Fetches() {
    keep([](const std::string&, const Token&) { return false; });
  }
  Fetches& operator=(Fetches&&) = delete;

  bool is_under_way(const std::string& name) const { return all_.contains(name); }
  /// Returns false if there are enough fetches. `fetch`: that of `pull`, whose object is not under way.
  bool try_begin(const std::string& name, std::shared_ptr<Fetch> fetch, ferry::Pull pull,
                 const ferry::Pull::Chosen& chosen) {
    if (all_.size() >= kMax) return false;
    std::jthread thread(
        [this, fetch, chosen, p = std::make_unique<ferry::Pull>(std::move(pull))]() mutable {
          try {
            p->stage(chosen);
          } catch (const Error& error) {
            fetch->error = error;
          } catch (const std::exception& error) {
            fetch->error = Error(ErrorCode::system, error.what());
          }
          fetch->bytes = p->taken();
          p.reset();  // another process may pull the object
          fetch->has_ended = true;
          ended_();
        });
    all_.emplace(name, FetchThread{std::move(fetch), std::move(thread)});
    return true;
  }
  /// Ends the fetches of other versions soon.
  void keep(const std::function<bool(const std::string&, const Token&)>& is_wanted) {
    for (auto& [name, one] : all_)
      if (!is_wanted(name, one.fetch->version)) one.fetch->is_wanted = false;
  }
  /// Returns the fetches that have ended since the last call, by the names of their objects.
  std::map<std::string, std::shared_ptr<Fetch>> take_ended() {
    std::map<std::string, std::shared_ptr<Fetch>> ended;
    for (const auto& [name, one] : all_)
      if (one.fetch->has_ended) ended[name] = one.fetch;
    for (const auto& [name, fetch] : ended) all_.erase(name);
    return ended;
  }

 private:
  struct FetchThread {
    std::shared_ptr<Fetch> fetch;  // shared with the thread and the puller
    std::jthread thread;
  };

  std::function<void()> ended_;
  std::map<std::string, FetchThread> all_;
};

}  // namespace onecopy::store::group
