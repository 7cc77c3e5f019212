// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "onecopy/core/device.h"

namespace onecopy {

/// The holders of this process's memory, and its holdings of others' memory.
struct Stats {
  std::uint64_t shared_total = 0;  ///< handles made since the start
  std::uint64_t opened_total = 0;  ///< tensors opened since the start
  std::uint64_t live_blocks = 0;   ///< allocated here and referenced here
  std::uint64_t live_bytes = 0;
  std::uint64_t limbo = 0;             ///< freed here, still held by borrowers
  std::uint64_t in_transit = 0;        ///< blocks held for receivers that have not taken them yet
  std::uint64_t segments = 0;          ///< of our own
  std::uint64_t foreign_segments = 0;  ///< of other processes, mapped here
  std::uint64_t bytes_shared = 0;      ///< physical memory reserved in our segments
  std::uint64_t device_segments = 0;   ///< those of `segments` that are memory of devices
  std::uint64_t device_bytes = 0;      ///< those of `bytes_shared`
  std::uint64_t borrowers = 0;         ///< processes attached to us
  std::uint64_t owners = 0;            ///< processes we are attached to
  std::uint64_t leases = 0;            ///< claims we hold on blocks of others
  std::uint64_t deposits = 0;          ///< segments of others kept open for receivers to come
  /// Segments put into queues that do not retain them: if their process dies, items still in the queue are lost. The
  /// count can fall again. A segment whose queue's creator was stopped, or too busy to answer, counts until a later
  /// put has asked again. None counts once its queue is closed and empty, or not open here any more.
  std::uint64_t unkept = 0;
  std::uint64_t descriptors = 0;  ///< open descriptors of the whole process
  /// The number of waits of the host in place of a stream: the device has no stream memory operations.
  std::uint64_t host_waits = 0;
  /// Copies from one card to another since the start: read by the other card itself, or left to the driver. The
  /// driver goes by way of the host unless its own allocator has mapped the memory for both cards. A copy with gaps
  /// counts for each run of bytes.
  std::uint64_t direct_copies = 0;
  std::uint64_t staged_copies = 0;
  std::uint64_t staged_bytes = 0;
  std::uint64_t pinned_bytes = 0;  ///< of the host's memory, pinned here now for cards
  /// Copies by onecopy between cards and memory of the host since the start. Those of memory that is not pinned run at
  /// a fraction of the link's speed. Those that reach over the edge of a pinned range are cut.
  std::uint64_t pageable_copies = 0;
  std::uint64_t pageable_bytes = 0;
  std::uint64_t cut_copies = 0;
  /// References to pinned memory that were dropped here while the cards had work, and ended when that was done.
  std::uint64_t late_releases = 0;
};
Stats stats();

/// Gives back now, not later: freed memory, mappings of owners that are gone. Drops in default streams are marked and
/// ended, too; it gives idle streams a millisecond to pass those marks.
void collect();

/// Gives idle memory of this process's pools back to the system and to cards now: that of one device or of all, the
/// host included. Memory that other processes hold stays, and so does a card's segment with a block in use. Returns
/// how many bytes the pools gave back.
std::uint64_t trim(std::optional<Device> device = {});

/// A process that has opened blocks of this one.
struct BorrowerInfo {
  int pid = 0;
  std::string name;
  std::uint64_t claims = 0;  ///< blocks it holds
};

/// Blocks that wait for a receiver in one place.
struct TransitInfo {
  std::uint64_t blocks = 0;
  double age_seconds = 0;
  std::string where;  ///< "queue ...", "handle"
};

/// The memory of a process on one device.
struct DeviceUse {
  std::string device;  ///< as the process numbers it
  std::string uuid;    ///< its name in all processes; empty for the CPU
  std::uint64_t segments = 0;
  std::uint64_t bytes = 0;  ///< physical memory reserved in them
};

/// A peer in a group of rpc, as one member sees it.
struct PeerInfo {
  std::string name;
  std::uint32_t number = 0;
  int pid = 0;
  std::string state;                  ///< "new" until the first call, "open", "ended", "left", or "here"
  std::uint64_t lanes = 0;            ///< to it and from it
  std::uint64_t calls_under_way = 0;  ///< of the process, to the peer
  std::uint64_t calls = 0;            ///< sent to it so far
  std::uint64_t answers = 0;          ///< that have come from it
  std::uint64_t served = 0;           ///< calls that have come from it
  std::vector<std::pair<std::string, std::uint64_t>> routes;  ///< how many tensors went to it in which way
};

/// A group of rpc, as one of its members sees it.
struct GroupInfo {
  std::string name;  ///< of the member
  std::uint32_t number = 0;
  std::uint64_t calls_under_way = 0;
  std::uint64_t idle_workers = 0;
  std::vector<PeerInfo> peers;  ///< 256 at most
  std::uint64_t unlisted = 0;   ///< peers beyond those
};

/// An arena of captured graphs. Sizes in bytes.
struct ArenaInfo {
  std::string device;        ///< as the process numbers it
  std::uint64_t shared = 0;  ///< physical memory that all its graphs have in common
  std::uint64_t own = 0;     ///< physical memory that one graph alone has
  std::uint64_t mapped = 0;  ///< addresses of all its graphs together
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
  int pid = 0;  ///< 0 if not even that is known
  std::string socket;
  std::string why;
};

/// The answers of ask_owners().
struct OwnerList {
  std::vector<OwnerInfo> owners;
  std::vector<SilentOwner> silent;
};

/// Asks every owner of this user on the host. All have the same two seconds to answer, also if many are stopped;
/// owners beyond the 64th wait for their turn. Owners with no room for a caller are asked again at the end, for two
/// seconds. Other users' sockets are passed over.
OwnerList ask_owners();
/// Asks all owners, logs those without an answer and leaves them out.
std::vector<OwnerInfo> list_owners();
/// This process as ask_owners() describes it, without a question.
OwnerInfo this_owner();

}  // namespace onecopy
