// SPDX-License-Identifier: Apache-2.0
#include "channel/receiver.h"

#include <fmt/format.h>

#include "onecopy/core/error.h"
#include "share/process.h"

namespace onecopy {
namespace {

/// Bytes that the row's tensor reaches, from the start of its block.
std::uint64_t reach(const ItemRow& row) {
  std::uint64_t end = 0;
  if (__builtin_add_overflow(row.tensor_offset, row.layout.extent_bytes(), &end) || end > INT64_MAX)
    throw Error(ErrorCode::bad_handle, "a tensor in this queue reaches beyond any memory");
  return end;
}

/// Not the item's fault: it stays, and can be taken when there is room.
bool is_shortage(ErrorCode code) noexcept {
  return code == ErrorCode::out_of_memory || code == ErrorCode::out_of_mappings ||
         code == ErrorCode::out_of_descriptors;
}

Error lost(const Error& why) {
  return Error(why.code(), fmt::format("an item was taken out of the queue and is lost: {}", why.what()),
               why.vendor_code(), why.domain());
}

[[noreturn]] void throw_not_one_tensor() {
  throw Error(ErrorCode::invalid_argument,
              "the next item of the queue was put as a message, not as one tensor; use get()");
}

}  // namespace

/// One call's way to an item.
struct Receiver::Attempt {
  bool only_tensor;
  Contents& contents;
  std::uint64_t position = ~std::uint64_t{0};  ///< of the item that was opened slowly
  Bytes copy;                                  ///< that item
  std::optional<Error> lost;                   ///< why it cannot be opened
};

Receiver::Receiver(Ring& ring, const OriginTable& origins)
    : ring_(ring),
      origins_(origins),
      known_memory_(Mapping::anonymous((OriginTable::kCapacity + 1) * sizeof(Known))) {}

void Receiver::reset() { known_memory_ = Mapping::anonymous((OriginTable::kCapacity + 1) * sizeof(Known)); }

std::optional<Message> Receiver::get(Process& process, TimePoint deadline) {
  Contents contents;
  if (!take(process, deadline, false, contents)) return {};
  Message message{contents.tag, std::move(contents.data), std::move(contents.others)};
  if (contents.first) message.tensors.insert(message.tensors.begin(), std::move(contents.first));
  return message;
}

std::optional<Tensor> Receiver::get_tensor(Process& process, TimePoint deadline) {
  Contents contents;
  if (!take(process, deadline, true, contents)) return {};
  return std::move(contents.first);
}

bool Receiver::take(Process& process, TimePoint deadline, bool only_tensor, Contents& contents) {
  Attempt attempt{only_tensor, contents, ~std::uint64_t{0}, {}, {}};
  const auto look = [&](const RingItem& item) { return accept(process, item, attempt); };
  for (;;) {
    const Taken taken = ring_.take(look, deadline);
    if (taken == Taken::timed_out) return false;
    if (taken == Taken::yes) break;
    point("queue.get.deferred");
    open_slowly(process, attempt);
    point("queue.get.opened");
  }
  if (attempt.lost) throw lost(*attempt.lost);
  if (contents.elsewhere) read_elsewhere(process, contents);
  point("queue.get.done");
  return true;
}

/// Under the consumers' lock: quick, and without a question to anybody.
bool Receiver::accept(Process& process, const RingItem& item, Attempt& attempt) {
  if (attempt.position == item.position) return true;
  try {
    attempt.contents = {};
    attempt.lost.reset();
    const auto open = [&](const ItemRow& row) { return try_open(process, row); };
    if (attempt.only_tensor && (ItemReader(item.bytes).head().flags & kItemIsOneTensor) == 0)
      throw_not_one_tensor();
    if (read(item.bytes, attempt.contents, open)) {
      point("queue.get.claimed");
      return true;
    }
    attempt.copy.assign(item.bytes.begin(), item.bytes.end());
    attempt.position = item.position;
    return false;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::bad_handle) throw;
    attempt.lost = error;
    return true;
  }
}

/// With no lock held: this may connect to the owner, or wait for it to be known dead.
void Receiver::open_slowly(Process& process, Attempt& attempt) {
  try {
    attempt.contents = {};
    read(attempt.copy, attempt.contents, [&](const ItemRow& row) { return open(process, row); });
  } catch (const Error& error) {
    if (is_shortage(error.code())) throw;
    attempt.lost = error;
  }
}

