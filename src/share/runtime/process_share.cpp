// SPDX-License-Identifier: Apache-2.0
// Handles: what is written into one, what holds it, and the tensor that comes out of it.
#include <fmt/format.h>

#include <algorithm>

#include "onecopy/core/error.h"
#include "os/process.h"
#include "share/runtime/process.h"

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

}  // namespace

Handle Process::share(const Tensor& tensor, std::uint32_t flags) {
  return {name_in_handle(tensor, flags), tensor.block()};
}

HandleFields Process::name_in_handle(const Tensor& tensor, std::uint32_t flags) {
  BlockKeeper* keeper = tensor.block().keeper();
  if (!keeper || !keeper->shareable())
    throw Error(ErrorCode::invalid_argument,
                "this tensor's memory belongs to another library and cannot be opened by other "
                "processes; share onecopy::copy(tensor.view()) instead");
  broker_.listen();
  auto& shared = static_cast<SharedKeeper&>(*keeper);
  const BlockPlace place = shared.export_block(tensor.block().number(), tensor.access());
  const std::byte* const begin = begin_for(shared, tensor, {place.info, place.data});
  HandleFields fields;
  fields.boot = this_boot();
  fields.owner = shared.owner();
  fields.maker = id_;
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
  shared_total.fetch_add(1, std::memory_order_relaxed);
  note_use(tensor.device());
  return fields;
}

/// Whoever holds the block can serve it, so the holder is the maker from here on: a forked child that
/// holds a handle of its parent's holds it itself.
Handle Process::hold(const Handle& handle) {
  if (!handle.block())
    throw Error(ErrorCode::invalid_argument,
                "this handle was read from bytes or text and keeps nothing alive; hold the one that "
                "share() returned, or open() it and share() the tensor again");
  broker_.listen();
  HandleFields fields = handle.fields();
  fields.maker = id_;
  fields.hold = holds_.add(handle.block());
  watch_.request_tick();
  return {std::move(fields), handle.block()};
}

Tensor Process::open_for(const HandleFields& handle, Access access, std::optional<Device> user) {
  if (handle.boot != this_boot())
    throw Error(ErrorCode::other_boot,
                "this handle was made on another machine or before this one was restarted");
  if (handle.is_read_only() && access != Access::read_only)
    throw Error(ErrorCode::read_only,
                "this handle lends its tensor for reading only; open it with Access::read_only");
  Tensor tensor = importer_.open(handle, access, user);
  opened_total.fetch_add(1, std::memory_order_relaxed);
  return tensor;
}

Handle Process::share(const Tensor& tensor, Stream stream) {
  note_use(tensor.device(), stream);
  HandleFields fields = share(tensor).fields();
  if (tensor.device() != kCpu) {
    const TimelinePoint point = timeline_.mark(tensor.device(), stream);
    fields.timeline_slot = point.slot;
    fields.timeline_value = point.value;
  }
  return {std::move(fields), tensor.block()};
}

Tensor Process::open(const HandleFields& handle, const OpenOptions& options) {
  const bool is_kind = options.device && options.device->type == handle.device_type;
  const bool is_user = is_kind && handle.device_type != DeviceType::cpu;  // use_on() refuses others
  Tensor tensor = open_for(handle, options.access, is_user ? options.device : std::nullopt);
  if (options.device) tensor = use_on(tensor, *options.device);
  if (tensor.device() == kCpu) return tensor;
  if (!options.stream) return note_use(tensor.device()), tensor;
  if (const TimelinePoint point{handle.timeline_slot, handle.timeline_value})
    wait_for(handle.maker, point, tensor.device(), *options.stream);
  return order_release(tensor, *options.stream);
}

/// Of an adopted allocation everything can be seen, and nobody but the framework knows what is in it. Of
/// another process's memory we do not know how it came to be.
std::string Process::exposes(const Tensor& tensor) const {
  constexpr std::uint64_t kRounding = 511;  // what allocators may add to what is asked of them
  if (!is_shareable(tensor)) return {};     // share() says so
  auto& keeper = static_cast<SharedKeeper&>(*tensor.block().keeper());
  const BlockPlace place = keeper.export_block(tensor.block().number(), tensor.access());
  const bool ours = keeper.owner() == id_ && !adoptions_.contains(place.info.segment);
  const bool exact = ours || tensor.device() == kCpu;  // such blocks have what was asked of us
  const std::uint64_t seen = exact ? place.info.size : place.segment_size;
  const std::uint64_t bytes = tensor.layout().extent_bytes();
  const bool is_first = place.info.offset == 0 &&
                        tensor.as<std::byte>() == begin_for(keeper, tensor, {place.info, place.data});
  if (seen <= bytes + (!exact && is_first ? kRounding : 0)) return {};
  return fmt::format(
      "the tensor has {} bytes, and its handle would let others see all {} of the {} that it lies in; "
      "share it whole, share a copy (Exact::copy), or allocate it with onecopy",
      bytes, seen, ours ? "storage" : "allocation");
}

}  // namespace onecopy
