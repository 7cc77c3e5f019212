// SPDX-License-Identifier: Apache-2.0
#include "share/owner/stream_releases.h"

#include <memory>
#include <utility>
#include <vector>

#include "onecopy/core/error.h"
#include "os/log.h"
#include "os/process.h"

namespace onecopy {
namespace {

/// Moves the chosen elements to the end of `to`, in their order. Returns how many.
template <class List, class IsChosen>
std::size_t move_if(List& from, List& to, IsChosen&& is_chosen) noexcept {
  const std::size_t before = to.size();
  for (auto at = from.begin(); at != from.end();) {
    const auto one = at++;
    if (is_chosen(*one)) to.splice(to.end(), from, one);
  }
  return to.size() - before;
}

}  // namespace

/// The group that the references to a wrapped block have. Owns one reference to the actual block, and is destroyed with
/// the last reference to itself.
class StreamReleases::Lease final : public SharedBlocks {
 public:
  Lease(StreamReleases& releases, BlockRef block, Device device, Stream stream) : releases_(releases) {
    reference_.push_back({std::move(block), device, stream});
  }

  void add_reference(std::uint32_t) noexcept override {
    references_.fetch_add(1, std::memory_order_relaxed);
  }
  void release(std::uint32_t) noexcept override {
    if (references_.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
    const std::unique_ptr<Lease> last(this);
    if (current_pid() == pid_) releases_.drop(std::move(reference_));
  }
  SharedBlocks& root() noexcept override { return group().root(); }
  const ProcessId& owner() const noexcept override { return group().owner(); }
  std::vector<Stream> order() const override {
    std::vector<Stream> all = group().order();
    all.push_back(reference_.front().stream);
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
  SharedBlocks& group() const noexcept { return as_shared(*reference_.front().block.group()); }

  StreamReleases& releases_;
  References reference_;  ///< one reference, until the last reference to the lease is dropped
  const int pid_ = current_pid();
  std::atomic<std::uint64_t> references_{1};
};

BlockRef StreamReleases::order(BlockRef block, Device device, Stream stream) {
  const std::uint32_t number = block.number();
  auto lease = std::make_unique<Lease>(*this, std::move(block), device, stream);
  return {lease.release(), number};
}

/// Returns a point in the stream, or nothing if it cannot be marked now: it is being captured, its device has failed,
/// or memory is short. The error code tells which, because a capture may end before is_captured() could be called.
std::optional<TimelinePoint> StreamReleases::mark(Device device, Stream stream) noexcept {
  try {
    return timeline_.mark(device, stream);
  } catch (const Error& e) {
    if (e.code() == ErrorCode::unsupported || timeline_.has_failed(device)) return {};
    log_warning("a tensor was given back out of order: {}", e.what());
  } catch (const std::bad_alloc&) {
    return {};
  } catch (const std::exception& e) {
    log_warning("a tensor was given back out of order: {}", e.what());
  }
  return TimelinePoint{};
}

void StreamReleases::mark_all(References dropped) noexcept {
  while (!dropped.empty()) {
    const Device device = dropped.back().device;
    const Stream stream = dropped.back().stream;
    References of_one_stream;
    move_if(dropped, of_one_stream, [&](const DroppedReference& d) {
      return d.device == device && d.stream.native == stream.native;
    });
    const auto point = mark(device, stream);
    if (!point || !timeline_.has_passed(*point)) {
      for (DroppedReference& one : of_one_stream) one.point = point.value_or(TimelinePoint{});
      const LockGuard lock(mutex_);
      References& to = point ? waiting_ : unmarked_;
      to.splice(to.end(), of_one_stream);
    } else {
      size_ -= of_one_stream.size();
    }
  }
}

/// Moves the chosen references, and subtracts them from size_.
template <class IsChosen>
void StreamReleases::take(References& from, References& to, IsChosen&& is_chosen) {
  size_ -= move_if(from, to, is_chosen);
}

/// Moves the references that wait for failed devices to held_. REQUIRES: no waiting point has passed.
void StreamReleases::hold_those_of_failed_devices() {
  const auto has_failed = [this](const DroppedReference& d) { return timeline_.has_failed(d.device); };
  take(waiting_, held_, has_failed);
  take(unmarked_, held_, has_failed);
}

/// Ends up to two due references at each drop, so that a caller that opens and drops tensors without a pause has only a
/// few of them waiting.
void StreamReleases::end_two() noexcept {
  References due;  // destroyed without the lock
  const LockGuard lock(mutex_);
  for (int i = 0; i < 2 && !waiting_.empty() && timeline_.has_passed(waiting_.front().point); ++i) {
    due.splice(due.end(), waiting_, waiting_.begin());
    --size_;
  }
}

void StreamReleases::drop(References dropped) noexcept {
  const DroppedReference& one = dropped.front();
  ++size_;
  if (must_not_wait && must_not_wait()) leave(std::move(dropped));
  // A default stream always exists, so its mark can be made later, unless a host may have to wait for the mark.
  else if (!one.stream.native && !timeline_.may_wait_on_host(one.device)) collect(std::move(dropped));
  else mark_all(std::move(dropped));
  end_two();
  if (on_wait && size() != 0) on_wait();
}

void StreamReleases::leave(References dropped) noexcept {
  const LockGuard lock(mutex_);
  unmarked_.splice(unmarked_.end(), dropped);
}

/// Collects references that are dropped in default streams, because a mark takes a microsecond of the host and two of
/// the stream. Marks them at once if they hold much memory.
void StreamReleases::collect(References dropped) noexcept {
  constexpr std::size_t kMany = 64;
  constexpr std::size_t kMuch = std::size_t{256} << 20;
  const BlockRef& block = dropped.front().block;
  const std::size_t size = as_shared(*block.group()).bytes_of(block.number(), Access::read_write).size();
  bool are_enough = false;
  {
    const LockGuard lock(mutex_);
    collected_.splice(collected_.end(), dropped);
    collected_bytes_ += size;
    are_enough = collected_.size() >= kMany || (collected_.size() > 1 && collected_bytes_ > kMuch);
  }
  if (are_enough) mark_collected();
}

void StreamReleases::mark_collected() noexcept {
  References collected;
  {
    const LockGuard lock(mutex_);
    collected.swap(collected_);
    collected_bytes_ = 0;
  }
  mark_all(std::move(collected));
}

void StreamReleases::mark_left() noexcept {
  References unmarked;
  {
    const LockGuard lock(mutex_);
    unmarked.swap(unmarked_);
  }
  mark_all(std::move(unmarked));
  mark_collected();
}

bool StreamReleases::sweep() noexcept {
  References due;  // destroyed without the lock, because one reference may wrap another
  bool are_left = false;
  {
    const LockGuard lock(mutex_);
    take(waiting_, due, [this](const DroppedReference& d) { return timeline_.has_passed(d.point); });
    hold_those_of_failed_devices();
    are_left = !unmarked_.empty() || !collected_.empty();
  }
  if (are_left && on_left) on_left();
  return size_ != 0;
}

}  // namespace onecopy
