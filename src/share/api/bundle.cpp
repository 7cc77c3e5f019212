// SPDX-License-Identifier: Apache-2.0
#include "onecopy/share/bundle.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <set>

#include "core/moved_from.h"
#include "core/throw_error.h"
#include "device/pinned_ranges.h"
#include "os/mutex.h"
#include "share/format/bundle_codec.h"
#include "share/runtime/runtime.h"

namespace onecopy {

namespace {

/// Makes a point after the work that may be filling memory of the host. If the bundle has tensors on devices, its one
/// point is theirs, and the host waits here.
TimelinePoint mark_filling(Runtime& runtime, std::span<const NamedTensor> tensors, Stream stream,
                           bool has_devices) {
  const auto pinned = std::find_if(tensors.begin(), tensors.end(), [](const NamedTensor& named) {
    const Tensor& tensor = named.second;
    return PinnedRanges::may_be_filled(tensor.device(), tensor.data(),
                                       std::max<std::size_t>(1, tensor.nbytes()));
  });
  if (pinned == tensors.end()) return {};
  const TimelinePoint point = runtime.mark_filling(pinned->second, stream);
  if (!point || !has_devices) return point;
  runtime.streams().wait_to_read(runtime.id(), point);
  return {};
}

/// Makes one point for all: if the tensors are on several devices, the first one's stream waits for the others'.
TimelinePoint mark_all(Runtime& runtime, std::span<const NamedTensor> tensors, Stream stream) {
  std::set<Device> devices;
  for (const auto& [name, tensor] : tensors)
    if (tensor.device() != kCpu) devices.insert(tensor.device());
  const TimelinePoint filled = mark_filling(runtime, tensors, stream, !devices.empty());
  if (devices.empty()) return filled;
  if (stream.native && devices.size() > 1)
    throw_error(ErrorCode::invalid_argument,
                "this bundle has tensors on {} devices, and a stream is of one; share a bundle for "
                "each, or in the order of the default streams",
                devices.size());
  const Device first = *devices.begin();
  for (const Device device : devices)
    if (device != first)
      runtime.streams().wait_for(runtime.id(), runtime.streams().mark(device, stream), first, stream);
  return runtime.streams().mark(first, stream);
}

}  // namespace

namespace {

/// Throws for a name by which no tensor, or one of two tensors, could be found.
void check_names(std::span<const NamedTensor> tensors) {
  std::vector<std::uint32_t> rows(std::bit_ceil(tensors.size() * 2 + 1));  // open addressing: row + 1, or 0
  for (std::size_t row = 0; row < tensors.size(); ++row) {
    const std::string_view name = tensors[row].first;
    if (name.empty()) throw_error(ErrorCode::invalid_argument, "tensor {} of the bundle has no name", row);
    std::size_t at = std::hash<std::string_view>()(name) & (rows.size() - 1);
    for (; rows[at] != 0; at = (at + 1) & (rows.size() - 1))
      if (tensors[rows[at] - 1].first == name)
        throw_error(ErrorCode::invalid_argument,
                    "tensors {} and {} of the bundle are both named \"{}\": give each a name of its own",
                    rows[at] - 1, row, name);
    rows[at] = static_cast<std::uint32_t>(row + 1);
  }
}

}  // namespace

Handle share_bundle(std::span<const NamedTensor> tensors, ByteSpan structure,
                    std::optional<Stream> stream) {
  check_names(tensors);
  Runtime& runtime = Runtime::current();
  BundleWriter writer;
  writer.reserve(tensors.size());
  std::vector<BlockRef> kept;
  kept.reserve(tensors.size());
  for (const auto& [name, tensor] : tensors) {
    std::optional<Tensor> other;  // nearly always empty, so that a large bundle copies no tensor
    const Tensor& sent = is_sendable(tensor) ? tensor : other.emplace(sendable(tensor));
    writer.add(name, runtime.name_in_handle(sent));
    kept.push_back(sent.block());
  }
  const auto bytes = static_cast<std::int64_t>(writer.finished_size(structure.size()));
  const Tensor table = empty(Layout(DType::u8, {bytes}));
  writer.finish(structure, {table.as<std::byte>(), static_cast<std::size_t>(bytes)});
  runtime.ledger().keep_with(table.block().number(), std::move(kept));
  Handle handle = Session::current().share(table, kHandleIsBundle);
  if (!stream) return handle;
  HandleFields fields = handle.fields();
  const TimelinePoint point = mark_all(runtime, tensors, *stream);
  fields.timeline_slot = point.slot;
  fields.timeline_value = point.value;
  return {std::move(fields), handle.block()};
}

struct Bundle::State {
  State(Tensor t, const OpenOptions& o, const HandleFields& handle)
      : table(std::move(t)),
        options(o),
        owner(handle.owner),
        maker(handle.maker),
        point{handle.timeline_slot, handle.timeline_value},
        reader({table.as<std::byte>(), table.nbytes()}) {}

