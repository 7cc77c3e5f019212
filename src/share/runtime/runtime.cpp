// SPDX-License-Identifier: Apache-2.0
#include "share/runtime/runtime.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <mutex>
#include <utility>

#include "device/pinned_ranges.h"
#include "onecopy/core/error.h"
#include "os/log.h"
#include "os/process.h"
#include "os/random.h"
#include "share/borrower/dial.h"
#include "share/borrower/hazard_guard.h"
#include "share/format/info_text.h"
#include "share/format/process_name.h"

namespace onecopy {
namespace {

ProcessId new_id() {
  ProcessId id;
  random_bytes(std::as_writable_bytes(std::span(id)));
  return id;
}

Timer::Pause rounded_up(std::optional<std::chrono::steady_clock::duration> pause) {
  if (!pause) return {};
  return std::chrono::ceil<std::chrono::milliseconds>(*pause);
}

Wakeup wakes(Timer& timer) {
  return [&timer] { timer.request(); };
}

}  // namespace

Session& Session::make_current() {
  if (existing() && is_raw_clone())
    throw Error(ErrorCode::unsupported,
                "this process was made by clone(2) from one that uses onecopy, without fork's "
                "handlers; make it with fork(), posix_spawn() or exec");
  return Runtime::make().session_;
}

Runtime& Runtime::make() {
  ForkHook::check_registered();
  const LockGuard lock(making_);
  if (!Session::current_) {
    static const int at_exit_is_registered [[maybe_unused]] = std::atexit([] { at_exit(); });
    Session::handled_pid_ = current_pid();
    start_log();
    const HazardGuard first(nullptr);  // children inherit a finished record of this thread
    HazardGuard::prepare_if_single_threaded();
    auto made = std::unique_ptr<Runtime>(new Runtime());
    if (forked_from_) {
      made->inherit(*forked_from_);
      forked_from_ = nullptr;
    } else if (!EarlyDial::is_waiting()) {
      made->clean_up();
    }
    Session::current_ = &made.release()->session_;  // never destroyed, see the class comment
  }
  return *existing();
}

/// Our threads must not outlive static objects, and names must not outlive their use. Tensors that live on keep their
/// memory; a name stays if another process uses it, and goes with that.
void Runtime::at_exit() noexcept {
  constexpr std::chrono::seconds kFullStream{1};
  Runtime* process = existing();
  if (!process) return;
  process->loop_.stop();
  process->streams_.stop_marking(kFullStream);
  process->pinning_.stop(kFullStream);
  process->broker_.stop_listening();
  if (process->ledger_.live() + process->ledger_.limbo() == 0)
    return process->pools_.end(SegmentKind::named_file);
  // A forked child has the files open through this process, and may pass them on by name.
  if (!process->broker_.has_children()) process->segments_.remove_names();
}

Runtime::Runtime() : Runtime(new_id()) {}

Runtime::Runtime(const ProcessId& id)
    : id_(id),
      name_(public_name(id)),
      adopted_(segments_),
      pools_(name_, segments_, wakes(trimming_)),
      ledger_(id, segments_, wakes(limbo_)),
      allocations_(segments_, ledger_, wakes(adopted_idle_)),
      streams_(id, peers_, loop_),
      pinning_(loop_, streams_, pools_),
      peers_(name_, loop_, retention_, wakes(cleaning_)),
      source_(id, peers_, retention_),
      importer_(id, ledger_, peers_, source_, holds_),
      broker_(id, ledger_, source_, retention_, holds_, streams_.timeline(), loop_,
              [this] { return to_json(describe()); }),
      queues_(id, peers_, source_, retention_, broker_, loop_) {
  segments_.on_retire = [this](std::uint32_t number) {
    try {
      broker_.announce_retired(number);
      retention_.retire({name_, number});
      PinnedRanges::segment_ended();
    } catch (const std::bad_alloc&) {
      retiring_.request();
      throw;
    }
  };
  segments_.guard = &ledger_;
  retention_.segments.watch(loop_, wakes(sweeping_));
  on_file_left = wakes(files_);
}

/// Once: removes names that killed processes have left. If a process begins by opening, its watch thread does this.
void Runtime::clean_up() {
  if (std::exchange(cleaned_up_, true)) return;
  remove_abandoned_sockets();
  remove_abandoned_files();
}

Timer::Pause Runtime::expire_holds() { return rounded_up(holds_.expire()); }

Timer::Pause Runtime::sweep_adopted() {
  return rounded_up(allocations_.sweep(std::chrono::steady_clock::now()));
}

Timer::Pause Runtime::trim() {
  const Pool::TrimResult trimmed = pools_.trim();
  if (trimmed.bytes >= Pools::kAtOnce) return Timer::kAtOnce;
  return trimmed.waiting ? Timer::Pause(Pools::kPause) : Timer::Pause();
}

void Runtime::collect() { give_back({}); }

std::uint64_t Runtime::give_back(std::optional<Device> device) {
  // A stream without other work passes the end of a drop in that time.
  constexpr std::chrono::milliseconds kIdleStream{1};
  ledger_.drain();
  retention_.segments.sweep();
  const auto deadline = std::chrono::steady_clock::now() + kIdleStream;
  while (streams_.sweep_releases() && std::chrono::steady_clock::now() < deadline)
    std::this_thread::yield();
  pinning_.settle();
  peers_.sweep();
  if (!device || *device == kCpu) pinning_.end_idle();
  allocations_.sweep_all();
  const std::uint64_t bytes = pools_.trim_all(device);
  if (remove_released_files()) files_.request();
  return bytes;
}

}  // namespace onecopy
