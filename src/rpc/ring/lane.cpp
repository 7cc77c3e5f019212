// SPDX-License-Identifier: Apache-2.0
#include "rpc/ring/lane.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "onecopy/core/error.h"
#include "onecopy/share/share.h"
#include "os/deadline_scope.h"
#include "os/log.h"

namespace onecopy::rpc {
namespace {

/// The max time that a process which is stopped with the ring's lock delays others.
constexpr std::chrono::seconds kTimeout{10};

/// The size in bytes from which a tensor's block is released as soon as the tensor was taken, so that calls use few
/// blocks in turn.
constexpr std::size_t kLarge = std::size_t{64} << 10;

Tensor make_zeroed() {
  Tensor memory = empty(Layout(DType::u8, {4096}));
  std::memset(memory.data(), 0, memory.nbytes());
  return memory;
}

Doorbell* bell_in(const Tensor& memory) {
  const bool fits = memory.device() == kCpu && memory.nbytes() >= sizeof(Doorbell) &&
                    reinterpret_cast<std::uintptr_t>(memory.data()) % alignof(Doorbell) == 0;
  if (!fits) throw Error(ErrorCode::protocol, "another member named memory that is no doorbell");
  return reinterpret_cast<Doorbell*>(memory.as<std::byte>());
}

/// Returns whether the error means that a message is lost, because its sender died or the caller's deadline passed.
bool is_loss(ErrorCode code) noexcept {
  return code == ErrorCode::stale_handle || code == ErrorCode::owner_died || code == ErrorCode::peer_died ||
         code == ErrorCode::bad_handle;
}

}  // namespace

DoorbellMemory::DoorbellMemory() : memory_(make_zeroed()), bell_(bell_in(memory_)) {}

DoorbellMemory::DoorbellMemory(const Handle& handle) : memory_(open(handle)), bell_(bell_in(memory_)) {}

Handle DoorbellMemory::handle() const { return share(memory_); }

Inbound::Inbound() : channel_(&Channel::create({})) { channel_->read_alone(); }

/// Takes a message in the order of the default streams; the thread that decodes it orders its own streams behind them.
std::optional<Message> Inbound::try_take(std::chrono::milliseconds patience) {
  const PatienceScope scope(patience);
  while (is_ready()) {
    Session& session = channel_->session();
    try {
      if (auto message = channel_->receiver().get_at_once(session, {})) return message;
      if (auto message = channel_->receiver().get(session, kNow, {})) return message;
      return {};
    } catch (const Error& error) {
      if (error.code() == ErrorCode::closed) return {};
      if (!is_loss(error.code())) throw;
      log_warning(fmt::format("a message of rpc was lost: {}", error.what()));
    }
  }
  return {};
}

void RingConnection::send(const Message& message, Stream stream, Deadline deadline) {
  const auto is_large = [](const Tensor& tensor) { return tensor.nbytes() >= kLarge; };
  if (std::ranges::any_of(message.tensors, is_large))
    channel_->sender().in_flight().release_taken(channel_->ring().head(), false);
  channel_->sender().put(channel_->session(), message, std::min(deadline, Deadline::after_about(kTimeout)),
                         stream);
}

/// Reads the head only once in kMaxUnread messages, because the head's cache line belongs to the reader.
bool RingConnection::is_full() noexcept {
  const std::uint64_t sent = channel_->ring().tail();
  if (sent - head_seen_.load(std::memory_order_relaxed) < kMaxUnread) return false;
  const std::uint64_t head = channel_->ring().head();
  head_seen_.store(head, std::memory_order_relaxed);
  return sent - head >= kMaxUnread;
}

}  // namespace onecopy::rpc
