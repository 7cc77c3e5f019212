// SPDX-License-Identifier: Apache-2.0
// Which processes have which queue open, and which segments of ours they keep for it should we die.
#include <algorithm>

#include "onecopy/core/error.h"
#include "os/log.h"
#include "share/broker/broker.h"
#include "share/format/process_name.h"

namespace onecopy {

void Broker::spread_deposit(std::uint32_t segment, std::uint64_t channel) {
  const LockGuard lock(mutex_);
  if (!spread_[channel].insert(segment).second) return;
  for (Connection& c : connections_)
    for (const wire::JoinChannel& joined : c.joined)
      if (joined.channel == channel && c.is_open()) send_keep(c, segment, channel);
}

void Broker::forget_channel(std::uint64_t channel) noexcept {
  const LockGuard lock(mutex_);
  spread_.erase(channel);
}

void Broker::send_keep(Connection& c, std::uint32_t segment, std::uint64_t channel) noexcept {
  try {
    const ExportedMemory memory = ledger_.export_segment(segment, Access::read_write);
    require_all(memory);
    const Fd table = ledger_.export_table();
    const ProcessOrigin origin = ledger_.origin();
    const wire::Deposit body{wire::to_name(public_name(self_)),
                             origin.pid,
                             origin.start_time,
                             memory.size,
                             channel,
                             0,
                             segment,
                             static_cast<std::uint8_t>(memory.kind),
                             memory.device};
    note_what_is_sent(c, memory);
    send(c, wire::pack(wire::Type::keep, body, memory.blob), wire::descriptors(memory, table));
  } catch (const Error& e) {
    if (e.code() != ErrorCode::peer_died) log_warning(e.what());
  }
}

/// Items in the queue may lie in our segments, and we may die before they are taken.
void Broker::join(Connection& c, ByteSpan packet) {
  const auto body = wire::body_of<wire::JoinChannel>(packet);
  {
    const LockGuard lock(mutex_);
    const auto is_it = [&](const auto& j) { return j.channel == body.channel && j.role == body.role; };
    if (std::none_of(c.joined.begin(), c.joined.end(), is_it)) c.joined.push_back(body);
    const auto at = spread_.find(body.channel);
    if (at != spread_.end())
      for (const std::uint32_t segment : at->second) send_keep(c, segment, body.channel);
  }
  report_users(body);
  reply(c, wire::pack(wire::Type::joined, wire::Joined{}));
}

void Broker::leave(Connection& c, const wire::JoinChannel& which) {
  deposits_.leave(&c, which.channel);
  {
    const LockGuard lock(mutex_);
    const auto at = std::find_if(c.joined.begin(), c.joined.end(), [&](const auto& j) {
      return j.channel == which.channel && j.role == which.role;
    });
    if (at == c.joined.end()) return;
    c.joined.erase(at);
  }
  report_users(which);
}

void Broker::report_users(const wire::JoinChannel& which) {
  std::size_t users = 0;
  {
    const LockGuard lock(mutex_);
    for (const Connection& c : connections_)
      users += std::any_of(c.joined.begin(), c.joined.end(), [&](const auto& j) {
        return j.channel == which.channel && j.role == which.role;
      });
  }
  deposits_.report_users(which.channel, which.role, users);
}

}  // namespace onecopy
