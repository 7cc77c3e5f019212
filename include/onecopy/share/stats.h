// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "onecopy/core/api.h"
#include "onecopy/core/device.h"

ONECOPY_API_BEGIN
namespace onecopy {

/// The counts of the memory that this process shares and of the memory that it borrows.
struct Stats {
  std::uint64_t shared_total = 0;  ///< handles that were made since the start
  std::uint64_t opened_total = 0;  ///< tensors that were opened since the start
  std::uint64_t live_blocks = 0;   ///< blocks that were allocated here and are referenced here
  std::uint64_t live_bytes = 0;
  std::uint64_t limbo = 0;             ///< blocks that were freed here and are still held by borrowers
  std::uint64_t in_transit = 0;        ///< blocks held for receivers that have not taken them yet
  std::uint64_t segments = 0;          ///< segments that this process owns
  std::uint64_t foreign_segments = 0;  ///< segments of other processes that are mapped here
  std::uint64_t bytes_shared = 0;      ///< physical memory reserved in this process's segments
  std::uint64_t device_segments = 0;   ///< the part of `segments` that is memory of devices
  std::uint64_t device_bytes = 0;      ///< the part of `bytes_shared` that is memory of devices
  std::uint64_t borrowers = 0;         ///< processes that are attached to this one
  std::uint64_t owners = 0;            ///< processes that this one is attached to
  std::uint64_t leases = 0;            ///< claims that this process holds on blocks of others
  std::uint64_t deposits = 0;          ///< segments of others that are kept open for later receivers
  /// The number of segments of this process that were put into queues whose creator does not retain them: if this
  /// process dies, items that are still in the queue are lost. If the creator was stopped or too busy to answer, the
  /// segment counts until a later put has asked again. No segment counts once its queue is closed and empty, or closed
  /// here.
  std::uint64_t unkept = 0;
  std::uint64_t descriptors = 0;  ///< all open descriptors of the process
  /// The number of times the host waited in place of a stream, on devices without stream memory operations.
  std::uint64_t host_waits = 0;
  /// The number of copies from one card to another since the start: read by the other card directly, or left to the
  /// driver (staged), which copies through the host unless its own allocator has mapped the memory for both cards. A
  /// strided copy counts once for each run of bytes.
  std::uint64_t direct_copies = 0;
  std::uint64_t staged_copies = 0;
  std::uint64_t staged_bytes = 0;
  std::uint64_t pinned_bytes = 0;  ///< host memory that is pinned here for cards now
  /// The number of copies by onecopy between cards and host memory since the start. Copies of memory that is not pinned
  /// (pageable) run at a fraction of the link's speed. A copy that crosses the edge of a pinned range is cut in two.
  std::uint64_t pageable_copies = 0;
  std::uint64_t pageable_bytes = 0;
  std::uint64_t cut_copies = 0;
  /// The number of references to pinned memory that were dropped here while the cards had work, and released after that
  /// work.
  std::uint64_t late_releases = 0;
};
Stats stats();

/// Releases unused resources now instead of later: freed memory, and mappings of owners that are gone. Also ends drops
/// that wait for default streams, for which idle streams get a millisecond.
void collect();

/// Gives idle memory of this process's pools back to the system and to the cards now: the pools of one device, or of
/// all devices and the host. Keeps memory that other processes hold, and a card's segment while any block in it is in
/// use. Returns the number of bytes given back.
std::uint64_t trim(std::optional<Device> device = {});

/// A process that has opened blocks of this one.
struct BorrowerInfo {
  int pid = 0;
  std::string name;
  std::uint64_t claims = 0;  ///< the number of blocks that the process holds
};

/// The blocks that wait for a receiver in one place.
struct TransitInfo {
  std::uint64_t blocks = 0;
  double age_seconds = 0;
  std::string where;  ///< "queue ..." or "handle"
};

/// The memory of a process on one device.
struct DeviceUse {
  std::string device;  ///< the device's name in the process, e.g. "cuda:0"
  std::string uuid;    ///< the device's name in all processes; empty for the CPU
  std::uint64_t segments = 0;
  std::uint64_t bytes = 0;  ///< physical memory that is reserved in the segments
};

/// A peer in an rpc group, as one member sees it.
struct PeerInfo {
  std::string name;
  std::uint32_t number = 0;
  int pid = 0;
  std::string state;                  ///< "new" until the first call, "open", "ended", "left", or "here"
  std::uint64_t lanes = 0;            ///< connections to the peer and from it
  std::uint64_t calls_under_way = 0;  ///< calls of this process to the peer without a reply
  std::uint64_t calls = 0;            ///< calls that were sent to the peer
  std::uint64_t answers = 0;          ///< replies that were received from the peer
  std::uint64_t served = 0;           ///< calls that were received from the peer
  /// The number of tensors that went to the peer by each route.
  std::vector<std::pair<std::string, std::uint64_t>> routes;
};

/// An rpc group, as one of its members sees it.
struct GroupInfo {
  std::string name;  ///< the name of the member
  std::uint32_t number = 0;
  std::uint64_t calls_under_way = 0;
  std::uint64_t idle_workers = 0;
  std::vector<PeerInfo> peers;  ///< at most 256 peers
  std::uint64_t unlisted = 0;   ///< the number of peers that are not listed
};

/// An arena of captured graphs. Sizes are in bytes.
struct ArenaInfo {
  std::string device;        ///< the device's name in the process, e.g. "cuda:0"
  std::uint64_t shared = 0;  ///< physical memory that all its graphs share
  std::uint64_t own = 0;     ///< physical memory that belongs to one graph alone
  std::uint64_t mapped = 0;  ///< the addresses of all its graphs together
  std::uint64_t windows = 0;
  bool parked = false;
};

/// A process of this user that owns or serves shared memory, as `onecopy ls` shows it.
struct OwnerInfo {
  int pid = 0;
  std::string name;
  std::string socket;
  Stats stats;
  std::vector<DeviceUse> devices;
  std::vector<BorrowerInfo> borrowers;
  std::vector<TransitInfo> in_transit;
  std::vector<GroupInfo> groups;
  std::vector<ArenaInfo> arenas;
};

/// An owner that did not answer.
struct SilentOwner {
  int pid = 0;  ///< 0 if not even the pid is known
  std::string socket;
  std::string why;
};

/// The result of ask_owners().
struct OwnerList {
  std::vector<OwnerInfo> owners;
  std::vector<SilentOwner> silent;
};

/// Asks every owner of this user on the host. All share the same two seconds to answer, even if many are stopped;
/// owners beyond the 64th are asked once earlier ones have answered. An owner that had no room for another caller is
/// asked again at the end, within up to two more seconds. Sockets of other users are skipped.
OwnerList ask_owners();
/// Asks all owners and returns the owners that answered. Logs the others.
std::vector<OwnerInfo> list_owners();
/// Returns what ask_owners() would report of this process, without asking.
OwnerInfo this_owner();

}  // namespace onecopy
ONECOPY_API_END
