// SPDX-License-Identifier: Apache-2.0
#include "onecopy/share/stats.h"

#include <dirent.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <span>
#include <thread>

#include "device/copy_counts.h"
#include "device/pinned_ranges.h"
#include "onecopy/core/error.h"
#include "os/deadline.h"
#include "os/log.h"
#include "os/process.h"
#include "share/borrower/broker_client.h"
#include "share/format/info_text.h"
#include "share/format/process_name.h"
#include "share/owner/late_releases.h"
#include "share/runtime/runtime.h"

namespace onecopy {

// The functions by which a process reports on itself: stats(), and the answer to `onecopy ls`.
namespace {

/// Counts the descriptors of this process, the one that lists them included. Returns 0 if /proc cannot be read.
std::uint64_t count_descriptors() noexcept {
  const std::unique_ptr<DIR, int (*)(DIR*)> all(::opendir("/proc/self/fd"), &::closedir);
  std::uint64_t count = 0;
  while (const dirent* entry = all ? ::readdir(all.get()) : nullptr) count += entry->d_name[0] != '.';
  return count;
}

}  // namespace

std::vector<TransitInfo> Runtime::transits() const {
  std::vector<TransitInfo> list = broker_.undelivered();
  const auto now = Holds::Clock::now();
  for (const auto since : holds_.list())
    list.push_back({1, std::chrono::duration<double>(now - since).count(), "handle"});
  queues_.list_transits(list);
  return list;
}

Stats Runtime::stats() const {
  Stats s;
  s.shared_total = shared_total_;
  s.opened_total = opened_total_;
  s.unkept = queues_.unkept();
  s.live_blocks = ledger_.live();
  s.limbo = ledger_.limbo();
  for (const TransitInfo& transit : transits()) s.in_transit += transit.blocks;
  for (const SegmentInfo& segment : segments_.list()) {
    ++s.segments;
    s.bytes_shared += segment.committed;
    if (segment.device == kCpu) continue;
    ++s.device_segments;
    s.device_bytes += segment.committed;
  }
  for (const auto& peer : peers_.list()) {
    ++s.owners;
    s.foreign_segments += peer->blocks().segments().count();
    s.leases += peer->blocks().leases().count();
  }
  s.borrowers = broker_.borrower_count();
  s.deposits = retention_.segments.size();
  s.host_waits = host_waits;
  s.direct_copies = copy_counts.direct;
  s.staged_copies = copy_counts.staged;
  s.staged_bytes = copy_counts.staged_bytes;
  s.pinned_bytes = PinnedRanges::any() ? PinnedRanges::get().bytes() : 0;
  s.pageable_copies = copy_counts.pageable;
  s.pageable_bytes = copy_counts.pageable_bytes;
  s.cut_copies = copy_counts.cut;
  if (const LateReleases* const late = LateReleases::active()) s.late_releases = late->total();
  s.live_bytes = pools_.live_bytes();
  s.descriptors = count_descriptors();
  return s;
}

std::vector<DeviceUse> Runtime::devices() const {
  std::map<Device, DeviceUse> found;
  for (const SegmentInfo& segment : segments_.list()) {
    DeviceUse& use = found[segment.device];
    use.device = segment.device.str();
    if (segment.identity && segment.device != kCpu) use.uuid = segment.identity->uuid.str();
    ++use.segments;
    use.bytes += segment.committed;
  }
  std::vector<DeviceUse> list;
  list.reserve(found.size());
  for (auto& [device, use] : found) list.push_back(std::move(use));
  return list;
}

OwnerInfo Runtime::describe() const {
  OwnerInfo info;
  info.pid = current_pid();
  info.name = process_name(info.pid);
  info.socket = name_;
  info.stats = stats();
  info.devices = devices();
  info.borrowers = broker_.borrowers();
  info.in_transit = transits();
  info.groups = groups_.list();
  info.arenas = arenas_.list();
  return info;
}

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kAskersWait{2'000};

/// An owner that has been asked and has not answered yet.
struct PendingReply {
  std::string name;
  UnixSocket socket;
  int pid = 0;
};

void add_silent(OwnerList& list, const std::string& name, int pid, const Error& error) {
  if (error.code() == ErrorCode::peer_died) return;  // the owner has just ended
  if (error.code() != ErrorCode::timeout || pid == 0)
    return list.silent.push_back({pid, name, error.what()});
  list.silent.push_back(
      {pid, name,
       fmt::format("process {} did not answer within {} s; it may be stopped (SIGSTOP, a debugger)", pid,
                   kAskersWait.count() / 1000)});
}

/// Asks an owner without waiting. Throws timeout if the owner's queue of callers is full, which must not delay the
/// answers of others.
PendingReply ask(const std::string& name) {
  UnixSocket socket = dial(name, std::chrono::milliseconds(0));
  const PeerCredentials peer = socket.peer();
  socket.send(wire::pack(wire::WantInfo{}), {}, std::chrono::milliseconds(0));
  return {name, std::move(socket), peer.pid};
}

/// Asks all owners. Leaves owners whose queue of callers is full in `busy`.
std::vector<PendingReply> ask_all(std::span<const std::string> names, OwnerList& list,
                                  std::vector<std::string>& busy) {
  std::vector<PendingReply> asked;
  for (const std::string& name : names) {
    try {
      asked.push_back(ask(name));
    } catch (const Error& e) {
      if (e.code() == ErrorCode::timeout) busy.push_back(name);
      else if (e.code() != ErrorCode::other_user) add_silent(list, name, 0, e);
    }
  }
  return asked;
}

OwnerInfo answer_of(PendingReply& owner, Deadline deadline) {
  const Packet packet = owner.socket.receive(deadline.whole_ms_left(kAskersWait));
  return owner_from_json(wire::unpack<wire::Info>(packet.bytes).json);
}

void hear_all(std::vector<PendingReply> asked, Deadline deadline, OwnerList& list) {
  for (PendingReply& owner : asked) {
    try {
      list.owners.push_back(answer_of(owner, deadline));
    } catch (const Error& e) {
      add_silent(list, owner.name, owner.pid, e);
    }
  }
}

/// Asks the busy owners repeatedly, after all others have answered, until there is room for a caller or the time is
/// over.
void ask_again(std::vector<std::string> busy, OwnerList& list) {
  constexpr std::chrono::milliseconds kPause{10};
  const auto deadline = Clock::now() + kAskersWait;
  while (!busy.empty() && Clock::now() < deadline) {
    std::this_thread::sleep_for(kPause);
    const std::vector<std::string> names = std::exchange(busy, {});
    hear_all(ask_all(names, list, busy), deadline, list);
  }
  for (const std::string& name : busy)
    list.silent.push_back({0, name,
                           fmt::format("the process that listens on @onecopy-{} took no call within {} s; "
                                       "it may be stopped (SIGSTOP, a debugger)",
                                       name, kAskersWait.count() / 1000)});
}

}  // namespace

Stats stats() { return Runtime::current().stats(); }

void collect() {
  if (Runtime* runtime = Runtime::existing()) runtime->give_back({});
}

std::uint64_t trim(std::optional<Device> device) {
  Runtime* const runtime = Runtime::existing();
  return runtime ? runtime->give_back(device) : 0;
}

OwnerInfo this_owner() { return Runtime::current().describe(); }

OwnerList ask_owners() {
  // The max number of owners asked at once, each of which takes a descriptor.
  constexpr std::size_t kAtOnce = 64;
  const std::vector<std::string> names = listening_names();
  OwnerList list;
  std::vector<std::string> busy;
  for (std::span<const std::string> left(names); !left.empty();
       left = left.subspan(std::min(kAtOnce, left.size()))) {
    const auto deadline = Clock::now() + kAskersWait;
    hear_all(ask_all(left.first(std::min(kAtOnce, left.size())), list, busy), deadline, list);
  }
  ask_again(std::move(busy), list);
  return list;
}

std::vector<OwnerInfo> list_owners() {
  OwnerList list = ask_owners();
  for (const SilentOwner& owner : list.silent)
    log_warning("not listed, {}...: {}", owner.socket.substr(0, 8), owner.why);
  return std::move(list.owners);
}

}  // namespace onecopy
