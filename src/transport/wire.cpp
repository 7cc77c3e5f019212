// SPDX-License-Identifier: Apache-2.0
#include "transport/wire.h"

#include <algorithm>
#include <cstring>

#include "core/throw_error.h"
#include "device/backend.h"
#include "onecopy/memory/copy.h"
#include "onecopy/share/share.h"

namespace onecopy::transport {
namespace {

/// The head of a message. The layouts of its tensors follow.
struct MessageHead {
  std::uint32_t tag = 0;
  std::uint32_t tensors = 0;
  std::uint64_t data_bytes = 0;
};
static_assert(sizeof(MessageHead) == 16);

/// The head of a layout. `dims` sizes and as many strides follow, of 8 bytes each.
struct RowHead {
  std::uint8_t dtype = 0;
  std::uint8_t dims = 0;
  std::uint8_t card = 0;  ///< Row::card plus one
  std::uint8_t reserved[5] = {};
};
static_assert(sizeof(RowHead) == 8);

constexpr std::int16_t kHost = -1;  // in place of a card

Tensor on_host(const Tensor& tensor) {
  Tensor copy = empty(Layout(tensor.dtype(), tensor.shape()));
  copy_into(tensor.view(), copy.view());
  return copy;
}

std::vector<std::int64_t> cut_numbers(ByteSpan& rest, std::size_t count) {
  std::vector<std::int64_t> numbers(count);
  const ByteSpan bytes = cut_bytes(rest, count * sizeof(std::int64_t));
  if (count != 0) std::memcpy(numbers.data(), bytes.data(), bytes.size());
  return numbers;
}

void append_row(Bytes& out, const Tensor& tensor, int card) {
  const Layout& layout = tensor.layout();
  RowHead row;
  if (tensor.device() != kCpu)
    row.card = static_cast<std::uint8_t>(std::clamp(card + 1, 0, int{UINT8_MAX}));
  row.dtype = static_cast<std::uint8_t>(layout.dtype());
  row.dims = static_cast<std::uint8_t>(layout.ndim());
  append_bytes(out, std::as_bytes(std::span(&row, 1)));
  append_bytes(out, std::as_bytes(layout.shape()));
  append_bytes(out, std::as_bytes(layout.strides()));
}

Row cut_row(ByteSpan& rest) {
  const auto row = load<RowHead>(cut_bytes(rest, sizeof(RowHead)).data());
  const auto dtype = static_cast<DType>(row.dtype);
  if (!is_valid(dtype) || row.dims > kMaxDims) refuse_frame("has a tensor that cannot be");
  const auto shape = cut_numbers(rest, row.dims), strides = cut_numbers(rest, row.dims);
  try {
    return {Layout(dtype, shape, strides), row.card - 1};
  } catch (const Error& error) {
    refuse_frame(error.what());
  }
}

void check_can_cross(const Message& message) {
  if (message.tensors.size() <= kMaxTensors && message.data.size() <= kMaxDataBytes) return;
  throw_error(ErrorCode::invalid_argument,
              "a message with {} tensors and {} other bytes does not go to another host: {} and "
              "{} at most",
              message.tensors.size(), message.data.size(), kMaxTensors, kMaxDataBytes);
}

}  // namespace

void refuse_frame(std::string_view problem) {
  throw_error(ErrorCode::protocol, "a frame from another host {}", problem);
}

void append_bytes(Bytes& out, ByteSpan bytes) {
  const std::size_t before = out.size();
  out.resize(before + bytes.size());
  if (!bytes.empty()) std::memcpy(out.data() + before, bytes.data(), bytes.size());
}

ByteSpan cut_bytes(ByteSpan& rest, std::size_t bytes) {
  if (bytes > rest.size()) refuse_frame("is cut off");
  const ByteSpan part = rest.first(bytes);
  rest = rest.subspan(bytes);
  return part;
}

Bytes encode_beginning(const Message& message) {
  Bytes out;
  const MessageHead head{message.tag, static_cast<std::uint32_t>(message.tensors.size()),
                         message.data.size()};
  append_bytes(out, std::as_bytes(std::span(&head, 1)));
  for (std::size_t i = 0; i < message.tensors.size(); ++i)
    append_row(out, message.tensors[i], i < message.cards.size() ? message.cards[i] : kHost);
  return out;
}

Beginning cut_beginning(ByteSpan& rest, std::uint64_t max_bytes) {
  const auto head = load<MessageHead>(cut_bytes(rest, sizeof(MessageHead)).data());
  if (head.tensors > kMaxTensors || head.data_bytes > std::min(kMaxDataBytes, max_bytes))
    refuse_frame("is of too large a message");
  Beginning beginning{head.tag, head.data_bytes, {}, head.data_bytes};
  for (std::uint32_t i = 0; i < head.tensors; ++i) {
    const std::uint64_t bytes = beginning.rows.emplace_back(cut_row(rest)).layout.extent_bytes();
    if (bytes > max_bytes - beginning.bytes) refuse_frame("is of too large a tensor");
    beginning.bytes += bytes;
  }
  return beginning;
}

Message outgoing(Message message, Stream stream, bool (*stays)(const Tensor&)) {
  check_can_cross(message);
  for (Tensor& tensor : message.tensors) {
    if (tensor.device() == kCpu) continue;
    backend(tensor.device().type).synchronize(tensor.device().index, stream);
    if (!stays || tensor.device().type != DeviceType::cuda || !stays(tensor)) tensor = on_host(tensor);
  }
  return message;
}

void throw_no_room() {
  throw Error(ErrorCode::timeout, "the connection to another host has not taken the message in time");
}

}  // namespace onecopy::transport
