// SPDX-License-Identifier: Apache-2.0
#include "channel/queue/receiver.h"

#include <fmt/format.h>

#include "channel/queue/value_order.h"
#include "onecopy/core/error.h"
#include "os/patience.h"
#include "share/session.h"

namespace onecopy {
namespace {

/// Bytes that the row's tensor reaches, from the start of its block.
std::uint64_t reach(const ItemRow& row) {
  std::uint64_t end = 0;
  if (__builtin_add_overflow(row.tensor_offset, row.layout.extent_bytes(), &end) || end > INT64_MAX)
    throw Error(ErrorCode::bad_handle, "a tensor in this queue reaches beyond any memory");
  return end;
}

HandleFields fields_of(const ItemRow& row, const SegmentDirectory::Entry& entry) {
  HandleFields fields;
  fields.owner = entry.segment.owner;
  fields.maker = entry.segment.maker;
  fields.segment = entry.segment.number;
  fields.kind = entry.segment.kind;
  fields.device_type = device_type(entry.segment.kind);
  fields.device = entry.segment.device;
  fields.segment_size = entry.segment.size;
  fields.block = row.block;
  fields.generation = row.generation;
  fields.storage_size = reach(row);
  fields.tensor_offset = row.tensor_offset;
  fields.flags = entry.access == Access::read_only ? kHandleIsReadOnly : 0;
  fields.layout = row.layout;
  return fields;
}

/// Not the item's fault: it stays, and can be taken when there is room, or when its stopped owner goes on.
bool passes(ErrorCode code) noexcept {
  return code == ErrorCode::out_of_memory || code == ErrorCode::out_of_mappings ||
         code == ErrorCode::out_of_descriptors || code == ErrorCode::timeout;
}

/// Nor is what the caller asked for: one tensor, or a stream that is being captured.
bool is_kept(ErrorCode code) noexcept {
  return passes(code) || code == ErrorCode::invalid_argument || code == ErrorCode::unsupported;
}

/// Never a timeout: that says that the item is still there.
Error lost(const Error& why) {
  const ErrorCode code = why.code() == ErrorCode::timeout ? ErrorCode::peer_died : why.code();
  return Error(code, fmt::format("an item was taken out of the queue and is lost: {}", why.what()),
               why.vendor_code(), why.domain());
}

[[noreturn]] void throw_not_one_tensor() {
  throw Error(ErrorCode::invalid_argument,
              "the next item of the queue was put as a message, not as one tensor; use get()");
}

}  // namespace

/// One call's way to an item.
struct Receiver::Attempt {
  Wants wants;
  Stream stream;
  Contents& contents;
  std::uint64_t position = ~std::uint64_t{0};  ///< of the item that was opened slowly
  Bytes copy;                                  ///< that item
  std::optional<Error> lost;                   ///< why it cannot be opened
};

Receiver::Receiver(Ring& ring, const SegmentDirectory& directory, const Keepers& keepers)
    : ring_(ring),
      directory_(directory),
      keepers_(keepers),
      open_segments_(Mapping::anonymous(SegmentDirectory::kIndices * sizeof(OpenSegment))) {}

void Receiver::reset(const ProcessId& parent) {
  keepers_[1] = parent;
  open_segments_ = Mapping::anonymous(SegmentDirectory::kIndices * sizeof(OpenSegment));
  owners_.clear();
}

std::optional<Message> Receiver::get(Session& session, TimePoint deadline, Stream stream) {
  Contents contents;
  if (!take(session, deadline, Wants::message, stream, contents)) return {};
  return to_message(contents);
}

std::optional<Message> Receiver::get_at_once(Session& session, Stream stream) {
  Contents contents;
  if (!take(session, kNow, Wants::quick_message, stream, contents)) return {};
  return to_message(contents);
}

Message Receiver::to_message(Contents& contents) {
  Message message{contents.tag, std::move(contents.data), std::move(contents.others), contents.kind};
  if (contents.first) message.tensors.insert(message.tensors.begin(), std::move(contents.first));
  return message;
}

std::optional<Tensor> Receiver::get_tensor(Session& session, TimePoint deadline, Stream stream) {
  Contents contents;
  if (!take(session, deadline, Wants::tensor, stream, contents)) return {};
  return std::move(contents.first);
}

bool Receiver::take(Session& session, TimePoint deadline, Wants wants, Stream stream, Contents& contents) {
  Attempt attempt{wants, stream, contents, ~std::uint64_t{0}, {}, {}};
  const auto look = [&](const RingItem& item) { return accept(session, item, attempt); };
  for (;;) {
    const Taken taken = ring_.take(look, deadline);
    if (taken == Taken::timed_out) return false;
    if (taken == Taken::yes) break;
    if (wants == Wants::quick_message) return false;
    point("queue.get.deferred");
    open_slowly(session, attempt, deadline);
    point("queue.get.opened");
  }
  if (attempt.lost) throw lost(*attempt.lost);
  put_in_order(session, contents, stream);
  point("queue.get.done");
  return true;
}

/// Under the consumers' lock: quick, and without a question to anybody.
bool Receiver::accept(Session& session, const RingItem& item, Attempt& attempt) {
  if (attempt.position == item.position) return true;
  try {
    attempt.lost.reset();
    const auto open = [&](const ItemRow& row) { return try_open(session, row); };
    if (attempt.wants == Wants::tensor && (ItemReader(item.bytes).head().flags & kItemIsOneTensor) == 0)
      throw_not_one_tensor();
    // What is elsewhere is long, and its tensors may be anybody's.
    if (!ItemReader(item.bytes).is_elsewhere() && read(item.bytes, attempt.contents, open) &&
        can_be_ordered(session, attempt.contents, attempt.stream) &&
        (attempt.wants != Wants::quick_message ||
         can_be_ordered_quickly(session, attempt.contents, attempt.stream))) {
      point("queue.get.claimed");
      return true;
    }
    if (attempt.wants == Wants::quick_message) return false;
    attempt.copy.assign(item.bytes.begin(), item.bytes.end());
    attempt.position = item.position;
    return false;
  } catch (const Error& error) {
    // Nor what is wrong with a device in this process: others may take the item.
    if (is_kept(error.code()) || error.domain() == ErrorDomain::cuda ||
        error.domain() == ErrorDomain::ascend)
      throw;
    attempt.lost = error;
    return true;
  }
}

/// With no lock held: this may connect to the owner, or wait for it to be known dead.
void Receiver::open_slowly(Session& session, Attempt& attempt, TimePoint deadline) {
  const Patience patience(deadline);
  try {
    Contents& contents = attempt.contents;
    read(attempt.copy, contents, [&](const ItemRow& row) { return open(session, row); });
    if (contents.elsewhere) read_elsewhere(session, contents);
    if (contents.order.is_of_values()) return ask_for(session, contents.order);
    for (const ItemPoint& p : contents.order.points)
      session.streams().prepare_wait(contents.order.putter, contents.row(p.row).device());
  } catch (const Error& error) {
    if (passes(error.code())) throw;
    attempt.lost = error;
    return;
  }
  can_be_ordered(session, attempt.contents, attempt.stream);  // unknown: the putter is gone
}

/// False as soon as one of the tensors did not open.
template <class Open>
bool Receiver::read(ByteSpan item, Contents& contents, Open&& open) {
  contents.clear();
  ItemReader reader(item);
  contents.tag = reader.head().tag;
  contents.kind = reader.head().kind;
  contents.elsewhere = reader.is_elsewhere();
  for (std::size_t i = 0; i < reader.head().rows; ++i) {
    Tensor tensor = open(reader.next_row());
    if (!tensor) return false;
    if (i == 0) contents.first = std::move(tensor);
    else contents.others.push_back(std::move(tensor));
  }
  contents.order = reader.order();
  for (const ItemPoint& p : contents.order.points)
    if (p.row != kNoRow && contents.row(p.row).device() == kCpu)
      throw Error(ErrorCode::bad_handle, "memory of the host that waits for a stream");
  const ByteSpan data = reader.data();
  if (!data.empty()) contents.data.assign(data.begin(), data.end());
  return true;
}

/// The block that the item was written to keeps the tensors until they are claimed one by one.
void Receiver::read_elsewhere(Session& session, Contents& contents) {
  const Tensor item = std::move(contents.first);
  if (item.device() != kCpu)
    throw Error(ErrorCode::bad_handle, "an item that was written to memory of " + item.device().str());
  read({item.as<std::byte>(), item.nbytes()}, contents,
       [&](const ItemRow& row) { return open(session, row); });
  if (contents.elsewhere) throw Error(ErrorCode::bad_handle, "an item that is elsewhere twice");
}

/// Without asking anybody. Throws unsupported while the item can stay: in a captured stream it cannot be.
bool Receiver::can_be_ordered(Session& session, Contents& contents, Stream stream) {
  if (contents.order.is_of_values()) return is_known(session, contents.order);
  for (const ItemPoint& p : contents.order.points) {
    const auto reached = session.streams().has_passed(contents.order.putter, {p.slot, p.value});
    if (reached == StreamOrder::Reached::unknown) return false;
    const Device device = contents.row(p.row).device();
    if (reached == StreamOrder::Reached::no && backend(device.type).is_captured(device.index, stream))
      throw Error(ErrorCode::unsupported,
                  "this stream is being captured, and the next item of the queue waits for another "
                  "process's stream; take it before the capture, and order each launch");
  }
  return true;
}

/// Where streams cannot wait, the host does.
bool Receiver::can_be_ordered_quickly(Session& session, Contents& contents, Stream stream) {
  if (contents.order.is_of_values()) return !may_wait_on_host(session, contents.order, stream);
  for (const ItemPoint& p : contents.order.points)
    if (session.streams().has_passed(contents.order.putter, {p.slot, p.value}) ==
            StreamOrder::Reached::no &&
        session.streams().may_wait_on_host(contents.order.putter, contents.row(p.row).device()))
      return false;
  return true;
}

/// With no lock held: the driver may wait for room in the stream.
void Receiver::put_in_order(Session& session, Contents& contents, Stream stream) {
  if (contents.order.is_of_values()) return wait_for_values(session, contents.order, stream);
  try {
    for (const ItemPoint& p : contents.order.points)
      session.streams().wait_for(contents.order.putter, {p.slot, p.value}, contents.row(p.row).device(),
                                 stream);
  } catch (const Error& error) {
    throw lost(error);
  }
  for (std::size_t i = 0; i < contents.rows(); ++i)
    if (Tensor& tensor = contents.row(i); tensor.device() != kCpu)
      tensor = session.streams().order_release(tensor, stream);
}

Tensor Receiver::try_open(Session& session, const ItemRow& row) {
  if (row.segment == kWholeHandle) return {};
  return session.try_open(open_segment(row.segment), directory_.epoch_of(row.segment),
                          {row.block, row.generation}, row.tensor_offset, reach(row), row.layout);
}

Tensor Receiver::open(Session& session, const ItemRow& row) {
  if (row.segment == kWholeHandle) {
    const HandleFields fields = decode_handle(row.handle);
    return session.open(fields, fields.is_read_only() ? Access::read_only : Access::read_write, keepers_);
  }
  if (Tensor tensor = try_open(session, row)) return tensor;
  return open_entry(session, row);
}

Tensor Receiver::open_entry(Session& session, const ItemRow& row) {
  const SegmentDirectory::Entry entry = directory_.read(row.segment);
  const HandleFields fields = fields_of(row, entry);
  Tensor tensor = session.open(fields, entry.access, keepers_);
  keep_for_good(session.note(open_segment(row.segment), entry.epoch, fields, entry.access, tensor.device(),
                             keepers_));
  return tensor;
}

void Receiver::keep_for_good(std::shared_ptr<const void> owner) {
  if (!owner) return;
  const std::lock_guard lock(owners_mutex_);
  owners_.insert(std::move(owner));
}

}  // namespace onecopy
