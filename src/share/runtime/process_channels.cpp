// SPDX-License-Identifier: Apache-2.0
// What queues need: who has one open, and who keeps what is in it.
#include "onecopy/core/error.h"
#include "share/format/process_name.h"
#include "share/runtime/process.h"

namespace onecopy {

void Process::open_channel(const ProcessId& creator, std::uint64_t channel, std::uint8_t role,
                           ChannelHooks hooks) {
  deposits_.add_channel(channel, std::move(hooks));
  if (creator == id_) return;
  {
    const std::lock_guard lock(left_channels_mutex_);
    std::erase(left_channels_, LeftChannel{creator, channel, role});  // it was not told, and need not be
  }
  const Importer::PeerRef peer = importer_.connect(creator);
  try {
    peer->join_channel(channel, role);
  } catch (const Error& error) {  // a creator that is stopped reads it later
    if (error.code() != ErrorCode::timeout) throw;
  }
}

void Process::close_channel(const ProcessId& creator, std::uint64_t channel, std::uint8_t role) noexcept {
  deposits_.remove_channel(channel);
  if (creator == id_) return broker_.forget_channel(channel);
  const auto peer = importer_.find(public_name(creator));
  if (!peer || peer->leave_channel(channel, role) || peer->is_disconnected()) return;
  try {
    const std::lock_guard lock(left_channels_mutex_);
    left_channels_.push_back({creator, channel, role});
    watch_.request_tick();
  } catch (const std::bad_alloc&) {  // then the creator learns it when this process ends
  }
}

void Process::deposit(const BlockRef& block, const ProcessId& creator, std::uint64_t channel) {
  auto& keeper = static_cast<SharedKeeper&>(*block.keeper());
  const BlockPlace place = keeper.export_block(block.number(), Access::read_write);
  const std::uint32_t segment = place.info.segment;
  if (creator == id_ && keeper.owner() == id_) return broker_.spread_deposit(segment, channel);
  const DepositKey key{public_name(keeper.owner()), segment};
  if (creator != id_) {
    // First: what times out may be served later.
    const std::uint64_t number = deposits_.add_elsewhere(key, creator);
    importer_.connect(creator)->deposit(key, keeper.origin(), keeper.export_table(),
                                        importer_.pass_on(keeper, segment), channel, number);
  } else if (device_type(place.kind) != DeviceType::cpu && !is_weak(place.kind)) {
    // Of the host's memory what is open here will do.
    if (!deposits_.add(key, keeper.origin(), keeper.export_table(), importer_.pass_on(keeper, segment),
                       channel, DepositClaim{}))
      throw Error(ErrorCode::unsupported, "this process keeps no more descriptors of device memory");
  }
}

bool Process::is_silent(const ProcessId& process) const {
  const auto peer = importer_.find(public_name(process));
  return peer && !peer->is_disconnected() && peer->is_silent();
}

/// True while somebody has to be told again.
bool Process::tell_of_retired() {
  bool again = false;
  for (const auto& [segment, keepers] : deposits_.take_retired())
    for (const ProcessId& keeper : keepers) {
      const auto peer = importer_.find(public_name(keeper));
      if (!peer || peer->withdraw(segment) || peer->is_gone()) continue;
      deposits_.add_elsewhere(segment, keeper);
      again = (deposits_.retire(segment) && !peer->is_disconnected()) || again;
    }
  return again;
}

/// True while a creator has to be told again: it counts this process among its queue's users until then.
bool Process::tell_of_left_channels() noexcept {
  const std::lock_guard lock(left_channels_mutex_);
  std::erase_if(left_channels_, [this](const LeftChannel& left) {
    const auto peer = importer_.find(public_name(left.creator));
    return !peer || peer->leave_channel(left.channel, left.role) || peer->is_disconnected();
  });
  return !left_channels_.empty();
}

/// True while somebody has to be told again. One that hung up keeps it until this process ends.
bool Process::tell_of_let_go() {
  bool again = false;
  for (LetGo& last : deposits_.take_let_go()) {
    const auto peer = importer_.find(public_name(last.keeper));
    if (!peer || peer->let_go(last.key, last.number) || peer->is_disconnected()) continue;
    deposits_.let_go_later(std::move(last));
    again = true;
  }
  return again;
}

}  // namespace onecopy
