// SPDX-License-Identifier: Apache-2.0
#include "onecopy/share/share.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "device/pinned_ranges.h"
#include "onecopy/core/error.h"
#include "onecopy/memory/copy.h"
#include "onecopy/share/pin.h"
#include "os/deadline_scope.h"
#include "os/log.h"
#include "os/process.h"
#include "share/borrower/broker_client.h"
#include "share/format/process_name.h"
#include "share/runtime/runtime.h"
#include "share/session.h"

namespace onecopy {

Tensor empty(const Layout& layout, Device device) {
  if (!layout.is_contiguous())
    throw Error(ErrorCode::invalid_argument,
                "a new tensor is row-major; allocate it so and use with_layout() for other strides: " +
                    layout.str());
  auto [block, data] = Runtime::current().allocate(layout.nbytes(), device);
  return {std::move(block), data, layout, device, Access::read_write};
}

Tensor copy(const TensorView& source) { return copy(source, source.device); }

Tensor copy(const TensorView& source, Device device) {
  Tensor tensor = empty(Layout(source.layout.dtype(), source.layout.shape()), device);
  copy_into(source, tensor.view());
  return tensor;
}

Tensor adopt(const TensorView& view, std::shared_ptr<const void> owner) {
  return Runtime::current().adopt(view, std::move(owner));
}

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

}  // namespace

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

Handle share(const Tensor& tensor) {
  if (!is_sendable(tensor)) [[unlikely]]
    return Session::current().share(sendable(tensor));
  return Session::current().share(tensor);
}

bool is_shareable(const Tensor& tensor) noexcept {
  const BlockGroup* group = tensor.block().group();
  return group && group->shareable();
}

namespace {

std::span<std::byte> storage_in(SharedBlocks& group, const Tensor& tensor) {
  const std::uint32_t number = tensor.block().number();
  const std::span<std::byte> bytes = group.bytes_of(number, tensor.access());
  return {begin_for(group, tensor, {{number, 0, 0, 0, bytes.size()}, bytes.data()}), bytes.size()};
}

}  // namespace

std::span<std::byte> storage(const Tensor& tensor) {
  if (!is_shareable(tensor))
    throw Error(ErrorCode::invalid_argument,
                "this tensor's memory belongs to another library, which alone knows how much there is; "
                "ask that library, or use onecopy::copy(tensor.view())");
  return storage_in(as_shared(*tensor.block().group()), tensor);
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

Handle hold(const Handle& handle) { return Runtime::current().hold(handle); }

void end_hold(const Handle& handle) noexcept {
  const HandleFields& fields = handle.fields();
  if (fields.hold == 0) return;
  if (Runtime* runtime = Runtime::existing()) runtime->importer().acknowledge(fields);
  else acknowledge_to(fields.maker, fields.hold);
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

namespace {

/// Copies in the order of a stream. The copy stays until the stream has written it, even if its last reference is
/// dropped before.
Tensor copy_in_order(const Tensor& tensor, const std::optional<Stream>& stream) {
  if (!stream) return copy(tensor.view());
  Tensor made = record_stream(empty(Layout(tensor.dtype(), tensor.shape()), tensor.device()), *stream);
  copy_into(tensor.view(), made.view(), *stream);
  return made;
}

/// Throws unless a handle of this machine allows that access.
void check_access(const HandleFields& handle, Access access) {
  if (handle.boot != this_boot())
    throw Error(ErrorCode::other_boot,
                "this handle was made on another machine or before this one was restarted");
  if (handle.is_read_only() && access != Access::read_only)
    throw Error(ErrorCode::read_only,
                "this handle lends its tensor for reading only; open it with Access::read_only");
}

}  // namespace

Tensor Runtime::open_for(const HandleFields& handle, Access access, std::optional<Device> user,
                         std::span<const ProcessId> holders) {
  // A process that opens what it has lent itself gets a copy for writing, since its other tensors must not change.
  const bool is_copied = access == Access::read_write && session_.is_lent_here(handle);
  Tensor tensor = importer_.open(handle, is_copied ? Access::read_only : access, user, holders);
  if (is_copied) tensor = copy(tensor.view());
  opened_total_.fetch_add(1, std::memory_order_relaxed);
  log_debug([&] { return fmt::format("opened {}, {}", handle.layout.str(), place_of(handle)); });
  return tensor;
}

Tensor Runtime::open(const HandleFields& handle, const OpenOptions& options) {
  std::optional<DeadlineScope> limit;
  if (options.timeout) limit.emplace(Deadline::after(*options.timeout));
  check_access(handle, options.access);
  const bool is_kind = options.device && options.device->type == handle.device_type;
  const bool is_user = is_kind && handle.device_type != DeviceType::cpu;  // use_on() refuses others
  Tensor tensor = open_for(handle, options.access, is_user ? options.device : std::nullopt, {});
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

Tensor open_any(const HandleFields& handle, const OpenOptions& options) {
  if (Session::existing()) [[likely]]
    return Runtime::current().open(handle, options);
  const EarlyDial early(handle.owner);
  return Runtime::current().open(handle, options);
}

Tensor open(const Handle& handle, Access access) { return open(handle, OpenOptions{access, {}, {}}); }

Tensor open(const Handle& handle, const OpenOptions& options) {
  if (handle.is_bundle())
    throw Error(ErrorCode::bad_handle, "this handle names a bundle of tensors; open it with Bundle::open");
  if (handle.fields().is_queue())
    throw Error(ErrorCode::bad_handle, "this handle names a queue; open it with Queue::connect");
  Tensor opened = open_any(handle.fields(), options);
  if (options.pinned && opened.device() == kCpu) pin(opened);
  return opened;
}

Tensor use_on(const Tensor& tensor, Device device) {
  if (device == tensor.device()) return tensor;
  if (device.type != tensor.device().type || device.type == DeviceType::cpu)
    throw Error(ErrorCode::invalid_argument,
                tensor.device().str() + " memory cannot be used on " + device.str() + "; copy it there");
  if (!is_shareable(tensor))
    throw Error(ErrorCode::invalid_argument, "this tensor's memory belongs to another library; adopt() it");
  uuid_of(device);  // throws if the device does not exist
  auto& group = as_shared(*tensor.block().group());
  const auto offset = tensor.as<std::byte>() - storage_in(group, tensor).data();
  std::byte* const begin = group.allow(tensor.block().number(), tensor.access(), device.index);
  return {tensor.block(), begin + offset, tensor.layout(), device, tensor.access()};
}

Handle share(const Tensor& tensor, const ShareOptions& options) {
  Runtime& runtime = Runtime::current();
  Tensor shared = sendable(tensor);
  if (options.exact != Exact::no) {
    const std::string more = runtime.exposes(shared);
    if (!more.empty() && options.exact == Exact::refuse) throw Error(ErrorCode::unsupported, more);
    if (!more.empty()) shared = copy_in_order(tensor, options.stream);
  }
  if (!options.stream) return Session::current().share(shared);
  return {runtime.name_in_order(shared, *options.stream), shared.block()};
}

Tensor record_stream(const Tensor& tensor, Stream stream) {
  return Session::current().streams().order_release(tensor, stream);
}

std::string Handle::to_text() const { return onecopy::to_text(to_bytes()); }
Handle Handle::from_text(std::string_view text) { return from_bytes(onecopy::from_text(text)); }

}  // namespace onecopy
