// SPDX-License-Identifier: Apache-2.0
#include "share/borrower/segment_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <set>
#include <thread>

#include "onecopy/core/error.h"
#include "os/deadline_scope.h"
#include "os/log.h"
#include "share/format/process_name.h"

namespace onecopy {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kLookAgain{1};
/// The longest pause between two looks, chosen because holders may have to read /proc to answer.
constexpr std::chrono::milliseconds kLongestLookAgain{20};

/// Looks at the device while the owner wakes up, because the driver's first look takes longer than a connection.
void look_at_device(const HandleFields& handle) noexcept {
  try {
    find_device(device_type(handle.kind), handle.device);
  } catch (const std::exception&) {  // mapping the segment reports the reason
  }
}

Error died(const HandleFields& handle) {
  return Error(
      ErrorCode::owner_died,
      fmt::format(
          "the process that owned this tensor has exited: keep that process running until others have "
          "opened the tensor, or put the tensor into a queue, which keeps it. If that process still runs, "
          "it is in another network namespace: set ONECOPY_RUNTIME_DIR to a directory that both see "
          "(segment {} is held neither by the handle's maker nor here)",
          handle.segment));
}

/// Calls `f`; returns an empty optional if it reports that the asked process is not there.
template <class F>
auto unless_absent(F&& f) -> std::optional<decltype(f())> {
  try {
    return f();
  } catch (const Error& e) {
    if (!is_absent(e)) throw;
    return {};
  }
}

HeldSegment fetch_foreign(Peer& holder, const SegmentKey& segment, const SegmentRequest& request) {
  const wire::WantForeign question{segment.first,
                                   {segment.second, request.access == Access::read_only, request.number}};
  Packet packet = holder.broker().request(wire::pack(question), wire::Type::segment);
  auto answer = wire::unpack<wire::Segment>(packet.bytes);
  if (!answer.has_table) packet.fds.clear();
  Fd table = wire::take_table(packet.fds);
  return {std::move(table), std::move(answer.memory).with(std::move(packet.fds)), answer.owner_gone};
}

}  // namespace

SegmentRequest request_of(std::uint32_t segment, SegmentKind kind, Access access,
                          std::optional<Device> user) {
  return {segment, access, backend(device_type(kind)).borrower_number(), user};
}

SegmentRequest request_of(const WantedSegment& wanted) {
  return request_of(wanted.handle.segment, wanted.handle.kind, wanted.access, wanted.user);
}

/// Tries again, for at most kDeathTakesAtMost, while the owner cannot be reached and a holder of the segment says that
/// the owner has not ended. Throws if no process holds the segment. Another user's socket under the owner's name counts
/// as none. A socket that does not answer may belong to another user or to a stopped owner, so the holders are asked
/// with little time.
Peers::PeerRef SegmentSource::reach(const WantedSegment& wanted) {
  const ProcessId& owner = wanted.handle.owner;
  if (auto peer = peers_.find_open(owner)) return peer;
  const auto deadline = Clock::now() + kDeathTakesAtMost;
  look_at_device(wanted.handle);
  for (auto pause = kLookAgain;; pause = std::min(2 * pause, kLongestLookAgain)) {
    std::optional<Error> why;  // set if the reason is not that the owner has ended
    try {
      return peers_.connect(owner, request_of(wanted));
    } catch (const Error& e) {
      log_debug([&] { return fmt::format("could not reach owner {}: {}", public_name(owner), e.what()); });
      if (!is_absent(e) && e.code() != ErrorCode::timeout) throw;
      if (e.code() != ErrorCode::peer_died) why = e;
    }
    const bool is_silent = why && why->code() == ErrorCode::timeout;
    std::optional<DeadlineScope> at_most;  // each holder still gets a tenth of a second
    if (is_silent) at_most.emplace(Clock::now());
    std::optional<HeldSegment> found = ask_holders(wanted);
    at_most.reset();
    if (!found || (is_silent && !found->owner_gone)) throw why.value_or(died(wanted.handle));
    if (found->owner_gone) return peers_.freeze(owner, *std::move(found), request_of(wanted));
    if (Clock::now() > deadline)
      throw Error(ErrorCode::peer_died,
                  "the owner of this tensor lives but cannot be reached from here; processes in "
                  "different network namespaces need a common ONECOPY_RUNTIME_DIR");
    std::this_thread::sleep_for(pause);
  }
}

