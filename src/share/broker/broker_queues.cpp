// SPDX-License-Identifier: Apache-2.0
// Which processes have which queue open, and which segments of ours they retain for it should this process die.
#include <algorithm>

#include "onecopy/core/error.h"
#include "os/log.h"
#include "share/broker/broker.h"
#include "share/format/process_name.h"

namespace onecopy {

void Broker::spread(std::uint32_t segment, std::uint64_t queue) {
  const LockGuard lock(mutex_);
  if (!spread_[queue].insert(segment).second) return;
  for (Connection& c : connections_)
    if (c.is_open() && c.has_joined(queue)) ask_to_retain(c, segment, queue);
}

void Broker::forget_queue(std::uint64_t queue) noexcept {
  const LockGuard lock(mutex_);
  spread_.erase(queue);
}

void Broker::ask_to_retain(Connection& c, std::uint32_t segment, std::uint64_t queue) noexcept {
  try {
    const ExportedMemory memory = ledger_.export_segment(segment, Access::read_write);
    require_all(memory);
    const Fd table = ledger_.export_table();
    const ProcessOrigin origin = ledger_.origin();
    const wire::RetainMine body{{wire::to_name(public_name(self_)), origin.pid, origin.start_time,
                                 memory.size, queue, 0, segment, static_cast<std::uint8_t>(memory.kind),
                                 memory.device}};
    flag_device_memory(c, memory);
    send(c, wire::pack(body, memory.blob), wire::descriptors(memory, table));
  } catch (const Error& e) {
    if (e.code() != ErrorCode::peer_died) log_warning(e.what());
  }
}

/// Items in the queue may lie in our segments, and we may die before they are taken.
void Broker::join(Connection& c, ByteSpan packet) {
  const std::uint64_t queue = wire::body_of<wire::JoinQueue>(packet).queue;
  {
    const LockGuard lock(mutex_);
    if (!c.has_joined(queue)) c.joined.push_back(queue);
    const auto at = spread_.find(queue);
    if (at != spread_.end())
      for (const std::uint32_t segment : at->second) ask_to_retain(c, segment, queue);
  }
  report_users(queue);
  reply(c, wire::pack(wire::Joined{}));
}

void Broker::leave(Connection& c, std::uint64_t queue) {
  retention_.segments.release_all_by(&c, queue);
  {
    const LockGuard lock(mutex_);
    if (std::erase(c.joined, queue) == 0) return;
  }
  report_users(queue);
}

void Broker::report_users(std::uint64_t queue) {
  std::size_t users = 0;
  {
    const LockGuard lock(mutex_);
    for (const Connection& c : connections_) users += c.has_joined(queue);
  }
  retention_.queues.report_users(queue, users);
}

}  // namespace onecopy
