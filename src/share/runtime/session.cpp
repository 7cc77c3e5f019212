// SPDX-License-Identifier: Apache-2.0
#include "share/session.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "device/pinned_ranges.h"
#include "onecopy/core/error.h"
#include "os/log.h"
#include "os/process.h"
#include "share/borrower/broker_client.h"
#include "share/format/process_name.h"
#include "share/runtime/runtime.h"

namespace onecopy {
namespace {

BootId this_boot() {
  static const BootId boot = [] {
    const auto whole = boot_id();
    BootId half;
    std::copy_n(whole.begin(), half.size(), half.begin());
    return half;
  }();
  return boot;
}

std::string place_of(const HandleFields& fields) {
  return fmt::format("block {} (generation {}) in segment {} of owner {}", fields.block, fields.generation,
                     fields.segment, public_name(fields.owner));
}

void log_opened(const HandleFields& fields) noexcept {
  log_debug([&] { return fmt::format("opened {}, {}", fields.layout.str(), place_of(fields)); });
}

}  // namespace

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

BlockRef Session::try_retain(const BlockName& name) noexcept {
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

LocatedBlock Session::locate(const Tensor& tensor, const char* verb) {
  SharedBlocks& group = shared_blocks(tensor, verb);
  const std::uint32_t block = tensor.block().number();
  if (&group == own_) return {group, runtime_.ledger_.export_spot(block)};
  const ExportedBlock place = group.export_block(block, tensor.access());
  return {group, {place.info, begin_for(group, tensor, {place.info, place.data})}};
}

Tensor Session::open_early(const HandleFields& handle, const OpenOptions& options) {
  if (existing()) [[likely]]
    return Runtime::current().open(handle, options);
  const EarlyDial early(handle.owner);
  return Runtime::current().open(handle, options);
}

Tensor Session::open(const HandleFields& row, Access access, std::span<const ProcessId> holders) {
  Tensor tensor = runtime_.importer_.open(row, access, {}, holders);
  runtime_.count_opened();
  log_opened(row);
  return tensor;
}

std::shared_ptr<const BorrowedBlocks> Session::note(OpenSegment& segment, std::uint32_t epoch,
                                                    const HandleFields& row, Access access, Device device,
                                                    std::span<const ProcessId> holders) {
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
    block = try_retain(name);
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
  runtime_.count_opened();
  return {std::move(block), data + offset, layout, at->device, at->access};
}

ExportedMemory Session::fetch_memory(const HandleFields& handle, Access access) {
  return runtime_.peers_.connect(handle.owner)->fetch_memory({handle.segment, access});
}

void Session::pin_memory(std::byte* at, std::size_t bytes, Access access) {
  runtime_.pinning().pin_memory(at, bytes, access);
}

void Session::keep_for_a_moment(std::shared_ptr<const void> memory, std::uint64_t bytes) {
  runtime_.former_.keep(std::move(memory), bytes);
}

void Session::list_arena(ArenaReports::Describe describe) {
  runtime_.arenas_.add(std::move(describe));
  runtime_.broker_.listen();  // a process that does not listen is not listed
}

HandleFields Runtime::name_in_handle(const Tensor& tensor, std::uint32_t flags) {
  SharedBlocks& shared = shared_blocks(tensor, "share");
  broker_.listen();
  const ExportedBlock place = shared.export_block(tensor.block().number(), tensor.access());
  const std::byte* const begin = begin_for(shared, tensor, {place.info, place.data});
  HandleFields fields;
  fields.boot = this_boot();
  fields.owner = shared.owner();
  fields.maker = id();
  fields.device_type = place.identity->device.type;
  fields.device = place.identity->uuid;
  fields.segment = place.info.segment;
  fields.kind = place.kind;
  fields.segment_size = place.segment_size;
  fields.block = place.info.number;
  fields.generation = place.info.generation;
  fields.storage_size = place.info.size;
  fields.tensor_offset = static_cast<std::uint64_t>(tensor.as<std::byte>() - begin);
  fields.flags = flags | (tensor.access() == Access::read_only ? kHandleIsReadOnly : 0);
  fields.layout = tensor.layout();
  shared_total_.fetch_add(1, std::memory_order_relaxed);
  streams_.note_use(tensor.device());
  log_debug([&] { return fmt::format("shared {}, {}", fields.layout.str(), place_of(fields)); });
  return fields;
}

/// Holds a handle. Makes this process the maker of the result, since any holder of the block can serve it, such as a
/// forked child with a handle of its parent's.
Handle Runtime::hold(const Handle& handle) {
  if (!handle.block())
    throw Error(ErrorCode::invalid_argument,
                "this handle was read from bytes or text and keeps nothing alive; hold the one that "
                "share() returned, or open() it and share() the tensor again");
  broker_.listen();
  HandleFields fields = handle.fields();
  fields.maker = id();
  fields.hold = holds_.add(handle.block());
  holding_.request();
  return {std::move(fields), handle.block()};
}

Tensor Runtime::open_for(const HandleFields& handle, Access access, std::optional<Device> user) {
  if (handle.boot != this_boot())
    throw Error(ErrorCode::other_boot,
                "this handle was made on another machine or before this one was restarted");
  if (handle.is_read_only() && access != Access::read_only)
    throw Error(ErrorCode::read_only,
                "this handle lends its tensor for reading only; open it with Access::read_only");
  Tensor tensor = importer_.open(handle, access, user);
  count_opened();
  log_opened(handle);
  return tensor;
}

Handle Runtime::share(const Tensor& tensor, Stream stream) {
  return {name_in_order(tensor, stream), tensor.block()};
}

HandleFields Runtime::name_in_order(const Tensor& tensor, Stream stream) {
  streams_.note_use(tensor.device(), stream);
  HandleFields fields = name_in_handle(tensor);
  const TimelinePoint point =
      tensor.device() != kCpu ? streams_.mark(tensor.device(), stream) : mark_filling(tensor, stream);
  fields.timeline_slot = point.slot;
  fields.timeline_value = point.value;
  return fields;
}

/// Makes one point, because a handle has room for only one. The host waits for all other streams.
TimelinePoint Runtime::mark_filling(const Tensor& tensor, Stream stream) {
  if (!PinnedRanges::may_be_filled(kCpu, tensor.data(), std::max<std::size_t>(1, tensor.nbytes())))
    return {};
  const std::vector<TimelinePoint> points = streams_.mark_work(stream);
  for (std::size_t i = 1; i < points.size(); ++i) streams_.wait_to_read(id(), points[i]);
  return points.empty() ? TimelinePoint{} : points.front();
}

/// Names a tensor for a framework's reducers, with a single copy of the fields.
Handle Session::share_held(const Tensor& tensor, Stream stream) {
  HandleFields fields = runtime_.name_in_order(tensor, stream);
  fields.hold = holds_.add(tensor.block(), Holds::Clock::now(), Holds::Until::opened);
  return {std::move(fields), tensor.block()};
}

Tensor Runtime::open(const HandleFields& handle, const OpenOptions& options) {
  const bool is_kind = options.device && options.device->type == handle.device_type;
  const bool is_user = is_kind && handle.device_type != DeviceType::cpu;  // use_on() refuses others
  Tensor tensor = open_for(handle, options.access, is_user ? options.device : std::nullopt);
  if (options.device) tensor = use_on(tensor, *options.device);
  const TimelinePoint point{handle.timeline_slot, handle.timeline_value};
  if (tensor.device() == kCpu) {
    if (point) streams_.wait_to_read(handle.maker, point);
    return tensor;
  }
  if (!options.stream) return streams_.note_use(tensor.device()), tensor;
  if (point) streams_.wait_for(handle.maker, point, tensor.device(), *options.stream);
  return streams_.order_release(tensor, *options.stream);
}

/// Describes what a handle exposes. An adopted allocation is exposed as a whole, with other tensors of the framework.
/// Memory of another process counts as adopted, since it may be.
std::string Runtime::exposes(const Tensor& tensor) const {
  constexpr std::uint64_t kRounding = 511;  // allocators may add as much to a request
  if (!is_shareable(tensor)) return {};     // share() reports the reason
  SharedBlocks& group = shared_blocks(tensor, "share");
  const ExportedBlock place = group.export_block(tensor.block().number(), tensor.access());
  const bool ours = group.owner() == id() && !allocations_.contains(place.info.segment);
  // An exact block has the size that was requested.
  const bool exact = ours || tensor.device() == kCpu;
  const std::uint64_t seen = exact ? place.info.size : place.segment_size;
  const std::uint64_t bytes = tensor.layout().extent_bytes();
  const bool is_first = place.info.offset == 0 &&
                        tensor.as<std::byte>() == begin_for(group, tensor, {place.info, place.data});
  if (seen <= bytes + (!exact && is_first ? kRounding : 0)) return {};
  return fmt::format(
      "the tensor has {} bytes, and its handle would let others see all {} of the {} that it lies in; "
      "share it whole, share a copy (Exact::copy), or allocate it with onecopy",
      bytes, seen, ours ? "storage" : "allocation");
}

}  // namespace onecopy
