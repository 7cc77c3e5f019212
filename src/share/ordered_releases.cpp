// SPDX-License-Identifier: Apache-2.0
#include "share/ordered_releases.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <memory>
#include <utility>
#include <vector>

#include "onecopy/core/error.h"
#include "onecopy/os/log.h"
#include "onecopy/os/process.h"

namespace onecopy {

namespace {

bool is_captured(Device device, Stream stream) noexcept {
  try {
    return backend(device.type).is_captured(device.index, stream);
  } catch (const std::exception&) {
    return false;
  }
}

}  // namespace

/// Stands between the references to a block and its keeper; belongs to them, and goes with the last.
class OrderedReleases::Lease final : public SharedKeeper {
 public:
  Lease(OrderedReleases& releases, BlockRef block, Device device, Stream stream)
      : releases_(releases), block_(std::move(block)), device_(device), stream_(stream) {}

  void retain(std::uint32_t) noexcept override { references_.fetch_add(1, std::memory_order_relaxed); }
  void release(std::uint32_t) noexcept override {
    if (references_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
    const std::unique_ptr<Lease> last(this);
    if (current_pid() == pid_) releases_.drop(std::move(block_), device_, stream_);
  }
  SharedKeeper& root() noexcept override { return keeper().root(); }
  const ProcessId& owner() const noexcept override { return keeper().owner(); }
  std::vector<Stream> order() const override {
    std::vector<Stream> all = keeper().order();
    all.push_back(stream_);
    return all;
  }
  BlockPlace export_block(std::uint32_t block, Access access) override {
    return keeper().export_block(block, access);
  }
  std::span<std::byte> bytes_of(std::uint32_t block, Access access) override {
    return keeper().bytes_of(block, access);
  }
  ExportedMemory export_segment(std::uint32_t segment, Access access) const override {
    return keeper().export_segment(segment, access);
  }
  Fd export_table() const override { return keeper().export_table(); }
  std::byte* allow(std::uint32_t block, Access access, int ordinal) override {
    return keeper().allow(block, access, ordinal);
  }
  ProcessOrigin origin() const override { return keeper().origin(); }
  void begin_transit(std::uint32_t block, std::uint64_t channel) noexcept override {
    keeper().begin_transit(block, channel);
  }
  void end_transit(std::uint32_t block) noexcept override { keeper().end_transit(block); }

 private:
  SharedKeeper& keeper() const noexcept { return static_cast<SharedKeeper&>(*block_.keeper()); }

  OrderedReleases& releases_;
  BlockRef block_;
  const Device device_;
  const Stream stream_;
  const int pid_ = current_pid();
  std::atomic<std::uint64_t> references_{1};
};

BlockRef OrderedReleases::order(BlockRef block, Device device, Stream stream) {
  const std::uint32_t number = block.number();
  auto lease = std::make_unique<Lease>(*this, std::move(block), device, stream);
  return {lease.release(), number};
}

/// A device that fails has stopped: nothing is at work in the memory any more.
bool OrderedReleases::mark(Unmarked& block, std::vector<Waiting>& marked) noexcept {
  try {
    const TimelinePoint point = timeline_.mark(block.device, block.stream);
    if (!timeline_.has_passed(point)) marked.push_back({std::move(block.block), point});
  } catch (const std::exception& e) {
    if (is_captured(block.device, block.stream)) return false;
    log_warning(fmt::format("a tensor was given back out of order: {}", e.what()));
  }
  return true;
}

/// Each drop ends two that wait, so that who opens and drops large tensors without a pause has a few of them at a
/// time, and not a tick's worth.
void OrderedReleases::drop(BlockRef block, Device device, Stream stream) noexcept {
  std::vector<Waiting> marked;
  std::vector<Waiting> due;  // dropped without the lock
  Unmarked dropped{std::move(block), device, stream};
  const bool is_marked = mark(dropped, marked);
  {
    const std::lock_guard lock(mutex_);
    for (int i = 0; i < 2 && !waiting_.empty() && timeline_.has_passed(waiting_.front().point); ++i) {
      due.push_back(std::move(waiting_.front()));
      waiting_.pop_front();
    }
    if (is_marked && marked.empty()) return;
    if (is_marked) waiting_.push_back(std::move(marked.front()));
    else unmarked_.push_back(std::move(dropped));
  }
  if (on_wait) on_wait();
}

/// Without the lock while the driver is asked. True while some are left.
bool OrderedReleases::mark_again() noexcept {
  const std::lock_guard again(marking_again_);
  std::vector<Unmarked> unmarked;
  std::vector<Waiting> marked;
  {
    const std::lock_guard lock(mutex_);
    unmarked.swap(unmarked_);
  }
  std::erase_if(unmarked, [&](Unmarked& block) { return mark(block, marked); });
  const std::lock_guard lock(mutex_);
  std::move(marked.begin(), marked.end(), std::back_inserter(waiting_));
  std::move(unmarked.begin(), unmarked.end(), std::back_inserter(unmarked_));
  return !unmarked_.empty();
}

bool OrderedReleases::sweep() noexcept {
  const bool is_unmarked = mark_again();
  std::vector<Waiting> due;  // dropped without the lock: one may stand before another
  const std::lock_guard lock(mutex_);
  const auto passed = [&](const Waiting& w) { return timeline_.has_passed(w.point); };
  const auto first = std::stable_partition(waiting_.begin(), waiting_.end(), std::not_fn(passed));
  std::move(first, waiting_.end(), std::back_inserter(due));
  waiting_.erase(first, waiting_.end());
  return is_unmarked || !waiting_.empty();
}

std::size_t OrderedReleases::size() const {
  const std::lock_guard lock(mutex_);
  return waiting_.size() + unmarked_.size();
}

}  // namespace onecopy
