// SPDX-License-Identifier: Apache-2.0
#include "share/session.h"

#include <utility>

#include "core/throw_error.h"
#include "device/pinned_ranges.h"
#include "share/runtime/runtime.h"

namespace onecopy {

Session::Session(Runtime& runtime) noexcept
    : runtime_(runtime),
      own_(&runtime.ledger_),
      id_(runtime.id_),
      streams_(runtime.streams_),
      queues_(runtime.queues_),
      groups_(runtime.groups_),
      holds_(runtime.holds_),
      loop_(runtime.loop_) {}

Tensor Session::adopt(std::unique_ptr<DeviceMemory> memory, std::uint64_t size) {
  return runtime_.adopt(std::move(memory), size);
}

void Session::leave(const ProcessId& process) { runtime_.peers_.leave(process); }

std::shared_ptr<LentMemory> Session::lend(Device device, ExportedMemory memory) {
  return std::make_shared<LentSegment>(
      device, backend(device.type).open(device.index, std::move(memory), Access::read_only), runtime_.lent_,
      runtime_.ledger_);
}

BlockRef Session::try_reference(const BlockName& name) noexcept {
  return runtime_.ledger_.try_open(name.block, name.generation);
}

void Session::take_back() noexcept {
  runtime_.ledger_.drain();
  streams_.sweep_releases();
}

void Session::keep_with(const BlockRef& block, std::vector<BlockRef> kept) {
  runtime_.ledger_.keep_with(block.number(), std::move(kept));
}

Handle Session::share(const Tensor& tensor, std::uint32_t flags) {
  return {runtime_.name_in_handle(tensor, flags), tensor.block()};
}

SharedBlocks& shared_blocks(const Tensor& tensor, const char* verb) {
  BlockGroup* const group = tensor.block().group();
  if (!group) [[unlikely]]
    throw_error(ErrorCode::invalid_argument, "an empty tensor has no memory to {}; make one first", verb);
  if (!group->shareable()) [[unlikely]]
    throw_error(ErrorCode::invalid_argument,
                "this tensor's memory belongs to another library and cannot be opened by other processes; "
                "{} onecopy::copy(tensor.view()) instead",
                verb);
  if (PinnedRanges::is_view(tensor.device(), tensor.data())) [[unlikely]]
    throw_error(ErrorCode::invalid_argument,
                "this is {}'s view of memory of the host, and stays in this process; {} the tensor that it "
                "is a view of",
                tensor.device().str(), verb);
  SharedBlocks& root = as_shared(*group).root();
  if (has_private_memory.load(std::memory_order_relaxed) && is_private(tensor)) [[unlikely]]
    throw_error(ErrorCode::unsupported,
                "this tensor of a stored version may have been written to here, which others would not "
                "see; {} onecopy::copy(tensor.view()) instead",
                verb);
  return root;
}

/// A block of this process in such memory is lent from it and opened for reading, see Runtime::open_for().
bool is_private(const Tensor& tensor) noexcept {
  BlockGroup* const group = tensor.block().group();
  if (!group || !group->shareable() || tensor.access() == Access::read_only || tensor.device() != kCpu)
    return false;
  SharedBlocks& root = as_shared(*group).root();
  const auto memory = root.segment_memory(root.segment_of(tensor.block().number()), Access::read_write);
  return memory && memory->kind() == SegmentKind::sealed_file && memory->access() == Access::read_write;
}

Tensor sendable(const Tensor& tensor) {
  if (is_sendable(tensor)) return tensor;
  BlockGroup& group = *tensor.block().group();
  if (group.shareable()) return copy(tensor.view());
  if (Tensor lent = group.lend(tensor)) return lent;
  return group.is_sent_as_copy() ? copy(tensor.view()) : tensor;
}

LocatedBlock Session::locate(const Tensor& tensor, const char* verb) {
  SharedBlocks& group = shared_blocks(tensor, verb);
  const std::uint32_t block = tensor.block().number();
  if (&group == own_) return {group, runtime_.ledger_.export_spot(block)};
  const ExportedBlock place = group.export_block(block, tensor.access());
  return {group, {place.info, begin_for(group, tensor, {place.info, place.data})}};
}

Tensor Session::open(const HandleFields& row, Access access, std::span<const ProcessId> holders) {
  return runtime_.open_for(row, access, {}, holders);
}

std::shared_ptr<const BorrowedBlocks> Session::note(OpenSegment& segment, std::uint32_t epoch,
                                                    const HandleFields& row, Access access, Device device,
                                                    std::span<const ProcessId> holders) {
  if (is_lent_here(row)) return nullptr;  // each is opened with a look at what it is
  std::shared_ptr<BorrowedBlocks> blocks = runtime_.importer_.prepare(row, access, holders);
  if (segment.is_open(epoch)) {
    segment.blocks_.store(blocks.get());
    return blocks;
  }
  std::uint64_t before = segment.stamp_.load();
  if (before == OpenSegment::kWriting ||
      !segment.stamp_.compare_exchange_strong(before, OpenSegment::kWriting))
    return blocks;  // another thread is writing it
  segment.blocks_.store(blocks.get());
  segment.segment_size_.store(row.segment_size);
  segment.segment_.store(row.segment);
  segment.kind_.store(row.kind);
  segment.access_.store(access);
  segment.device_type_.store(device.type);
  segment.device_index_.store(device.index);
  segment.stamp_.store(OpenSegment::stamp_of(epoch));
  return blocks;
}

bool Session::is_closed(const BorrowedBlocks& blocks) noexcept { return blocks.is_closed(); }

/// Reads all fields before checking that no other epoch has begun. All loads and stores of an OpenSegment have one
/// total order, so a caller that announced itself sees whether the blocks were taken out before another thread looked
/// for callers.
std::optional<Session::OpenBlock> Session::read(const OpenSegment& segment, std::uint32_t epoch) noexcept {
  constexpr auto kInOrder = std::memory_order_seq_cst;
  if (!segment.is_open(epoch)) return {};
  const OpenBlock now{segment.blocks_.load(kInOrder),
                      segment.segment_size_.load(kInOrder),
                      segment.segment_.load(kInOrder),
                      segment.kind_.load(kInOrder),
                      segment.access_.load(kInOrder),
                      Device{segment.device_type_.load(kInOrder), segment.device_index_.load(kInOrder)}};
  if (!segment.is_open(epoch)) return {};
  return now;
}

Tensor Session::try_open(const OpenSegment& segment, std::uint32_t epoch, const BlockName& name,
                         std::uint64_t offset, std::uint64_t reach, const Layout& layout) {
  const std::optional<OpenBlock> at = read(segment, epoch);
  if (!at) return {};
  BlockRef block;
  std::byte* data = nullptr;
  if (!at->borrowed) {
    block = try_reference(name);
    if (!block) return {};
    const MappedBlock spot = runtime_.ledger_.export_spot(name.block);
    if (spot.info.segment == at->segment && reach <= spot.info.size) data = spot.data;
  } else {
    block = at->borrowed->try_claim(name.block, name.generation, []() noexcept { return false; });
    if (!block) return {};
    data =
        at->borrowed->locate({name.block, at->segment, at->segment_size, reach, at->kind}, at->access).data;
  }
  // The slow way of opening waits for the driver. try_open() must not, because its caller may hold a queue's lock.
  if (!data || PinnedRanges::is_unpinning(data, reach)) return {};
  runtime_.opened_total_.fetch_add(1, std::memory_order_relaxed);
  return {std::move(block), data + offset, layout, at->device, at->access};
}

ExportedMemory Session::fetch_memory(const HandleFields& handle, Access access) {
  return runtime_.peers_.connect(handle.owner)->fetch_memory({handle.segment, access});
}

void Session::pin_memory(std::byte* at, std::size_t bytes, Access access) {
  runtime_.pinning().pin_memory(at, bytes, access);
}

void Session::keep_for_a_moment(std::shared_ptr<const void> memory, std::uint64_t bytes, bool is_item) {
  runtime_.former_.keep(std::move(memory), bytes,
                        is_item ? FormerMemory::Use::item : FormerMemory::Use::shared);
}

void Session::list_arena(ArenaReports::Describe describe) {
  runtime_.arenas_.add(std::move(describe));
  runtime_.broker_.listen();  // a process that does not listen is not listed
}

/// Names a tensor for a framework's reducers, with a single copy of the fields.
Handle Session::share_held(const Tensor& tensor, Stream stream) {
  HandleFields fields = runtime_.name_in_order(tensor, stream);
  fields.hold = holds_.add(tensor.block(), Holds::Clock::now(), Holds::Until::opened);
  return {std::move(fields), tensor.block()};
}

}  // namespace onecopy
