// SPDX-License-Identifier: Apache-2.0
#include "rpc/transport/wire.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <vector>

#include "device/backend.h"
#include "onecopy/core/error.h"
#include "onecopy/memory/copy.h"
#include "onecopy/share/share.h"
#include "rpc/message.h"

namespace onecopy::rpc {
namespace {

/// The head of a layout. `dims` sizes and as many strides follow, of 8 bytes each.
struct RowHead {
  std::uint8_t dtype = 0;
  std::uint8_t dims = 0;
  std::uint8_t reserved[6] = {};
};
static_assert(sizeof(RowHead) == 8);

std::int64_t clock_ns() noexcept { return std::chrono::steady_clock::now().time_since_epoch().count(); }

/// Changes the deadline in the tail of a call.
template <class Change>
void change_deadline(Message& message, Change&& change) {
  const bool is_call = (message.tag & kFormBits) == static_cast<std::uint32_t>(Form::call);
  if (!is_call || message.data.size() < sizeof(CallTail)) return;
  std::byte* const at = message.data.data() + message.data.size() - sizeof(CallTail);
  auto tail = load<CallTail>(at);
  if (tail.deadline == 0) return;
  tail.deadline = change(tail.deadline);
  write_value(at, tail);
}

Tensor on_host(const Tensor& tensor, Stream stream) {
  if (tensor.device() == kCpu) return tensor;
  Tensor copy = empty(Layout(tensor.dtype(), tensor.shape()));
  backend(tensor.device().type).synchronize(tensor.device().index, stream);
  copy_into(tensor.view(), copy.view());
  return copy;
}

std::vector<std::int64_t> cut_numbers(ByteSpan& rest, std::size_t count) {
  std::vector<std::int64_t> numbers(count);
  const ByteSpan bytes = cut_bytes(rest, count * sizeof(std::int64_t));
  if (count != 0) std::memcpy(numbers.data(), bytes.data(), bytes.size());
  return numbers;
}

}  // namespace

void refuse_frame(std::string_view problem) {
  throw Error(ErrorCode::protocol, fmt::format("a frame from another host {}", problem));
}

void append_bytes(Bytes& out, ByteSpan bytes) {
  const std::size_t before = out.size();
  out.resize(before + bytes.size());
  if (!bytes.empty()) std::memcpy(out.data() + before, bytes.data(), bytes.size());
}

void append_layout(Bytes& out, const Layout& layout) {
  RowHead row;
  row.dtype = static_cast<std::uint8_t>(layout.dtype());
  row.dims = static_cast<std::uint8_t>(layout.ndim());
  append_bytes(out, std::as_bytes(std::span(&row, 1)));
  append_bytes(out, std::as_bytes(layout.shape()));
  append_bytes(out, std::as_bytes(layout.strides()));
}

ByteSpan cut_bytes(ByteSpan& rest, std::size_t bytes) {
  if (bytes > rest.size()) refuse_frame("is cut off");
  const ByteSpan part = rest.first(bytes);
  rest = rest.subspan(bytes);
  return part;
}

Layout cut_layout(ByteSpan& rest) {
  const auto row = load<RowHead>(cut_bytes(rest, sizeof(RowHead)).data());
  const auto dtype = static_cast<DType>(row.dtype);
  if (!is_valid(dtype) || row.dims > kMaxDims) refuse_frame("has a tensor that cannot be");
  const auto shape = cut_numbers(rest, row.dims), strides = cut_numbers(rest, row.dims);
  try {
    return {dtype, shape, strides};
  } catch (const Error& error) {
    refuse_frame(error.what());
  }
}

ParcelHead cut_head(ByteSpan& rest, std::uint64_t max_bytes) {
  const auto head = load<ParcelHead>(cut_bytes(rest, sizeof(ParcelHead)).data());
  if (head.tensors > kMaxTensors || head.data_bytes > std::min(kMaxDataBytes, max_bytes))
    refuse_frame("is of too large a message");
  return head;
}

Message on_host(const Message& message, Stream stream) {
  Message copy{message.tag, message.data, {}};
  for (const Tensor& tensor : message.tensors) copy.tensors.push_back(on_host(tensor, stream));
  return copy;
}

void check_can_cross(const Message& message) {
  if (message.tensors.size() <= kMaxTensors && message.data.size() <= kMaxDataBytes) return;
  throw Error(
      ErrorCode::invalid_argument,
      fmt::format("a message with {} tensors and {} other bytes does not go to another host: {} and "
                  "{} at most",
                  message.tensors.size(), message.data.size(), kMaxTensors, kMaxDataBytes));
}

void to_time_left(Message& message) {
  const std::int64_t now = clock_ns();
  change_deadline(message, [&](std::int64_t at) { return std::max<std::int64_t>(1, at - now); });
}

void to_deadline(Message& message) {
  const std::int64_t now = clock_ns();
  constexpr std::int64_t kLongest = std::int64_t{1} << 61;  // 73 years
  change_deadline(message,
                  [&](std::int64_t left) { return now + std::clamp<std::int64_t>(left, 1, kLongest); });
}

}  // namespace onecopy::rpc
