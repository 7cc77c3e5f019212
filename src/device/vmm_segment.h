// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <set>
#include <vector>

#include "device/backend.h"
#include "device/reservation.h"
#include "os/mutex.h"

namespace onecopy {

/// A segment of mapped chunks, for backends that separate addresses from memory. The owner's segment has one chunk,
/// from commit() to decommit() of the whole. A borrower's segment has the chunks that it was lent.
///
/// Thread safety: see DeviceMemory. Invariant: chunks_ fill the reservation from its beginning without gaps, or are
/// empty.
class VmmSegment final : public DeviceMemory {
 public:
  /// Creates an owner's segment.
  VmmSegment(Backend& backend, SegmentKind kind, int ordinal, std::size_t bytes);
  /// Opens a borrower's segment: memory of the device `home`, mapped for that device and for `user`. Throws what
  /// Backend::open() throws. REQUIRES: the caller has checked that `user` has a way to it.
  VmmSegment(Backend& backend, int home, int user, ExportedMemory memory, Access access);

  std::byte* data() const noexcept override { return reservation_->base(); }
  std::size_t size() const noexcept override { return reservation_->size(); }
  SegmentKind kind() const noexcept override { return kind_; }
  void decommit(std::size_t offset, std::size_t bytes) noexcept override;
  std::byte* allow(int ordinal) override;

 private:
  void do_commit(std::size_t offset, std::size_t bytes) override;
  ExportedMemory do_export(Access access) const override;

  Backend& backend_;
  const SegmentKind kind_;
  const int home_;  ///< the device that holds the memory
  const int user_;  ///< the device that the memory was mapped for; `home_` in the owner
  mutable Mutex mutex_;
  std::set<int> allowed_ GUARDED_BY(mutex_);  ///< the devices other than `user_` that may use the memory
  std::vector<std::unique_ptr<PhysicalChunk>> chunks_;
  const std::unique_ptr<Reservation> reservation_;  // declared after chunks_, so that it is unmapped first
};

}  // namespace onecopy
