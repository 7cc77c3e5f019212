// SPDX-License-Identifier: Apache-2.0
// What queues need: who has one open, and who keeps what is in it.
#include "onecopy/core/error.h"
#include "share/process.h"
#include "share/process_name.h"

namespace onecopy {

void Process::open_channel(const ProcessId& creator, std::uint64_t channel, std::uint8_t role,
                           ChannelHooks hooks) {
  deposits_.add_channel(channel, std::move(hooks));
  if (creator == id_) return;
  Peer& peer = importer_.connect(creator);
  try {
    peer.join_channel(channel, role);
  } catch (const Error& error) {  // a creator that is stopped reads it later
    if (error.code() != ErrorCode::timeout) throw;
  }
}

void Process::close_channel(const ProcessId& creator, std::uint64_t channel, std::uint8_t role) noexcept {
  deposits_.remove_channel(channel);
  if (creator == id_) broker_.forget_channel(channel);
  else if (Peer* peer = importer_.find(public_name(creator))) peer->leave_channel(channel, role);
}

void Process::deposit(const BlockRef& block, const ProcessId& creator, std::uint64_t channel) {
  auto& keeper = static_cast<SharedKeeper&>(*block.keeper());
  const BlockPlace place = keeper.export_block(block.number(), Access::read_write);
  const std::uint32_t segment = place.info.segment;
  if (creator == id_ && keeper.owner() == id_) return broker_.spread_deposit(segment, channel);
  const DepositKey key{public_name(keeper.owner()), segment};
  if (creator != id_) {
    deposits_.add_elsewhere(key, creator);  // first: what times out may be served later
    importer_.connect(creator).deposit(key, keeper.origin(), keeper.export_table(),
                                       importer_.pass_on(keeper, segment), channel);
  } else if (device_type(place.kind) != DeviceType::cpu && !is_weak(place.kind)) {
    // Of the host's memory what is open here will do.
    if (!deposits_.add(key, keeper.origin(), keeper.export_table(), importer_.pass_on(keeper, segment),
                       channel))
      throw Error(ErrorCode::unsupported, "this process keeps no more descriptors of device memory");
  }
}

bool Process::is_silent(const ProcessId& process) const {
  const Peer* const peer = importer_.find(public_name(process));
  return peer && !peer->is_disconnected() && peer->is_silent();
}

/// True while somebody has to be told again.
bool Process::tell_of_retired() {
  bool again = false;
  for (const auto& [segment, keepers] : deposits_.take_retired())
    for (const ProcessId& keeper : keepers) {
      Peer* peer = importer_.find(public_name(keeper));
      if (!peer || peer->withdraw(segment) || peer->is_gone()) continue;
      deposits_.add_elsewhere(segment, keeper);
      again = (deposits_.retire(segment) && !peer->is_disconnected()) || again;
    }
  return again;
}

}  // namespace onecopy
