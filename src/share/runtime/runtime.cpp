// SPDX-License-Identifier: Apache-2.0
#include "share/runtime/runtime.h"

#include <chrono>
#include <cstdlib>
#include <thread>

#include "device/pinned_ranges.h"
#include "onecopy/core/error.h"
#include "os/log.h"
#include "os/process.h"
#include "os/random.h"
#include "share/borrower/broker_client.h"
#include "share/borrower/leases.h"
#include "share/format/info_text.h"
#include "share/format/process_name.h"

namespace onecopy {
namespace {

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
    // Makes this thread's record now, so that children inherit a complete one.
    const HazardGuard first(nullptr);
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

/// Ends the threads, which must not outlive static objects, and removes names of files. Tensors that still exist keep
/// their memory; a name that another process uses stays until that process removes it.
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
  // A forked child has inherited the open files, and may pass them on by name.
  if (!process->broker_.has_children()) process->segments_.remove_names();
}

Runtime::Runtime() : Runtime(random_value<ProcessId>()) {}

Runtime::Runtime(const ProcessId& id)
    : id_(id),
      name_(public_name(id)),
      pools_(name_, segments_, wakes(trimming_)),
      ledger_(id, segments_, wakes(limbo_)),
      allocations_(segments_, ledger_, wakes(adopted_idle_)),
      streams_(id, peers_, loop_),
      pinning_(loop_, streams_, pools_),
      peers_(loop_, retention_, wakes(cleaning_)),
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

/// Removes names that killed processes have left, once. In a process that opens before it shares, the watch thread
/// calls it.
void Runtime::clean_up() {
  if (std::exchange(cleaned_up_, true)) return;
  remove_abandoned_sockets();
  try {
    remove_abandoned_files();
  } catch (const Error&) {  // the error is reported by making a file in that directory
  }
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

std::uint64_t Runtime::give_back(std::optional<Device> device) {
  // The time in which a stream without other work passes the end of a drop.
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

// Memory of this process: from its pools, or made by other means.
namespace {

// The time that an allocation waits for memory that streams still use.
constexpr std::chrono::seconds kPatienceWithStreams{5};

std::atomic<Strategy> the_strategy{Strategy::file_descriptor};

/// Returns the kind of segment of a strategy. Only memory of the host can be in named files.
SegmentKind kind_of(Strategy strategy, Device device) {
  if (device.type != DeviceType::cpu) return backend(device.type).kind_on(device.index);
  return strategy == Strategy::file_descriptor ? SegmentKind::memfd : SegmentKind::named_file;
}

}  // namespace

void set_strategy(Strategy strategy) { the_strategy = strategy; }
Strategy strategy() noexcept { return the_strategy; }

/// Waits until streams have passed the drop of a block. Returns false if no release is pending or the deadline passes.
bool Runtime::await_release(Deadline deadline) {
  const std::size_t waiting = streams_.waiting_releases();
  while (streams_.waiting_releases() != 0 && std::chrono::steady_clock::now() < deadline) {
    streams_.sweep_releases();
    if (streams_.waiting_releases() < waiting) return ledger_.drain(), true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

/// Allocates, and retries while releases are pending in streams, because their memory is about to become free.
Extent Runtime::allocate_in_time(Pool& pool, std::uint64_t bytes, Device device) {
  const auto deadline = std::chrono::steady_clock::now() + kPatienceWithStreams;
  for (bool again = device != kCpu && streams_.waiting_releases() != 0;; again = await_release(deadline)) {
    try {
      return pool.allocate(bytes);
    } catch (const Error& error) {
      if (!again || error.code() != ErrorCode::out_of_memory) throw;
    }
  }
}

/// Waits briefly for large blocks that were just dropped in an idle stream, so that the next allocation reuses them
/// instead of taking more memory.
void Runtime::end_idle_releases() {
  streams_.mark_left();
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::microseconds(idle_stream_us);
  while (streams_.sweep_releases() && std::chrono::steady_clock::now() < deadline)
    std::this_thread::yield();
  ledger_.drain();
}

/// Allocates. If memory is short, drops the backlogs of queues that all users have left and tries again.
Extent Runtime::allocate_from(Pool& pool, std::uint64_t bytes, Device device) {
  constexpr std::uint64_t kLarge = std::uint64_t{256} << 20;
  if (device != kCpu && bytes >= kLarge && streams_.waiting_releases() != 0) end_idle_releases();
  try {
    return allocate_in_time(pool, bytes, device);
  } catch (const Error& error) {
    const auto give_up = queues_.on_shortage.load();
    if (error.code() != ErrorCode::out_of_memory || !give_up || !give_up()) throw;
  }
  ledger_.drain();
  return allocate_in_time(pool, bytes, device);
}

std::pair<BlockRef, std::byte*> Runtime::allocate(std::uint64_t bytes, Device device) {
  Pool& from = pools_.of(kind_of(the_strategy, device), device);
  Extent extent = allocate_from(from, bytes, device);
  extent.size = bytes;  // the bytes that the pool added do not belong to the block
  try {
    BlockRef block = ledger_.add(extent, from);
    PinnedRanges::await_unpinning(extent.data, extent.size);
    return {std::move(block), extent.data};
  } catch (...) {
    from.free(extent);
    throw;
  }
}

Tensor Runtime::adopt(std::unique_ptr<DeviceMemory> memory, std::uint64_t size, std::uint64_t committed,
                      std::uint64_t offset) {
  std::byte* const data = memory->data() + offset;
  const Extent extent{lent_.add(kCpu, std::move(memory)), offset, size, data};
  segments_.add_committed(extent.segment, static_cast<std::int64_t>(committed));
  try {
    const Layout bytes(DType::u8, {static_cast<std::int64_t>(size)});
    return {ledger_.add(extent, lent_), extent.data, bytes, kCpu, Access::read_write};
  } catch (...) {
    lent_.free(extent);
    throw;
  }
}

}  // namespace onecopy
