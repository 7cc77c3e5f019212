// SPDX-License-Identifier: Apache-2.0
// Serves other owners' memory, as far as this process holds it, to processes that ask in the owner's place.
#include "onecopy/core/error.h"
#include "share/borrower/importer.h"
#include "share/format/process_name.h"

namespace onecopy {
namespace {

/// Memory of the host is frozen once the owner's program has ended. A device may be at work until its process ends.
bool is_frozen(const Peer& peer, const ExportedMemory& memory) {
  return peer.has_ended() || (device_type(memory.kind) == DeviceType::cpu && peer.has_left());
}

bool is_frozen(const Ledger& ledger, const ExportedMemory& memory) {
  return device_type(memory.kind) == DeviceType::cpu ? ledger.has_program_ended()
                                                     : is_gone(ledger.origin());
}

/// Empty if this group has not got the segment, or cannot pass it on: then `why` is set.
template <class Group>
std::optional<HeldSegment> try_export(const Group& group, std::uint32_t segment, Access access,
                                      std::optional<Error>& why) {
  try {
    Fd table = group.export_table();
    ExportedMemory memory = group.export_segment(segment, access);
    const bool owner_gone = is_frozen(group, memory);
    return HeldSegment{std::move(table), std::move(memory), owner_gone};
  } catch (const Error& e) {  // not opened, or allocated after the fork: another group may have it
    if (e.code() == ErrorCode::unsupported) why = e;
    else if (e.code() != ErrorCode::owner_died && e.code() != ErrorCode::stale_handle) throw;
    return {};
  }
}

}  // namespace

std::optional<HeldSegment> Importer::find_held(const std::string& owner, std::uint32_t segment,
                                               Access access) const {
  if (auto kept = retention_.segments.open({owner, segment}, access)) return kept;
  std::optional<Error> why;
  {
    const LockGuard no_sweep(mutex_);  // a sweep gives back segments that are being handed out
    for (const auto& peer : open_)
      if (peer->name() == owner && !peer->is_closed())
        if (auto held = try_export(*peer, segment, access, why)) return held;
  }
  for (const Ledger* ledger : inherited_)
    if (public_name(ledger->owner()) == owner)
      if (auto held = try_export(*ledger, segment, access, why)) return held;
  if (why) throw Error(*why);
  return {};
}

}  // namespace onecopy
