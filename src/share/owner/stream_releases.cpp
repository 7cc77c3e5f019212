// SPDX-License-Identifier: Apache-2.0
#include "share/owner/stream_releases.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <memory>
#include <utility>
#include <vector>

#include "onecopy/core/error.h"
#include "os/log.h"
#include "os/process.h"

namespace onecopy {

/// Stands between the references to a block and its group; belongs to them, and goes with the last.
class StreamReleases::Lease final : public SharedBlocks {
 public:
  Lease(StreamReleases& releases, BlockRef block, Device device, Stream stream)
      : releases_(releases), block_(std::move(block)), device_(device), stream_(stream) {}

  void retain(std::uint32_t) noexcept override { references_.fetch_add(1, std::memory_order_relaxed); }
  void release(std::uint32_t) noexcept override {
    if (references_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
    const std::unique_ptr<Lease> last(this);
    if (current_pid() == pid_) releases_.drop({std::move(block_), device_, stream_});
  }
  SharedBlocks& root() noexcept override { return group().root(); }
  const ProcessId& owner() const noexcept override { return group().owner(); }
  std::vector<Stream> order() const override {
    std::vector<Stream> all = group().order();
    all.push_back(stream_);
    return all;
  }
  ExportedBlock export_block(std::uint32_t block, Access access) override {
    return group().export_block(block, access);
  }
  std::span<std::byte> bytes_of(std::uint32_t block, Access access) override {
    return group().bytes_of(block, access);
  }
  ExportedMemory export_segment(std::uint32_t segment, Access access) const override {
    return group().export_segment(segment, access);
  }
  Fd export_table() const override { return group().export_table(); }
  std::byte* allow(std::uint32_t block, Access access, int ordinal) override {
    return group().allow(block, access, ordinal);
  }
  ProcessOrigin origin() const override { return group().origin(); }
  void begin_transit(std::uint32_t block, std::uint64_t channel) noexcept override {
    group().begin_transit(block, channel);
  }
  void end_transit(std::uint32_t block) noexcept override { group().end_transit(block); }

 private:
  SharedBlocks& group() const noexcept { return as_shared(*block_.group()); }

  StreamReleases& releases_;
  BlockRef block_;
  const Device device_;
  const Stream stream_;
  const int pid_ = current_pid();
  std::atomic<std::uint64_t> references_{1};
};

BlockRef StreamReleases::order(BlockRef block, Device device, Stream stream) {
  const std::uint32_t number = block.number();
  auto lease = std::make_unique<Lease>(*this, std::move(block), device, stream);
  return {lease.release(), number};
}

/// Empty if the stream cannot be marked for now: it is captured, or its device has failed. The error code decides:
/// the capture may be over before is_captured() could be asked.
std::optional<TimelinePoint> StreamReleases::mark(Device device, Stream stream) noexcept {
  try {
    return timeline_.mark(device, stream);
  } catch (const Error& e) {
    if (e.code() == ErrorCode::unsupported || timeline_.has_failed(device)) return {};
    log_warning(fmt::format("a tensor was given back out of order: {}", e.what()));
  } catch (const std::exception& e) {
    log_warning(fmt::format("a tensor was given back out of order: {}", e.what()));
  }
  return TimelinePoint{};
}

void StreamReleases::mark_all(std::vector<DroppedReference> blocks) noexcept {
  while (!blocks.empty()) {
    const Device device = blocks.back().device;
    const Stream stream = blocks.back().stream;
    const auto first = std::stable_partition(blocks.begin(), blocks.end(), [&](const DroppedReference& d) {
      return d.device != device || d.stream.native != stream.native;
    });
    const auto point = mark(device, stream);
    if (!point || !timeline_.has_passed(*point)) {
      const LockGuard lock(mutex_);
      for (auto at = first; at != blocks.end(); ++at)
        if (point) waiting_.push_back({std::move(at->block), *point, device});
        else unmarked_.push_back(std::move(*at));
    } else {
      size_ -= static_cast<std::size_t>(blocks.end() - first);
    }
    blocks.erase(first, blocks.end());
  }
}

/// Moves the blocks of the chosen entries, and counts them no more.
template <class Entries, class IsChosen>
void StreamReleases::take(Entries& from, std::vector<BlockRef>& to, IsChosen&& is_chosen) {
  const auto first = std::stable_partition(from.begin(), from.end(), std::not_fn(is_chosen));
  for (auto at = first; at != from.end(); ++at) to.push_back(std::move(at->block));
  size_ -= static_cast<std::size_t>(from.end() - first);
  from.erase(first, from.end());
}

/// REQUIRES: no waiting point has passed.
void StreamReleases::hold_those_of_failed_devices() {
  const auto has_failed = [this](const auto& entry) { return timeline_.has_failed(entry.device); };
  take(waiting_, held_, has_failed);
  take(unmarked_, held_, has_failed);
}

/// Called at each drop: a caller that opens and drops tensors without a pause has a few of them waiting, and not a
/// look's worth.
void StreamReleases::end_two() noexcept {
  std::vector<PendingRelease> due;  // dropped without the lock
  const LockGuard lock(mutex_);
  for (int i = 0; i < 2 && !waiting_.empty() && timeline_.has_passed(waiting_.front().point); ++i) {
    due.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
    --size_;
  }
}

void StreamReleases::drop(DroppedReference block) noexcept {
  ++size_;
  if (must_not_wait && must_not_wait()) leave(std::move(block));
  // A default stream stays, so its mark may come later. On a host that may have to wait for a mark, it is made here.
  else if (!block.stream.native && !timeline_.may_wait_on_host(block.device)) collect(std::move(block));
  else {
    std::vector<DroppedReference> alone;
    alone.push_back(std::move(block));
    mark_all(std::move(alone));
  }
  end_two();
  if (on_wait && size() != 0) on_wait();
}

void StreamReleases::leave(DroppedReference block) noexcept {
  const LockGuard lock(mutex_);
  unmarked_.push_back(std::move(block));
}

/// A mark takes a microsecond of the host and two of the stream. Much memory does not wait for more of it.
void StreamReleases::collect(DroppedReference block) noexcept {
  constexpr std::size_t kMany = 64;
  constexpr std::size_t kMuch = std::size_t{256} << 20;
  auto& group = as_shared(*block.block.group());
  const std::size_t size = group.bytes_of(block.block.number(), Access::read_write).size();
  bool are_enough = false;
  {
    const LockGuard lock(mutex_);
    collected_.push_back(std::move(block));
    collected_bytes_ += size;
    are_enough = collected_.size() >= kMany || (collected_.size() > 1 && collected_bytes_ > kMuch);
  }
  if (are_enough) mark_collected();
}

void StreamReleases::mark_collected() noexcept {
  std::vector<DroppedReference> collected;
  {
    const LockGuard lock(mutex_);
    collected.swap(collected_);
    collected_bytes_ = 0;
  }
  mark_all(std::move(collected));
}

void StreamReleases::mark_left() noexcept {
  std::vector<DroppedReference> unmarked;
  {
    const LockGuard lock(mutex_);
    unmarked.swap(unmarked_);
  }
  mark_all(std::move(unmarked));
  mark_collected();
}

bool StreamReleases::sweep() noexcept {
  std::vector<BlockRef> due;  // dropped without the lock: one may stand before another
  bool are_left = false;
  {
    const LockGuard lock(mutex_);
    take(waiting_, due, [this](const PendingRelease& w) { return timeline_.has_passed(w.point); });
    hold_those_of_failed_devices();
    are_left = !unmarked_.empty() || !collected_.empty();
  }
  if (are_left && on_left) on_left();
  return size_ != 0;
}

}  // namespace onecopy