  /// Waits once for each device that the tensors are on: the point covers them all. If all are on the host, the host
  /// waits.
  void wait(Runtime& runtime, Device device) {
    const LockGuard lock(mutex);
    if (!point || waited.contains(device)) return;
    if (device != kCpu) runtime.streams().wait_for(maker, point, device, *options.stream);
    else if (is_on_host()) runtime.streams().wait_to_read(maker, point);
    waited.insert(device);
  }
  bool is_on_host() const {
    for (std::size_t row = 0; row < reader.size(); ++row)
      if (reader.fields(row).device_type != DeviceType::cpu) return false;
    return true;
  }

  Tensor table;
  OpenOptions options;
  ProcessId owner;  ///< the owner of the bundle's table
  ProcessId maker;
  TimelinePoint point;
  BundleReader reader;
  Mutex mutex;
  std::set<Device> waited GUARDED_BY(mutex);
};

Bundle Bundle::open(const Handle& handle, Access access) {
  return open(handle, OpenOptions{access, {}, {}});
}

Bundle Bundle::open(const Handle& handle, const OpenOptions& options) {
  if (!handle.is_bundle())
    throw Error(ErrorCode::bad_handle, "this handle names a single tensor; open it with open()");
  HandleFields fields = handle.fields();
  if (!fields.layout.is_contiguous() || fields.layout.dtype() != DType::u8)
    throw Error(ErrorCode::bad_handle, "a bundle's table is a row of bytes, not " + fields.layout.str());
  fields.timeline_slot = 0;  // the point is about the bundle's tensors; the table is already written
  fields.timeline_value = 0;
  Tensor table = open_any(fields, OpenOptions{options.access, {}, {}, false, options.timeout});
  if (table.device() != kCpu)
    throw Error(ErrorCode::bad_handle,
                "a bundle's table is memory of the host, not of " + table.device().str());
  return Bundle(std::make_unique<State>(std::move(table), options, handle.fields()));
}

Bundle::Bundle(std::unique_ptr<State> state) noexcept : state_(std::move(state)) {}
Bundle::Bundle(Bundle&&) noexcept = default;
Bundle& Bundle::operator=(Bundle&&) noexcept = default;
Bundle::~Bundle() = default;

Bundle::State& Bundle::state() const { return of_object(state_, "Bundle"); }

std::size_t Bundle::size() const { return state().reader.size(); }
std::string_view Bundle::name(std::size_t row) const { return state().reader.name(row); }
Layout Bundle::layout(std::size_t row) const { return state().reader.fields(row).layout; }
Tensor Bundle::tensor(std::size_t row) const {
  State& state = this->state();
  Runtime& runtime = Runtime::current();
  Tensor tensor = runtime.open(state.reader.fields(row), state.options);
  if (state.options.stream || tensor.device() == kCpu) state.wait(runtime, tensor.device());
  return tensor;
}
std::vector<Tensor> Bundle::tensors(std::size_t count) const {
  if (count > size())
    throw_error(ErrorCode::invalid_argument, "this bundle has {} rows, not {}", size(), count);
  const State& state = this->state();
  Runtime::current().importer().fetch_ahead(state.owner, state.reader.origins(), state.options.access,
                                            state.options.device);
  std::vector<Tensor> opened;
  opened.reserve(count);
  for (std::size_t row = 0; row < count; ++row) opened.push_back(tensor(row));
  return opened;
}
std::optional<std::size_t> Bundle::find(std::string_view name) const { return state().reader.find(name); }
ByteSpan Bundle::structure() const { return state().reader.structure(); }

}  // namespace onecopy
