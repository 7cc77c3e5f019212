// SPDX-License-Identifier: Apache-2.0
#include "channel/sender.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "onecopy/core/error.h"
#include "share/process.h"

namespace onecopy {
namespace {

SharedKeeper& keeper_of(const Tensor& tensor) {
  BlockKeeper* keeper = tensor.block().keeper();
  if (!keeper)
    throw Error(ErrorCode::invalid_argument, "an empty tensor cannot be put into a queue; make one first");
  if (!keeper->shareable())
    throw Error(ErrorCode::invalid_argument,
                "this tensor's memory belongs to another library and cannot be opened by other "
                "processes; put onecopy::copy(tensor.view()) instead");
  return static_cast<SharedKeeper&>(*keeper);
}

BlockSpot spot_of(Process& process, const Tensor& tensor) {
  SharedKeeper& keeper = keeper_of(tensor);
  if (&keeper == &process.ledger()) return process.ledger().export_spot(tensor.block().number());
  const BlockPlace place = keeper.export_block(tensor.block().number());
  return {place.info, place.data};
}

template <class Rows>
std::size_t item_bytes(const Rows& rows, ByteSpan data) {
  std::size_t bytes = sizeof(ItemHead) + data.size();
  for (const auto& r : rows) bytes += encoded_size(r.row);
  return bytes;
}

template <class Rows>
void write_item(const ItemHead& head, const Rows& rows, ByteSpan data, std::byte* out) {
  store(out, head);
  out += sizeof head;
  for (const auto& r : rows) out = encode(r.row, out);
  if (!data.empty()) std::memcpy(out, data.data(), data.size());
}

void check_size(const Message& message) {
  constexpr std::size_t kMostTensors = 65'535;
  constexpr std::size_t kMostData = UINT32_MAX;
  if (message.tensors.size() > kMostTensors)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("a message takes {} tensors, not {}; share them as a bundle and put its handle",
                            kMostTensors, message.tensors.size()));
  if (message.data.size() > kMostData)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("a message takes {} bytes of data, not {}; put them into a tensor", kMostData,
                            message.data.size()));
}

}  // namespace

bool Sender::put(Process& process, const Tensor& tensor, TimePoint deadline) {
  const Outgoing out = outgoing(process, tensor);
  const std::span one(&out, 1);
  const ItemHead head{0, 0, 1, kItemIsOneTensor};
  if (item_bytes(one, {}) > kMaxItemBytes)
    return put_elsewhere(process, head, one, {}, {tensor.block()}, deadline);
  return put_inline(process, head, one, {}, {&tensor.block(), 1}, deadline);
}

bool Sender::put(Process& process, const Message& message, TimePoint deadline) {
  check_size(message);
  std::vector<Outgoing> rows;
  std::vector<BlockRef> blocks;
  for (const Tensor& tensor : message.tensors) {
    rows.push_back(outgoing(process, tensor));
    blocks.push_back(tensor.block());
  }
  const bool is_one = rows.size() == 1 && message.tag == 0 && message.data.empty();
  const ItemHead head{message.tag, static_cast<std::uint32_t>(message.data.size()),
                      static_cast<std::uint16_t>(rows.size()),
                      is_one ? kItemIsOneTensor : std::uint16_t{0}};
  if (item_bytes(rows, message.data) > kMaxItemBytes)
    return put_elsewhere(process, head, rows, message.data, std::move(blocks), deadline);
  return put_inline(process, head, rows, message.data, blocks, deadline);
}

bool Sender::put_inline(Process& process, const ItemHead& head, std::span<const Outgoing> rows,
                        ByteSpan data, std::span<const BlockRef> blocks, TimePoint deadline) {
  const auto write = [&](std::uint64_t position, std::span<std::byte> space) {
    sent_.push(position, blocks);
    // Last: a spinning getter takes the slot's cache line away again and again until the commit.
    write_item(head, rows, data, space.data());
    point("queue.put.encoded");
    return item_bytes(rows, data);
  };
  if (!ring_.put(write, deadline)) return false;
  constexpr std::uint64_t kLarge = 64 << 10;
  const bool large =
      std::any_of(rows.begin(), rows.end(), [](const Outgoing& r) { return r.block_size >= kLarge; });
  sent_.release_some(large, [this] { return ring_.head(); });
  if (!sent_.empty()) process.watch().request_tick();
  point("queue.put.done");
  return true;
}

