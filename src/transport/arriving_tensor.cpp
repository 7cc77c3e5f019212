// SPDX-License-Identifier: Apache-2.0
#include "transport/arriving_tensor.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "device/backend.h"
#include "onecopy/core/error.h"
#include "onecopy/share/share.h"
#include "os/log.h"
#include "share/session.h"

namespace onecopy::transport {
namespace {

/// A tensor from this size on has memory of its own, which is not used again for the next one.
constexpr std::size_t kReservedInParts = std::size_t{512} << 20;
constexpr std::size_t kReservedAtOnce = std::size_t{4} << 20;

Layout row_of(std::size_t bytes) { return {DType::u8, {static_cast<std::int64_t>(bytes)}}; }

std::optional<Tensor> on_card(std::size_t bytes, int card) {
  try {
    Tensor tensor = empty(row_of(bytes), {DeviceType::cuda, static_cast<std::int16_t>(card)});
    backend(DeviceType::cuda).create_context(card);
    return tensor;
  } catch (const Error& error) {
    log_debug(fmt::format("a tensor from another host goes to the host's memory, not to a card: {}",
                          error.what()));
    return {};
  }
}

}  // namespace

ArrivingTensor::ArrivingTensor(const Row& row, bool takes_cards) {
  const Layout& layout = row.layout;
  const std::size_t bytes = layout.extent_bytes();
  if (const auto there = takes_cards && row.card >= 0 ? on_card(bytes, row.card) : std::nullopt) {
    tensor_ = there->with_layout(layout);
    return;
  }
  if (bytes < kReservedInParts) {
    tensor_ = empty(row_of(bytes)).with_layout(layout);
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

}  // namespace onecopy::transport
