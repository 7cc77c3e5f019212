// SPDX-License-Identifier: Apache-2.0
#include "store/keeper/guard.h"

#include <sys/prctl.h>

#include <chrono>
#include <iterator>
#include <thread>

#include "core/point.h"
#include "onecopy/core/error.h"
#include "os/log.h"
#include "os/poller.h"

namespace onecopy::store {
namespace {

using Clock = std::chrono::steady_clock;

/// A worker that ends sooner than this is replaced after a pause, because its successor may end as soon.
constexpr std::chrono::milliseconds kShortLife{50};

/// Handles the worker's notes. Returns true when the keeper ends.
bool take_notes(KeeperState& state, Partner& worker) {
  while (auto note = worker.receive()) {
    switch (note->kind) {
      case Partner::Kind::take:
        std::move(note->fds.begin(), note->fds.end(), std::back_inserter(state.versions[note->id]));
        break;
      case Partner::Kind::drop: state.versions.erase(note->id); break;
      case Partner::Kind::index:
        if (note->fds.size() == 1) state.index = Log::open(std::move(note->fds.front()));
        break;
      case Partner::Kind::directories:
        if (note->fds.empty()) break;
        state.listener = UnixSocket(std::move(note->fds.back()));
        note->fds.pop_back();
        state.directories.adopt(std::move(note->fds));
        state.index_path = state.directories.index();
        break;
      case Partner::Kind::end: return true;
    }
  }
  return false;
}

Partner replace(const Partner& worker, Clock::time_point since) {
  worker.reap();
  if (Clock::now() - since < kShortLife) std::this_thread::sleep_for(kShortLife);
  for (;;) {
    try {
      return Partner::fork();
    } catch (const Error& error) {  // no process or descriptor can be made now
      log_error("the store's guard: {}", error.what());
      std::this_thread::sleep_for(kShortLife);
    }
  }
}

}  // namespace

Next run_guard(KeeperState& state, Partner& worker) {
  ::prctl(PR_SET_NAME, "onecopy-guard");
  for (;;) {
    Poller poller;
    poller.add(worker.socket(), 0);  // socket and pidfd only wake the guard up
    poller.add(worker.pidfd(), 0);
    const auto since = Clock::now();
    while (!worker.has_ended()) {
      poller.wait(std::chrono::milliseconds(-1));
      if (take_notes(state, worker)) return Next::end;
    }
    if (take_notes(state, worker)) return Next::end;
    point("store.guard.restarts");
    log_info("the worker of the store has ended; another one starts with {} versions",
             state.versions.size());
    worker = replace(worker, since);
    if (worker.is_child()) return Next::be_worker;
  }
}

}  // namespace onecopy::store