void SegmentSource::obtain(BorrowedBlocks& blocks, const WantedSegment& wanted) {
  const SegmentRequest request = request_of(wanted);
  if (auto memory = ask_owner(blocks.owner(), request))
    return blocks.segments().map(request, *std::move(memory));
  std::optional<Error> not_kept;
  if (wanted.access == Access::read_only &&
      blocks.segments().contains(request.segment, Access::read_write)) {
    try {
      return blocks.segments().map(request, blocks.export_segment(request.segment, wanted.access));
    } catch (const Error& e) {
      if (e.code() != ErrorCode::unsupported) throw;
      not_kept = e;
    }
  }
  std::optional<HeldSegment> found = ask_holders(wanted);
  if (!found) throw not_kept.value_or(died(wanted.handle));
  blocks.segments().map(request, std::move(found->memory));
}

/// Asks the owner. Returns nothing if the owner is gone. An owner that closed the connection and lives was short of
/// memory or descriptors, so a new connection is made. Leases of the old connection stay valid as long as this process
/// lives.
std::optional<ExportedMemory> SegmentSource::ask_owner(const ProcessId& owner,
                                                       const SegmentRequest& wanted) {
  for (Peers::PeerRef asked;; std::this_thread::sleep_for(kLookAgain)) {
    const auto peer = unless_absent([&] { return peers_.connect(owner); });
    if (!peer) return {};
    if (*peer == asked) continue;  // the watch thread has not noticed the end of the connection yet
    if (auto memory = unless_absent([&] { return (*peer)->fetch_memory(wanted); })) return memory;
    if (asked) return {};
    asked = *peer;
  }
}

/// Returns the holders to ask. Holders that are not known to be silent come first.
std::vector<ProcessId> SegmentSource::candidate_holders(const WantedSegment& wanted) const {
  std::vector<ProcessId> asked(wanted.holders.begin(), wanted.holders.end());
  asked.push_back(wanted.handle.maker);
  std::set<ProcessId> seen{wanted.handle.owner, self_};
  std::erase_if(asked, [&](const ProcessId& holder) { return !seen.insert(holder).second; });
  std::stable_partition(asked.begin(), asked.end(), [&](const ProcessId& holder) {
    const auto peer = peers_.find(holder);
    return !peer || peer->broker().is_over() || !peer->broker().is_silent();
  });
  return asked;
}

/// Asks a holder. Returns nothing if the holder is gone or does not have the segment, and also if it may have the
/// segment, in which case `why` is the obstacle.
std::optional<HeldSegment> SegmentSource::ask_holder(const ProcessId& holder, const SegmentKey& segment,
                                                     const SegmentRequest& request,
                                                     std::optional<Error>& why) {
  try {
    return fetch_foreign(*peers_.connect(holder), segment, request);
  } catch (const Error& e) {
    const bool may_have_it = e.code() == ErrorCode::timeout || e.code() == ErrorCode::unsupported;
    if (!may_have_it && !is_absent(e) && e.code() != ErrorCode::owner_died) throw;
    if (may_have_it && (!why || e.code() == ErrorCode::timeout)) why = e;
    return {};
  }
}

/// Asks all holders. Returns nothing if none has the segment. Throws timeout if a holder that may have the segment does
/// not answer, and unsupported if one has it and cannot pass it on.
std::optional<HeldSegment> SegmentSource::ask_holders(const WantedSegment& wanted) {
  constexpr std::chrono::milliseconds kOneOfManyTakesAtMost{2000};
  const SegmentKey key{public_name(wanted.handle.owner), wanted.handle.segment};
  std::optional<Error> why;
  try {
    if (auto held = find_here(key, wanted.access)) return held;
  } catch (const Error& e) {
    if (e.code() != ErrorCode::unsupported) throw;
    why = e;
  }
  const SegmentRequest request = request_of(key.second, wanted.handle.kind, wanted.access, {});
  const std::vector<ProcessId> asked = candidate_holders(wanted);
  for (const ProcessId& holder : asked) {
    const auto most = &holder == &asked.back() ? reply_timeout_ms.load() : kOneOfManyTakesAtMost.count();
    const DeadlineScope scope(Clock::now() + std::min(reply_timeout(), std::chrono::milliseconds(most)));
    if (auto held = ask_holder(holder, key, request, why)) return held;
  }
  if (why) throw Error(*why);
  return {};
}

std::optional<HeldSegment> SegmentSource::find_here(const SegmentKey& segment, Access access) const {
  if (auto kept = retention_.segments.open(segment, access)) return kept;
  return peers_.find_segment(segment, access);
}

ExportedMemory SegmentSource::pass_on(const SharedBlocks& group, std::uint32_t segment) {
  try {
    ExportedMemory memory = group.export_segment(segment, Access::read_write);
    require_all(memory);
    return memory;
  } catch (const Error& e) {
    if (e.code() != ErrorCode::unsupported || group.owner() == self_) throw;
    auto memory = ask_owner(group.owner(), {segment, Access::read_write});
    if (!memory) throw;
    require_all(*memory);
    return *std::move(memory);
  }
}

}  // namespace onecopy
