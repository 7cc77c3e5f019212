// SPDX-License-Identifier: Apache-2.0
#include "share/borrower/importer.h"

#include <fmt/format.h>

#include <set>
#include <vector>

#include "core/throw_error.h"
#include "device/pinned_ranges.h"

namespace onecopy {
namespace {

Error stale(const HandleFields& handle) {
  return Error(ErrorCode::stale_handle,
               fmt::format("the tensor was freed before the handle was opened: keep the Handle object "
                           "alive until the receiver has opened it (for a single tensor of onecopy or "
                           "torch, the tensor will do); it was block {} of its owner, generation {}",
                           handle.block, handle.generation));
}

/// Throws bad_handle for a block number that no process has.
void check_block_number(const HandleFields& handle) {
  if (handle.block >= kMaxBlocks)
    throw_error(ErrorCode::bad_handle, "the handle names block {}; a process has at most {}", handle.block,
                kMaxBlocks);
}

}  // namespace

Tensor Importer::open(const HandleFields& handle, Access access, std::optional<Device> user,
                      Holders holders) {
  check_block_number(handle);
  if (handle.owner == self_) return open_own(handle, access);
  const WantedSegment wanted{handle, access, user, holders};
  auto [blocks, lease] = peers_.try_claim(handle);
  if (!lease) std::tie(blocks, lease) = claim(wanted);
  point("open.claimed");
  const BorrowedBlocks::Location at = locate(*blocks, wanted);
  if (handle.hold != 0) acknowledge(handle);
  return {std::move(lease), at.data + handle.tensor_offset, handle.layout,
          user.value_or(at.identity->device), access};
}

/// Claims a block whose owner has ended, or must be connected to or asked. Claims again if a sweep has tried to leave the
/// owner meanwhile.
Importer::Lease Importer::claim(const WantedSegment& wanted) {
  for (;;) {
    Peers::PeerRef peer = source_.reach(wanted);
    const std::uint32_t attempts = peer->attempts();
    BlockRef lease = claim_from(peer, wanted);
    if (!lease && peer->is_gone()) {
      std::optional<BlockRef> frozen = peers_.claim_frozen(*peer, wanted.handle);
      if (!frozen) continue;
      lease = *std::move(frozen);
    }
    if (!lease && (peer->is_closed() || peer->attempts() != attempts || attempts % 2 != 0)) continue;
    if (!lease) throw stale(wanted.handle);
    return {&peer->blocks(), std::move(lease)};
  }
}

/// Claims a block. If the connection of `peer` is over, makes `peer` another connection.
BlockRef Importer::claim_from(Peers::PeerRef& peer, const WantedSegment& wanted) {
  try {
    return peer->claim(wanted.handle.block, wanted.handle.generation);
  } catch (const Error& silence) {
    if (!peer->broker().is_over() || peer->is_gone()) throw;
    peer = connect_again(*peer, wanted, silence);
    return peer->claim(wanted.handle.block, wanted.handle.generation);
  }
}

/// Replaces a connection that is over. If no socket listens either, the owner is dying: throws `silence`, a timeout
/// that tells the caller to try again. Throws peer_died if the owner lives on without its sockets.
Peers::PeerRef Importer::connect_again(Peer& old, const WantedSegment& wanted, const Error& silence) {
  try {
    return peers_.connect(wanted.handle.owner, request_of(wanted));
  } catch (const Error& e) {
    if (!is_absent(e)) throw;
    if (old.process().has_ended()) return old.shared_from_this();
    if (!old.is_out_of_reach()) throw Error(silence);
    throw_error(ErrorCode::peer_died,
                "the process that owned this tensor has freed it and closed its sockets, and lives: only "
                "it could say whether another process still holds the memory ({})",
                e.what());
  }
}

/// Maps the block's segment if it is not mapped. The lease keeps the segment from being retired.
BorrowedBlocks::Location Importer::locate(BorrowedBlocks& blocks, const WantedSegment& wanted) {
  const HandleFields& handle = wanted.handle;
  const BorrowedBlocks::ClaimRequest said{handle.block, handle.segment, handle.segment_size,
                                          handle.storage_size, handle.kind};
  BorrowedBlocks::Location at = blocks.locate(said, wanted.access, wanted.user);
  for (; !at; at = blocks.locate(said, wanted.access, wanted.user)) source_.obtain(blocks, wanted);
  PinnedRanges::await_unpinning(at.data, handle.storage_size);
  return at;
}

Tensor Importer::open_own(const HandleFields& handle, Access access) {
  BlockRef ref = ledger_.try_open(handle.block, handle.generation);
  if (!ref) throw stale(handle);
  const ExportedBlock place = ledger_.export_block(ref.number(), access);
  if (place.info.segment != handle.segment || handle.storage_size > place.info.size ||
      place.kind != handle.kind || place.segment_size != handle.segment_size)
    throw Error(ErrorCode::bad_handle, "the handle contradicts this process's own block table");
  if (handle.hold != 0) acknowledge(handle);
  return {std::move(ref), place.data + handle.tensor_offset, handle.layout, place.identity->device, access};
}

void Importer::fetch_ahead(const ProcessId& owner, std::span<const SegmentOrigin> origins, Access access,
                           std::optional<Device> user) {
  const auto peer = peers_.find(owner);
  if (!peer || peer->broker().is_over()) return;
  std::set<std::uint32_t> seen;
  std::vector<SegmentRequest> missing, described;
  for (const SegmentOrigin& origin : origins)
    if (origin.owner == owner && seen.insert(origin.segment).second &&
        !peer->blocks().segments().contains(origin.segment, access))
      (is_weak(origin.kind) ? described : missing)
          .push_back(request_of(origin.segment, origin.kind, access,
                                user && user->type == origin.device_type ? user : std::nullopt));
  try {
    peer->fetch_ahead(missing, described);
  } catch (const Error& e) {
    if (!is_absent(e)) throw;
  }
}

void Importer::acknowledge(const HandleFields& handle) noexcept {
  if (handle.maker == self_) return holds_.end(handle.hold);
  const auto maker = peers_.find(handle.maker);
  if (!maker || !maker->broker().notify(wire::Acknowledge{handle.hold}))
    acknowledge_to(handle.maker, handle.hold);
}

std::shared_ptr<BorrowedBlocks> Importer::prepare(const HandleFields& handle, Access access,
                                                  Holders holders) {
  if (handle.owner == self_) return nullptr;
  const WantedSegment wanted{handle, access, {}, holders};
  const Peers::PeerRef peer = source_.reach(wanted);
  while (!peer->blocks().segments().contains(handle.segment, access))
    source_.obtain(peer->blocks(), wanted);
  return {peer, &peer->blocks()};
}

}  // namespace onecopy