bool Sender::put_elsewhere(Process& process, const ItemHead& head, std::span<const Outgoing> rows,
                           ByteSpan data, std::vector<BlockRef> blocks, TimePoint deadline) {
  const auto bytes = static_cast<std::int64_t>(item_bytes(rows, data));
  const Tensor item = empty(Layout(DType::u8, {bytes}));
  write_item(head, rows, data, item.as<std::byte>());
  point("queue.put.written_elsewhere");
  std::vector<BlockRef> held = blocks;  // the item keeps them, but not beyond this process's death
  held.push_back(item.block());
  process.ledger().keep_with(item.block().number(), std::move(blocks));
  point("queue.put.kept_elsewhere");
  const Outgoing out = outgoing(process, item);
  const auto flags = static_cast<std::uint16_t>(head.flags | kItemIsElsewhere);
  return put_inline(process, {0, 0, 1, flags}, {&out, 1}, {}, held, deadline);
}

Sender::Outgoing Sender::outgoing(Process& process, const Tensor& tensor) {
  const BlockSpot spot = spot_of(process, tensor);
  Outgoing out;
  out.block_size = spot.info.size;
  out.row.origin = origin_of(process, tensor, spot.info.segment);
  if (out.row.origin == kWholeHandle) [[unlikely]] {
    HandleFields fields = process.share(tensor).fields();
    fields.maker = creator_;
    out.handle = encode(fields);
    out.row.handle = out.handle;
    return out;
  }
  out.row.generation = spot.info.generation;
  out.row.tensor_offset = static_cast<std::uint64_t>(tensor.as<std::byte>() - spot.data);
  out.row.block = spot.info.number;
  out.row.layout = tensor.layout();
  return out;
}

std::uint16_t Sender::origin_of(Process& process, const Tensor& tensor, std::uint32_t segment) {
  const Key key{static_cast<SharedKeeper*>(tensor.block().keeper()), segment, tensor.access()};
  if (const auto origin = last_.find(std::get<0>(key), std::get<1>(key), std::get<2>(key))) return *origin;
  std::optional<std::uint16_t> origin;
  {
    std::lock_guard lock(known_mutex_);
    if (const auto at = known_.find(key); at != known_.end()) origin = at->second;
  }
  if (!origin) origin = add_origin(process, tensor);
  std::lock_guard lock(known_mutex_);
  last_.remember(std::get<0>(key), std::get<1>(key), std::get<2>(key), *origin);
  return known_[key] = *origin;
}

/// Two threads may do this at once; then the segment has two entries, which does no harm.
std::uint16_t Sender::add_origin(Process& process, const Tensor& tensor) {
  auto& keeper = static_cast<SharedKeeper&>(*tensor.block().keeper());
  const BlockPlace place = keeper.export_block(tensor.block().number());
  const bool deposited = deposit(process, keeper, tensor.block());
  point("queue.put.deposited");
  const Origin origin{keeper.owner(),     deposited ? creator_ : process.id(),
                      place.segment_size, place.info.segment,
                      place.kind,         tensor.access()};
  std::optional<std::uint16_t> index;
  ring_.exclusively([&] { index = origins_.append(origin); });
  return index.value_or(kWholeHandle);
}

/// The queue's creator keeps the segment of an owner that dies. What is the creator's own needs no
/// keeping by itself; others serve it.
bool Sender::deposit(Process& process, const SharedKeeper& keeper, const BlockRef& block) {
  if (keeper.owner() == creator_ && creator_ != process.id()) return false;
  try {
    process.deposit(block, creator_, origins_.channel());
    return true;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::peer_died && error.code() != ErrorCode::owner_died) throw;
    return false;  // the creator is gone, or may not write what we may only read
  }
}

void Sender::lock() {
  known_mutex_.lock();
  sent_.lock();
}

void Sender::unlock() {
  sent_.unlock();
  known_mutex_.unlock();
}

void Sender::reset() noexcept {
  sent_.clear();
  std::lock_guard lock(known_mutex_);
  known_.clear();
  last_.remember(nullptr, 0, Access::read_only, 0);
}

}  // namespace onecopy
