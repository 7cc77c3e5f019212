// SPDX-License-Identifier: Apache-2.0
// Memory of this process: from its pools, or made by other means.
#include <chrono>
#include <thread>

#include "device/pinned_ranges.h"
#include "onecopy/core/error.h"
#include "share/runtime/runtime.h"

namespace onecopy {
namespace {

// An allocation waits so long for memory that streams use.
constexpr std::chrono::seconds kPatienceWithStreams{5};

std::atomic<Strategy> the_strategy{Strategy::file_descriptor};

/// Names are for the memory of the host.
SegmentKind kind_of(Strategy strategy, Device device) {
  if (device.type != DeviceType::cpu) return backend(device.type).kind_on(device.index);
  return strategy == Strategy::file_descriptor ? SegmentKind::memfd : SegmentKind::named_file;
}

}  // namespace

void set_strategy(Strategy strategy) { the_strategy = strategy; }
Strategy strategy() noexcept { return the_strategy; }

/// Waits until streams have passed the end of some blocks. Returns false if no release is pending, or it takes too
/// long.
bool Runtime::await_release(Deadline deadline) {
  const std::size_t waiting = streams_.waiting_releases();
  while (streams_.waiting_releases() != 0 && std::chrono::steady_clock::now() < deadline) {
    streams_.sweep_releases();
    if (streams_.waiting_releases() < waiting) return ledger_.drain(), true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

/// Retries while releases are pending on device streams: that memory is about to come back.
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

/// A large block that was dropped in an idle stream just now is used again, and no other made beside it.
void Runtime::end_idle_releases() {
  streams_.mark_left();
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::microseconds(idle_stream_us);
  while (streams_.sweep_releases() && std::chrono::steady_clock::now() < deadline)
    std::this_thread::yield();
  ledger_.drain();
}

/// Tries again without the backlogs of queues that all users have left.
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
  extent.size = bytes;  // the pool's rounding belongs to no block
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
  const std::uint32_t number = segments_.next_number();
  const Extent extent{number, offset, size, memory->data() + offset};
  segments_.add(number, kCpu, std::move(memory));
  segments_.add_committed(number, static_cast<std::int64_t>(committed));
  try {
    const Layout bytes(DType::u8, {static_cast<std::int64_t>(size)});
    return {ledger_.add(extent, adopted_), extent.data, bytes, kCpu, Access::read_write};
  } catch (...) {
    adopted_.free(extent);
    throw;
  }
}

void Runtime::AdoptedExtents::free(const Extent& extent) noexcept { segments_.remove(extent.segment); }

}  // namespace onecopy
