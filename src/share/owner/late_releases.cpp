// SPDX-License-Identifier: Apache-2.0
#include "share/owner/late_releases.h"

#include "device/backend.h"
#include "device/capture_gate.h"
#include "device/pinned_ranges.h"
#include "onecopy/core/error.h"
#include "os/log.h"

namespace onecopy {

LateReleases& LateReleases::activate(DeviceType type) {
  static Mutex& making = *new Mutex;
  const LockGuard lock(making);
  LateReleases* active = active_.load();
  if (!active) active_ = active = std::make_unique<LateReleases>().release();
  const LockGuard inner(active->mutex_);
  active->types_.add(type);
  return *active;
}

/// Returns a copy of the kinds of devices, of which there are at most two.
LateReleases::Types LateReleases::all_types() const noexcept {
  const LockGuard lock(mutex_);
  return types_;
}

/// Keeps a reference to pinned memory. Successive references share a point, because a point costs microseconds while
/// the device is busy.
bool LateReleases::keep(SharedBlocks& group, std::uint32_t block,
                        std::span<const std::byte> bytes) noexcept {
  constexpr std::size_t kMany = 64;
  constexpr std::uint64_t kMuch = std::uint64_t{16} << 20;
  constexpr std::chrono::microseconds kSeldom{100};
  if (!PinnedRanges::any() || !PinnedRanges::get().touches(bytes.data(), bytes.size())) return false;
  bool is_due = false;
  try {
    const LockGuard lock(mutex_);
    open_.push_back({&group, block});
    open_bytes_ += bytes.size();
    is_due = open_.size() >= kMany || open_bytes_ >= kMuch || Clock::now() - last_close_ >= kSeldom;
  } catch (const std::bad_alloc&) {
    log_error("no memory for a note that pinned memory is dropped: it stays in use");
    return true;
  }
  ++total_;
  ++size_;
  if (is_due && has_points_ && !(hooks_.must_not_wait && hooks_.must_not_wait())) close_list();
  end_due();
  if (size_ != 0 && hooks_.on_wait) hooks_.on_wait();
  return true;
}

/// Makes a point for the open list. Returns false while a stream is being captured, or if the vendor has no points.
bool LateReleases::close_list() noexcept {
  List list;
  {
    const LockGuard lock(mutex_);
    if (open_.empty()) return true;
    list.kept = std::exchange(open_, {});
    open_bytes_ = 0;
    last_close_ = Clock::now();
  }
  try {
    if (try_mark(list)) {
      const LockGuard lock(mutex_);
      closed_.push_back(std::move(list));
      return true;
    }
  } catch (const Error& error) {
    // `unsupported` without a vendor's code means that the vendor has no call for points.
    if (error.code() == ErrorCode::unsupported && error.vendor_code() == 0) has_points_ = false;
    else log_warning("pinned memory waits for the device: {}", error.what());
  } catch (const std::bad_alloc&) {  // later
  }
  put_back(std::move(list));
  return false;
}

bool LateReleases::try_mark(List& list) {
  return CaptureGate::get().try_between([&] {
    for (const DeviceType type : all_types())
      if (auto point = backend(type).mark_work()) list.points.push_back(std::move(point));
  });
}

void LateReleases::put_back(List list) noexcept {
  const LockGuard lock(mutex_);
  open_.splice(open_.end(), list.kept);
}

/// Ends the references of lists whose point has passed. Lists end in order, because later lists have later points.
void LateReleases::end_due() noexcept {
  for (;;) {
    References due;
    {
      const LockGuard lock(mutex_);
      if (closed_.empty()) return;
      List& first = closed_.front();
      WorkPoint::Progress passed = WorkPoint::Progress::yes;
      for (; !first.points.empty() && passed == WorkPoint::Progress::yes;) {
        passed = first.points.back()->poll();
        if (passed == WorkPoint::Progress::yes) first.points.pop_back();
      }
      if (passed == WorkPoint::Progress::no) return;
      due = std::move(first.kept);
      closed_.pop_front();
      if (passed == WorkPoint::Progress::never) {
        size_ -= due.size();
        held_.splice(held_.end(), due);
        continue;
      }
    }
    end(due);
  }
}

void LateReleases::end(References& kept) noexcept {
  for (const KeptReference& one : kept) one.group->release_now(one.block);
  size_ -= kept.size();
  kept.clear();
}

bool LateReleases::release_due() noexcept {
  end_due();
  bool is_open = false;
  {
    const LockGuard lock(mutex_);
    is_open = !open_.empty();
  }
  if (is_open && hooks_.on_work) hooks_.on_work();
  return size_ != 0;
}

void LateReleases::settle() noexcept {
  if (has_points_) close_list();
  else wait_for_devices();
  end_due();
}

/// Waits for the devices. Keeps captures from beginning until the end, because waiting for a context invalidates a
/// capture.
void LateReleases::wait_for_devices() noexcept {
  List list;
  {
    const LockGuard lock(mutex_);
    list.kept = std::exchange(open_, {});
    open_bytes_ = 0;
  }
  bool has_finished = true;
  const bool was_free = CaptureGate::get().try_between([&] {
    for (const DeviceType type : all_types()) has_finished = backend(type).finish_work() && has_finished;
  });
  if (!was_free) return put_back(std::move(list));
  if (has_finished) return end(list.kept);
  const LockGuard lock(mutex_);
  size_ -= list.kept.size();
  held_.splice(held_.end(), list.kept);
}

void LateReleases::lock() noexcept {
  if (LateReleases* const late = active()) late->mutex_.lock();
}

void LateReleases::unlock() noexcept {
  if (LateReleases* const late = active()) late->mutex_.unlock();
}

/// Makes an object of the child's own. The parent's object is not destroyed, because its points belong to the parent.
void LateReleases::end_in_child() noexcept {
  LateReleases* const late = active_.exchange(nullptr);
  if (!late) return;
  late->end(late->open_);
  for (List& list : late->closed_) late->end(list.kept);
  late->end(late->held_);
}

}  // namespace onecopy
