// SPDX-License-Identifier: Apache-2.0
#include "channel/queue/sender.h"

#include <algorithm>
#include <cstring>

#include "channel/queue/channel_registry.h"
#include "core/throw_error.h"

namespace onecopy {
namespace {

ItemsInFlight::Blocks kind_of(const Session& session, const Manifest& tensors,
                              std::span<const BlockRef> blocks) {
  const auto is_large = [](const Manifest::Row& row) { return row.block_size >= 64 << 10; };
  if (std::any_of(tensors.rows().begin(), tensors.rows().end(), is_large))
    return ItemsInFlight::Blocks::large;
  const bool own = !blocks.empty() && session.owns(blocks.front());
  return own ? ItemsInFlight::Blocks::own : ItemsInFlight::Blocks::borrowed;
}

std::uint8_t flags_of(bool is_one, const ItemOrder& order) {
  return static_cast<std::uint8_t>((is_one ? kItemIsOneTensor : 0) |
                                   (order.points.empty() ? 0 : kItemIsOrdered));
}

void check_size(const Message& message) {
  constexpr std::size_t kMaxTensors = 65'535;
  constexpr std::size_t kMaxData = UINT32_MAX;
  if (message.tensors.size() > kMaxTensors)
    throw_error(ErrorCode::invalid_argument,
                "a message takes {} tensors, not {}; share them as a bundle and put its handle",
                kMaxTensors, message.tensors.size());
  if (message.data.size() > kMaxData)
    throw_error(ErrorCode::invalid_argument,
                "a message takes {} bytes of data, not {}; put them into a tensor", kMaxData,
                message.data.size());
}

}  // namespace

std::size_t Sender::Parts::write(std::byte* const begin) const {
  write_value(begin, head);
  std::byte* const out = tensors.write(begin + sizeof head);
  if (!data.empty()) std::memcpy(out, data.data(), data.size());
  return static_cast<std::size_t>(out - begin) + data.size();
}

/// Repeats a put whose epoch has ended. An epoch takes at least SegmentDirectory::kHalf new segments, so the second
/// attempt usually succeeds.
template <class Put>
bool Sender::until_settled(Put&& put) {
  for (;;) {
    try {
      return put();
    } catch (const DirectoryTurn&) {  // NOLINT(bugprone-empty-catch)
    }
  }
}

bool Sender::put(Session& session, const Tensor& tensor, Deadline deadline, Stream stream) {
  const Departure departure(session, {&tensor, 1}, stream);
  return until_settled([&] { return try_put_one(session, departure, deadline, nullptr); });
}

bool Sender::put(Session& session, Tensor&& tensor, Deadline deadline, Stream stream) {
  const Departure departure(session, {&tensor, 1}, stream);
  Tensor* const given = departure.replaced.empty() ? &tensor : nullptr;
  if (!until_settled([&] { return try_put_one(session, departure, deadline, given); })) return false;
  tensor.release();
  return true;
}

bool Sender::try_put_one(Session& session, const Departure& departure, Deadline deadline, Tensor* given) {
  const Tensor& tensor = departure.tensors.front();
  const Limits limits{deadline};
  const std::optional<Manifest> tensors = packer_.pack(session, departure, limits);
  const Parts parts{{0, 0, 1, flags_of(true, tensors->order)}, *tensors, {}};
  if (parts.bytes() > kMaxItemBytes) return put_elsewhere(session, parts, {tensor.block()}, limits);
  return put_inline(session, parts, {&tensor.block(), 1}, deadline, given);
}

bool Sender::put(Session& session, const Message& message, Deadline deadline, Stream stream) {
  return put_message(session, message, {deadline}, stream);
}

bool Sender::put_at_once(Session& session, const Message& message, Stream stream) {
  return put_message(session, message, {kNow, false}, stream);
}

void Sender::prepare(Session& session, const Message& message, Deadline deadline) {
  const Departure departure(session, message.tensors, {});
  packer_.prepare(session, departure.tensors, deadline);
}

bool Sender::put_message(Session& session, const Message& message, const Limits& limits, Stream stream) {
  check_size(message);
  const Departure departure(session, message.tensors, stream);
  return until_settled([&] { return try_put_message(session, message, departure, limits); });
}

bool Sender::try_put_message(Session& session, const Message& message, const Departure& departure,
                             const Limits& limits) {
  const std::optional<Manifest> tensors = packer_.pack(session, departure, limits);
  if (!tensors) return false;
  std::vector<BlockRef> blocks;
  for (const Tensor& tensor : departure.tensors) blocks.push_back(tensor.block());
  const std::size_t rows = message.tensors.size();
  const bool is_one = rows == 1 && message.tag == 0 && message.data.empty();
  const ItemHead head{message.tag, static_cast<std::uint32_t>(message.data.size()),
                      static_cast<std::uint16_t>(rows), flags_of(is_one, tensors->order), message.kind};
  const Parts parts{head, *tensors, message.data};
  if (parts.bytes() > kMaxItemBytes) return put_elsewhere(session, parts, std::move(blocks), limits);
  return put_inline(session, parts, blocks, limits.deadline);
}

bool Sender::put_inline(Session& session, const Parts& parts, std::span<const BlockRef> blocks,
                        Deadline deadline, Tensor* given) {
  ItemsInFlight::Blocks kind = kind_of(session, parts.tensors, blocks);
  const auto write = [&](std::uint64_t position, std::span<std::byte> space) {
    if (directory_.epoch() != parts.tensors.epoch()) [[unlikely]]
      throw DirectoryTurn();
    if (kind == ItemsInFlight::Blocks::large && in_flight_.ends_with(blocks))
      kind = ItemsInFlight::Blocks::borrowed;
    if (given) {
      in_flight_.reserve();  // fails, if at all, while the caller still has the block
      in_flight_.push(position, given->take_block());
    } else {
      in_flight_.push(position, blocks);
    }
    // Written last, because a spinning getter takes the slot's cache line away repeatedly until the commit.
    const std::size_t size = parts.write(space.data());
    point("queue.put.encoded");
    return size;
  };
  if (!ring_.put(write, deadline)) return false;
  in_flight_.release_some(kind);
  if (!in_flight_.empty()) ChannelRegistry::poll_soon();
  point("queue.put.done");
  return true;
}

/// Writes the item into a block of its own. The block contains the order, too, so that no getter uses the tensors
/// before it has read the order.
bool Sender::put_elsewhere(Session& session, const Parts& parts, std::vector<BlockRef> blocks,
                           const Limits& limits) {
  const Tensor item = empty(Layout(DType::u8, {static_cast<std::int64_t>(parts.bytes())}));
  parts.write(item.as<std::byte>());
  point("queue.put.written_elsewhere");
  std::vector<BlockRef> held = blocks;  // the block keeps them, but not after this process has died
  held.push_back(item.block());
  session.keep_with(item.block(), std::move(blocks));
  point("queue.put.kept_elsewhere");
  const std::optional<Manifest> named =
      packer_.pack_unordered(session, {&item, 1}, limits, parts.tensors.epoch());
  if (!named) return false;
  const auto flags = static_cast<std::uint8_t>((parts.head.flags & kItemIsOneTensor) | kItemIsElsewhere);
  return put_inline(session, {{0, 0, 1, flags}, *named, {}}, held, limits.deadline);
}

void Sender::lock() {
  packer_.lock();
  in_flight_.lock();
}

void Sender::unlock() {
  in_flight_.unlock();
  packer_.unlock();
}

void Sender::reset() noexcept {
  in_flight_.clear();
  packer_.reset();
}

}  // namespace onecopy
