// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "onecopy/core/device.h"

namespace onecopy {

/// Who keeps this process's memory, and whose memory it keeps.
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
  /// Segments put into queues that do not keep them: what is still in the queue when their process dies is lost.
  /// It can fall again: one whose queue's creator was stopped, or too busy to answer, counts until a later put has
  /// asked again, and none counts once its queue is closed and empty, or not open here any more.
  std::uint64_t unkept = 0;
  std::uint64_t descriptors = 0;  ///< open descriptors of the whole process
  /// How often a host waited where a stream should have: its device has no stream memory operations.
  std::uint64_t host_waits = 0;
  /// Copies from one card to another since the start: read by the other card itself, and left to the driver, which
  /// goes by way of the host unless its own allocator has mapped it for both cards. A copy with gaps counts for each
  /// run of bytes.
  std::uint64_t direct_copies = 0;
  std::uint64_t staged_copies = 0;
  std::uint64_t staged_bytes = 0;
  std::uint64_t pinned_bytes = 0;  ///< of the host's memory, pinned here now for cards
  /// Copies between cards and memory of the host since the start that onecopy made: of memory that is not pinned, at a
  /// fraction of the link's speed; and those that were cut because they reached over the edge of a pinned range.
  std::uint64_t pageable_copies = 0;
  std::uint64_t pageable_bytes = 0;
  std::uint64_t cut_copies = 0;
  /// References to pinned memory that were dropped here, and ended once the cards had done what they then had to do.
  std::uint64_t late_releases = 0;
};
Stats stats();

/// Gives back now what would be given back later: freed memory, mappings of owners that are gone. What was dropped
/// in default streams is marked and ended, too; it gives idle streams a millisecond to come past those marks.
void collect();

/// The same, and says how much: idle memory of this process's pools goes back to the system and to cards now, that of
/// one device or of all, the host included. Memory that other processes hold stays, and so does a segment of a card in
/// which anything is in use. Returns how many bytes the pools gave back.
std::uint64_t trim(std::optional<Device> device = {});

struct BorrowerInfo {
  int pid = 0;
  std::string name;
  std::uint64_t claims = 0;  ///< blocks it holds
};

struct TransitInfo {
  std::uint64_t blocks = 0;
  double age_seconds = 0;
  std::string where;  ///< "queue ...", "handle"
};

/// Memory of a process on one device.
struct DeviceUse {
  std::string device;  ///< as the process numbers it
  std::string uuid;    ///< what everybody calls it; empty for the CPU
  std::uint64_t segments = 0;
  std::uint64_t bytes = 0;  ///< physical memory reserved in them
};

/// One process of this user that owns or serves shared memory, as `onecopy ls` shows it.
struct OwnerInfo {
  int pid = 0;
  std::string name;
  std::string socket;
  Stats stats;
  std::vector<DeviceUse> devices;
  std::vector<BorrowerInfo> borrowers;
  std::vector<TransitInfo> in_transit;
};

/// One that did not say what it has.
struct SilentOwner {
  int pid = 0;  ///< 0 when not even that is known
  std::string socket;
  std::string why;
};

struct OwnerList {
  std::vector<OwnerInfo> owners;
  std::vector<SilentOwner> silent;
};

/// Asks every owner of this user on the host. All have the same two seconds to answer, however many there are that
/// are stopped (those beyond the 64th wait for their turn). Owners with no room for a caller are asked again at the
/// end, for two seconds. Other users' sockets are passed over.
OwnerList ask_owners();
/// The same; who does not answer in time is left out and said so in a log line.
std::vector<OwnerInfo> list_owners();
/// The same of this process, without a question to anybody.
OwnerInfo this_owner();

}  // namespace onecopy