/// False as soon as one of the tensors did not open.
template <class Open>
bool Receiver::read(ByteSpan item, Contents& contents, Open&& open) {
  ItemReader reader(item);
  contents.tag = reader.head().tag;
  contents.elsewhere = reader.is_elsewhere();
  for (std::size_t i = 0; i < reader.head().rows; ++i) {
    Tensor tensor = open(reader.next_row());
    if (!tensor) return false;
    if (i == 0) contents.first = std::move(tensor);
    else contents.others.push_back(std::move(tensor));
  }
  const ByteSpan data = reader.data();
  if (!data.empty()) contents.data.assign(data.begin(), data.end());
  return true;
}

/// The block that the item was written to keeps the tensors until they are claimed one by one.
void Receiver::read_elsewhere(Process& process, Contents& contents) {
  const Tensor item = std::move(contents.first);
  contents = {};
  try {
    read({item.as<std::byte>(), item.nbytes()}, contents,
         [&](const ItemRow& row) { return open(process, row); });
    if (contents.elsewhere) throw Error(ErrorCode::bad_handle, "an item that is elsewhere twice");
  } catch (const Error& error) {
    throw lost(error);
  }
}

Tensor Receiver::try_open(Process& process, const ItemRow& row) {
  if (row.origin == kWholeHandle) return {};
  const Known& origin = known(row.origin);
  SharedKeeper* keeper = origin.keeper.load(std::memory_order_acquire);
  if (!keeper) return {};
  BlockRef block;
  std::byte* data = nullptr;
  if (keeper == &process.ledger()) {
    block = process.ledger().try_open(row.block, row.generation);
    if (!block) return {};
    const BlockSpot spot = process.ledger().export_spot(row.block);
    if (spot.info.segment == origin.segment && reach(row) <= spot.info.size) data = spot.data;
  } else {
    Peer& peer = static_cast<Peer&>(*keeper);
    block = peer.try_claim(row.block, row.generation);
    if (!block) return {};
    HandleFields fields;
    fields.block = row.block;
    fields.segment = origin.segment;
    fields.segment_size = origin.segment_size;
    fields.kind = origin.kind;
    fields.storage_size = reach(row);
    data = peer.locate(fields, origin.access);
  }
  if (!data) return {};
  process.opened_total.fetch_add(1, std::memory_order_relaxed);
  return {std::move(block), data + row.tensor_offset, row.layout, kCpu, origin.access};
}

Tensor Receiver::open(Process& process, const ItemRow& row) {
  if (Tensor tensor = try_open(process, row)) return tensor;
  const HandleFields fields = row.origin == kWholeHandle ? decode_handle(row.handle) : fields_of(row);
  const Access access = fields.is_read_only() ? Access::read_only : Access::read_write;
  Tensor tensor = process.importer().open(fields, access);
  process.opened_total.fetch_add(1, std::memory_order_relaxed);
  if (row.origin != kWholeHandle) remember(process, row, fields, access);
  return tensor;
}

HandleFields Receiver::fields_of(const ItemRow& row) const {
  const Origin origin = origins_.read(row.origin);
  HandleFields fields;
  fields.owner = origin.owner;
  fields.maker = origin.maker;
  fields.segment = origin.segment;
  fields.kind = origin.kind;
  fields.segment_size = origin.segment_size;
  fields.block = row.block;
  fields.generation = row.generation;
  fields.storage_size = reach(row);
  fields.tensor_offset = row.tensor_offset;
  fields.flags = origin.access == Access::read_only ? kHandleIsReadOnly : 0;
  fields.layout = row.layout;
  return fields;
}

/// Threads that do this at once write the same.
void Receiver::remember(Process& process, const ItemRow& row, const HandleFields& fields, Access access) {
  SharedKeeper* keeper = process.importer().prepare(fields, access);
  if (!keeper) keeper = &process.ledger();
  Known& origin = known(row.origin);
  origin.segment_size = fields.segment_size;
  origin.segment = fields.segment;
  origin.kind = fields.kind;
  origin.access = access;
  origin.keeper.store(keeper, std::memory_order_release);
}

}  // namespace onecopy
