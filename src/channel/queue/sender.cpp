// SPDX-License-Identifier: Apache-2.0
#include "channel/queue/sender.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "channel/queue/value_order.h"
#include "onecopy/core/error.h"
#include "os/patience.h"
#include "share/session.h"

namespace onecopy {
namespace {

template <class Rows>
SentItems::Blocks kind_of(const Session& session, const Rows& rows, std::span<const BlockRef> blocks) {
  const auto is_large = [](const auto& row) { return row.block_size >= 64 << 10; };
  if (std::any_of(rows.begin(), rows.end(), is_large)) return SentItems::Blocks::large;
  const bool own = !blocks.empty() && session.owns(blocks.front());
  return own ? SentItems::Blocks::own : SentItems::Blocks::borrowed;
}

/// A point in the stream on each device that has one of the tensors, or else that this process has used.
ItemOrder order_of(Session& session, std::span<const Tensor> tensors, Stream stream) {
  ItemOrder order;
  std::vector<Device> devices;
  for (std::uint32_t row = 0; row < tensors.size(); ++row) {
    const Device device = tensors[row].device();
    if (device == kCpu || std::find(devices.begin(), devices.end(), device) != devices.end()) continue;
    if (stream.native && !devices.empty())
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("this message has tensors on {} and {}, and a stream is of one device; put "
                              "them as two messages, or in the order of the default streams",
                              devices.front().str(), device.str()));
    devices.push_back(device);
    session.streams().note_use(device, stream);
    if (const TimelinePoint point = session.streams().mark(device, stream))
      order.points.push_back({point.value, point.slot, row});
  }
  if (devices.empty()) return order_of_values(session, stream);
  order.putter = session.id();
  return order;
}

std::uint8_t flags_of(bool is_one, const ItemOrder& order) {
  return static_cast<std::uint8_t>((is_one ? kItemIsOneTensor : 0) |
                                   (order.points.empty() ? 0 : kItemIsOrdered));
}

constexpr std::size_t kMostKnown = SegmentDirectory::kIndices;

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

std::size_t Sender::Parts::bytes() const noexcept {
  std::size_t bytes = sizeof(ItemHead) + encoded_size(order) + data.size();
  for (const Outgoing& out : rows) bytes += encoded_size(out.row);
  return bytes;
}

std::size_t Sender::Parts::write(std::byte* const begin) const {
  store(begin, head);
  std::byte* out = begin + sizeof head;
  for (const Outgoing& outgoing : rows) out = encode(outgoing.row, out);
  if (!order.points.empty()) out = encode(order, out);
  if (!data.empty()) std::memcpy(out, data.data(), data.size());
  return static_cast<std::size_t>(out - begin) + data.size();
}

/// An epoch takes at least SegmentDirectory::kHalf new segments, so the next attempt is the last as a rule.
template <class Put>
bool Sender::until_settled(Put&& put) {
  for (;;) {
    try {
      return put();
    } catch (const HasTurned&) {  // NOLINT(bugprone-empty-catch)
    }
  }
}

bool Sender::put(Session& session, const Tensor& tensor, TimePoint deadline, Stream stream) {
  return until_settled([&] { return try_put_one(session, tensor, deadline, stream, nullptr); });
}

bool Sender::put(Session& session, Tensor&& tensor, TimePoint deadline, Stream stream) {
  if (!until_settled([&] { return try_put_one(session, tensor, deadline, stream, &tensor); })) return false;
  tensor.release();
  return true;
}

bool Sender::try_put_one(Session& session, const Tensor& tensor, TimePoint deadline, Stream stream,
                         Tensor* given) {
  const Limits limits{deadline};
  const std::uint32_t epoch = directory_.epoch();
  const std::optional<Outgoing> out = outgoing(session, tensor, limits, epoch);
  const ItemOrder order = order_of(session, {&tensor, 1}, stream);
  const Parts parts{{0, 0, 1, flags_of(true, order)}, {&*out, 1}, order, {}, epoch};
  if (parts.bytes() > kMaxItemBytes) return put_elsewhere(session, parts, {tensor.block()}, limits);
  return put_inline(session, parts, {&tensor.block(), 1}, deadline, given);
}

bool Sender::put(Session& session, const Message& message, TimePoint deadline, Stream stream) {
  return put_message(session, message, {deadline}, stream);
}

bool Sender::put_at_once(Session& session, const Message& message, Stream stream) {
  return put_message(session, message, {kNow, false}, stream);
}

void Sender::prepare(Session& session, const Message& message, TimePoint deadline) {
  for (const Tensor& tensor : message.tensors) {
    SharedKeeper& keeper = shared_keeper(tensor, "put");
    index_of(session, tensor, keeper, session.locate(keeper, tensor).info.segment, {deadline},
             directory_.epoch());
  }
}

bool Sender::put_message(Session& session, const Message& message, const Limits& limits, Stream stream) {
  check_size(message);
  return until_settled([&] { return try_put_message(session, message, limits, stream); });
}

bool Sender::try_put_message(Session& session, const Message& message, const Limits& limits,
                             Stream stream) {
  const std::uint32_t epoch = directory_.epoch();
  std::vector<Outgoing> rows;
  std::vector<BlockRef> blocks;
  for (const Tensor& tensor : message.tensors) {
    std::optional<Outgoing> out = outgoing(session, tensor, limits, epoch);
    if (!out) return false;
    rows.push_back(*std::move(out));
    blocks.push_back(tensor.block());
  }
  const ItemOrder order = order_of(session, message.tensors, stream);
  const bool is_one = rows.size() == 1 && message.tag == 0 && message.data.empty();
  const ItemHead head{message.tag, static_cast<std::uint32_t>(message.data.size()),
                      static_cast<std::uint16_t>(rows.size()), flags_of(is_one, order), message.kind};
  const Parts parts{head, rows, order, message.data, epoch};
  if (parts.bytes() > kMaxItemBytes) return put_elsewhere(session, parts, std::move(blocks), limits);
  return put_inline(session, parts, blocks, limits.deadline);
}

bool Sender::put_inline(Session& session, const Parts& parts, std::span<const BlockRef> blocks,
                        TimePoint deadline, Tensor* given) {
  SentItems::Blocks kind = kind_of(session, parts.rows, blocks);
  const auto write = [&](std::uint64_t position, std::span<std::byte> space) {
    if (directory_.epoch() != parts.epoch) [[unlikely]]
      throw HasTurned();
    if (kind == SentItems::Blocks::large && sent_.ends_with(blocks)) kind = SentItems::Blocks::borrowed;
    if (given) {
      sent_.reserve();  // what can fail, while the block is still the caller's
      sent_.push(position, given->take_block());
    } else {
      sent_.push(position, blocks);
    }
    // Last: a spinning getter takes the slot's cache line away again and again until the commit.
    const std::size_t size = parts.write(space.data());
    point("queue.put.encoded");
    return size;
  };
  if (!ring_.put(write, deadline)) return false;
  sent_.release_some(kind, [this] { return ring_.head(); });
  if (!sent_.empty()) session.watch().request_tick();
  point("queue.put.done");
  return true;
}

/// The order is part of what is elsewhere: nobody touches the tensors before they have read it.
bool Sender::put_elsewhere(Session& session, const Parts& parts, std::vector<BlockRef> blocks,
                           const Limits& limits) {
  const Tensor item = empty(Layout(DType::u8, {static_cast<std::int64_t>(parts.bytes())}));
  parts.write(item.as<std::byte>());
  point("queue.put.written_elsewhere");
  std::vector<BlockRef> held = blocks;  // the item keeps them, but not beyond this process's death
  held.push_back(item.block());
  session.keep_with(item.block(), std::move(blocks));
  point("queue.put.kept_elsewhere");
  const std::optional<Outgoing> out = outgoing(session, item, limits, parts.epoch);
  if (!out) return false;
  const auto flags = static_cast<std::uint8_t>((parts.head.flags & kItemIsOneTensor) | kItemIsElsewhere);
  return put_inline(session, {{0, 0, 1, flags}, {&*out, 1}, ItemOrder{}, {}, parts.epoch}, held,
                    limits.deadline);
}

std::optional<Sender::Outgoing> Sender::outgoing(Session& session, const Tensor& tensor,
                                                 const Limits& limits, std::uint32_t epoch) {
  SharedKeeper& keeper = shared_keeper(tensor, "put");
  const BlockSpot spot = session.locate(keeper, tensor);
  const std::optional<std::uint16_t> index =
      index_of(session, tensor, keeper, spot.info.segment, limits, epoch);
  std::optional<Outgoing> out;
  if (!index) [[unlikely]]
    return out;
  out.emplace();
  out->block_size = spot.info.size;
  out->row.segment = *index;
  if (*index == kWholeHandle) [[unlikely]] {
    out->handle = encode(session.share(tensor).fields());
    out->row.handle = out->handle;
    return out;
  }
  out->row.generation = spot.info.generation;
  out->row.tensor_offset = static_cast<std::uint64_t>(tensor.as<std::byte>() - spot.data);
  out->row.block = spot.info.number;
  out->row.layout = tensor.layout();
  return out;
}

/// The segment's index in the directory: one of `epoch`, or of the epoch that this call has begun. Two threads may enter
/// a segment at once; then it has two entries, which does no harm.
std::optional<std::uint16_t> Sender::index_of(Session& session, const Tensor& tensor, SharedKeeper& keeper,
                                              std::uint32_t segment, const Limits& limits,
                                              std::uint32_t epoch) {
  const Key key{keeper.serial(), segment, tensor.access()};
  if (has_lost_creator()) [[unlikely]]
    doubt_deposits();
  if (const auto index = last_.find(std::get<0>(key), std::get<1>(key), std::get<2>(key), epoch))
    return *index;
  const std::optional<Known> before = find_known(key);
  const bool must_ask_creator = !before || must_ask(session, *before);
  if (!must_ask_creator && has_index(*before, epoch)) return before->index;
  if (!limits.may_ask) return {};
  Known now = before.value_or(Known{});
  const SegmentRef ref = session.name_segment(keeper, tensor);
  const Patience patience(limits.deadline);
  if (must_ask_creator) ask_creator(session, tensor, ref.kind, now);
  if (!has_index(now, epoch)) enter(ref, tensor.access(), limits.deadline, now);
  remember(key, now);
  return now.index;
}

/// A segment for which there was no room gets an index once there is some.
bool Sender::has_index(const Known& known, std::uint32_t epoch) const noexcept {
  return known.epoch == epoch && (known.index != kWholeHandle || !directory_.has_room());
}

void Sender::rely_on_creator(Session& session) {
  const ConnectionEnd creator = session.queues().connection_end(creator_);
  if (!creator) return;
  const std::lock_guard lock(known_mutex_);
  if (relied_on_once_.empty() || relied_on_once_.back() != creator) relied_on_once_.push_back(creator);
  relied_on_.store(creator.get(), std::memory_order_release);
}

/// What it was asked to keep it may have let go of since.
bool Sender::has_lost_creator() const noexcept {
  const std::atomic<bool>* const has_ended = relied_on_.load(std::memory_order_acquire);
  return has_ended && *has_ended;
}

/// It is asked for everything again.
void Sender::doubt_deposits() noexcept {
  const std::lock_guard lock(known_mutex_);
  relied_on_ = nullptr;
  for (auto& [key, known] : known_) known.ask_again = TimePoint::min();
  last_.forget();
}

bool Sender::must_ask(Session& session, const Known& known) const {
  return !known.is_settled() && known.ask_again <= std::chrono::steady_clock::now() &&
         !session.queues().is_silent(creator_);
}

std::optional<Sender::Known> Sender::find_known(const Key& key) {
  const std::lock_guard lock(known_mutex_);
  const auto at = known_.find(key);
  if (at == known_.end()) return {};
  remember_last(key, at->second);
  return at->second;
}

void Sender::remember(const Key& key, const Known& known) {
  const std::lock_guard lock(known_mutex_);
  if (known_.size() == kMostKnown) forget_most();
  Known& before = known_[key];
  if (known.is_unkept && !before.is_unkept) unkept_.fetch_add(1, std::memory_order_relaxed);
  if (!known.is_unkept && before.is_unkept) unkept_.fetch_sub(1, std::memory_order_relaxed);
  before = known;
  remember_last(key, known);
}

/// REQUIRES: known_mutex_. Most are of segments that are gone. Those that are counted stay, or are counted no more.
void Sender::forget_most() noexcept {
  std::erase_if(known_, [](const auto& known) { return !known.second.is_unkept; });
  if (known_.size() < kMostKnown) return;
  unkept_.store(0, std::memory_order_relaxed);
  known_.clear();
}

/// REQUIRES: known_mutex_.
void Sender::remember_last(const Key& key, const Known& known) noexcept {
  if (known.is_settled() && known.index != kWholeHandle)
    last_.remember(std::get<0>(key), std::get<1>(key), std::get<2>(key), known.epoch, known.index);
}

void Sender::ask_creator(Session& session, const Tensor& tensor, SegmentKind kind, Known& known) {
  constexpr std::chrono::seconds kOutOfReach{10};
  const Retention retention = session.queues().retain(tensor.block(), creator_, directory_.queue());
  point("queue.put.deposited");
  const bool is_retained = retention == Retention::retained;
  const bool is_needless = retention == Retention::not_needed;
  known.is_unkept = !is_needless && (!is_retained || is_weak(kind));
  known.ask_again = TimePoint::max();
  if (retention == Retention::pending) known.ask_again = TimePoint::min();
  if (retention == Retention::unreachable) known.ask_again = std::chrono::steady_clock::now() + kOutOfReach;
  if (is_retained || is_needless) rely_on_creator(session);
}

/// This process holds the memory, and is named as its maker in the entry; receivers ask the creator by themselves.
void Sender::enter(const SegmentRef& segment, Access access, TimePoint deadline, Known& known) {
  ring_.exclusively(deadline, [&] {
    known.index = directory_.append(segment, access).value_or(kWholeHandle);
    known.epoch = directory_.epoch();
  });
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
  last_.forget();
  relied_on_ = nullptr;
  relied_on_once_.clear();
  unkept_ = 0;
}

}  // namespace onecopy
