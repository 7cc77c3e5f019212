// SPDX-License-Identifier: Apache-2.0
#include "channel/queue/receiver.h"

#include <fmt/format.h>

#include "onecopy/core/error.h"
#include "os/deadline_scope.h"

namespace onecopy {
namespace {

/// Returns whether the item stays and can be taken later, when there is room or when its stopped owner continues.
bool may_succeed_later(ErrorCode code) noexcept { return is_shortage(code) || code == ErrorCode::timeout; }

/// Returns whether the item stays: also if the caller asked for what the item cannot give (one tensor, or a stream that
/// is being captured).
bool is_kept(ErrorCode code) noexcept {
  return may_succeed_later(code) || code == ErrorCode::invalid_argument || code == ErrorCode::unsupported;
}

/// Returns the error for an item that is lost, which is never a timeout: a timeout means that the item is still there.
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

/// The state of one call that takes an item.
struct Receiver::Attempt {
  Wants wants;
  Stream stream;
  Contents& contents;
  std::uint64_t position = ~std::uint64_t{0};  ///< the position of the item that was opened slowly
  Bytes copy;                                  ///< the bytes of that item
  std::optional<Error> lost;                   ///< the reason why the item cannot be opened
};

Receiver::Receiver(Ring& ring, const SegmentDirectory& directory, const TensorUnpacker::Holders& holders)
    : ring_(ring), unpacker_(directory, holders) {}

std::optional<Message> Receiver::get(Session& session, Deadline deadline, Stream stream) {
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
  UnpackedTensors& tensors = contents.tensors;
  Message message{contents.tag, std::move(contents.data), std::move(tensors.others), contents.kind};
  if (tensors.first) message.tensors.insert(message.tensors.begin(), std::move(tensors.first));
  return message;
}

std::optional<Tensor> Receiver::get_tensor(Session& session, Deadline deadline, Stream stream) {
  Contents contents;
  if (!take(session, deadline, Wants::tensor, stream, contents)) return {};
  return std::move(contents.tensors.first);
}

bool Receiver::take(Session& session, Deadline deadline, Wants wants, Stream stream, Contents& contents) {
  Attempt attempt{wants, stream, contents, ~std::uint64_t{0}, {}, {}};
  const auto look = [&](const RingItem& item) { return accept(session, item, attempt); };
  for (;;) {
    const TakeResult taken = ring_.take(look, deadline);
    if (taken == TakeResult::timed_out) return false;
    if (taken == TakeResult::yes) break;
    if (wants == Wants::quick_message) return false;
    point("queue.get.deferred");
    open_slowly(session, attempt, deadline);
    point("queue.get.opened");
  }
  if (attempt.lost) throw lost(*attempt.lost);
  order(session, contents, stream);
  point("queue.get.done");
  return true;
}

/// Takes the item if it can be opened without a question. Runs under the consumers' lock, so it is quick.
bool Receiver::accept(Session& session, const RingItem& item, Attempt& attempt) {
  if (attempt.position == item.position) return true;
  try {
    attempt.lost.reset();
    UnpackedTensors& tensors = attempt.contents.tensors;
    const auto unpack = [&](ItemReader& reader) { return unpacker_.try_unpack(session, reader, tensors); };
    if (attempt.wants == Wants::tensor && (ItemReader(item.bytes).head().flags & kItemIsOneTensor) == 0)
      throw_not_one_tensor();
    // An item that is elsewhere is long, and its tensors may belong to any process.
    if (!ItemReader(item.bytes).is_elsewhere() && read(item.bytes, attempt.contents, unpack) &&
        can_be_ordered(session, tensors, attempt.stream) &&
        (attempt.wants != Wants::quick_message ||
         can_be_ordered_quickly(session, tensors, attempt.stream))) {
      point("queue.get.claimed");
      return true;
    }
    if (attempt.wants == Wants::quick_message) return false;
    attempt.copy.assign(item.bytes.begin(), item.bytes.end());
    attempt.position = item.position;
    return false;
  } catch (const Error& error) {
    // A fault of a device in this process does not lose the item either: other processes may take it.
    if (is_kept(error.code()) || error.domain() == ErrorDomain::cuda ||
        error.domain() == ErrorDomain::ascend)
      throw;
    attempt.lost = error;
    return true;
  }
}

/// Opens an item without a lock, because it may connect to the owner, or wait until the owner's death is certain.
void Receiver::open_slowly(Session& session, Attempt& attempt, Deadline deadline) {
  const DeadlineScope scope(deadline);
  Contents& contents = attempt.contents;
  try {
    open(session, attempt.copy, contents);
    if (contents.is_elsewhere) open_elsewhere(session, contents);
    prepare_order(session, contents.tensors);
  } catch (const Error& error) {
    if (may_succeed_later(error.code())) throw;
    attempt.lost = error;
    return;
  }
  if (contents.tensors.order.is_of_values()) return;
  // Throws if the points are unknown because the putter is gone.
  can_be_ordered(session, contents.tensors, attempt.stream);
}

/// Unpacks an item. Returns false if `unpack` does.
template <class Unpack>
bool Receiver::read(ByteSpan item, Contents& contents, Unpack&& unpack) {
  contents.clear();
  ItemReader reader(item);
  contents.tag = reader.head().tag;
  contents.kind = reader.head().kind;
  contents.is_elsewhere = reader.is_elsewhere();
  if (!unpack(reader)) return false;
  const ByteSpan data = reader.data();
  if (!data.empty()) contents.data.assign(data.begin(), data.end());
  return true;
}

void Receiver::open(Session& session, ByteSpan item, Contents& contents) {
  read(item, contents,
       [&](ItemReader& reader) { return unpacker_.unpack(session, reader, contents.tensors), true; });
}

/// Opens an item that was written to a block, which keeps the tensors until each is claimed.
void Receiver::open_elsewhere(Session& session, Contents& contents) {
  const Tensor item = std::move(contents.tensors.first);
  if (item.device() != kCpu)
    throw Error(ErrorCode::bad_handle, "an item that was written to memory of " + item.device().str());
  open(session, {item.as<std::byte>(), item.nbytes()}, contents);
  if (contents.is_elsewhere) throw Error(ErrorCode::bad_handle, "an item that is elsewhere twice");
}

/// Orders the tensors. REQUIRES: no lock is held, and the item has been taken.
void Receiver::order(Session& session, Contents& contents, Stream stream) {
  try {
    put_in_order(session, contents.tensors, stream);
  } catch (const Error& error) {
    throw lost(error);
  }
}

}  // namespace onecopy
