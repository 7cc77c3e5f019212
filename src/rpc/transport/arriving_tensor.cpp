// SPDX-License-Identifier: Apache-2.0
#include "rpc/transport/arriving_tensor.h"

#include <algorithm>
#include <utility>

#include "device/backend.h"
#include "onecopy/share/share.h"
#include "share/session.h"

namespace onecopy::rpc {
namespace {

/// A tensor from this size on has memory of its own, which is not used again for the next one.
constexpr std::size_t kReservedInParts = std::size_t{512} << 20;
constexpr std::size_t kReservedAtOnce = std::size_t{4} << 20;

}  // namespace

ArrivingTensor::ArrivingTensor(const Layout& layout) {
  const std::size_t bytes = layout.extent_bytes();
  if (bytes < kReservedInParts) {
    tensor_ = empty(Layout(DType::u8, {static_cast<std::int64_t>(bytes)})).with_layout(layout);
    return;
  }
  Backend& host = backend(DeviceType::cpu);
  const std::size_t unit = host.granularity();
  auto memory = host.create(0, (bytes + unit - 1) / unit * unit, SegmentKind::memfd, "arriving", 0);
  memory_ = memory.get();
  tensor_ = Session::current().adopt(std::move(memory), bytes).with_layout(layout);
}

bool ArrivingTensor::reserve(std::size_t bytes) {
  if (!memory_ || bytes <= reserved_) return true;
  const std::size_t more = std::min(kReservedAtOnce, memory_->size() - reserved_);
  memory_->populate(reserved_, more);
  reserved_ += more;
  return bytes <= reserved_;
}

}  // namespace onecopy::rpc
