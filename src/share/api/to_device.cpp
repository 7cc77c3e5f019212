// SPDX-License-Identifier: Apache-2.0
#include "onecopy/share/to_device.h"

#include <unistd.h>

#include <algorithm>
#include <numeric>

#include "device/backend.h"
#include "device/pinned_ranges.h"
#include "onecopy/core/error.h"
#include "onecopy/share/pin.h"
#include "onecopy/share/share.h"
#include "os/log.h"
#include "share/api/file_reader.h"
#include "share/runtime/runtime.h"
#include "share/session.h"

namespace onecopy {
namespace {

constexpr std::uint64_t kWorthPinning = std::uint64_t{32} << 20;
constexpr std::uint64_t kBlockAlignment = 256;

/// A row of bytes, with the tensors that lie in it.
struct Run {
  const std::byte* begin = nullptr;
  const std::byte* end = nullptr;
  std::vector<std::size_t> tensors{};
  std::uint64_t bytes() const { return static_cast<std::uint64_t>(end - begin); }
};

const std::byte* begin_of(const Tensor& tensor) { return static_cast<const std::byte*>(tensor.data()); }

/// Returns whether `next` joins the run of `last`. Bytes between the two tensors are copied, and shown to others, only
/// if they belong to no third block: they lie inside one block, or behind a block of whole pages that ends in its last
/// page.
bool is_joined(const Run& run, const Tensor& last, const Tensor& next) {
  static const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  constexpr std::ptrdiff_t kWholePages = 32 << 10;  // blocks of at least this size begin at a page
  const std::byte* const begin = begin_of(next);
  if (begin <= run.end) return true;
  const std::ptrdiff_t gap = begin - run.end;
  const bool is_one_block =
      last.block().group() == next.block().group() && last.block().number() == next.block().number();
  if (is_one_block) return gap < static_cast<std::ptrdiff_t>(page);
  return static_cast<std::ptrdiff_t>(last.nbytes()) >= kWholePages &&
         reinterpret_cast<std::uintptr_t>(begin) % page == 0 && gap < static_cast<std::ptrdiff_t>(page);
}

std::vector<Run> runs_of(std::span<const Tensor> tensors) {
  std::vector<std::size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return begin_of(tensors[a]) < begin_of(tensors[b]);
  });
  std::vector<Run> runs;
  for (const std::size_t i : order) {
    const Tensor& tensor = tensors[i];
    const std::byte* const end = begin_of(tensor) + tensor.layout().extent_bytes();
    const bool joins = !runs.empty() && tensors[runs.back().tensors.back()].device() == tensor.device() &&
                       is_joined(runs.back(), tensors[runs.back().tensors.back()], tensor);
    if (!joins) runs.push_back({begin_of(tensor), end});
    runs.back().end = std::max(runs.back().end, end);
    runs.back().tensors.push_back(i);
  }
  return runs;
}

/// Returns whether pinning leaves the pages of the tensor where they are. Pages of a stored version that this process may
/// write to would become copies of its own, and pages of other memory are not ours.
bool can_be_pinned(const Tensor& tensor) { return is_shareable(tensor) && is_sendable(tensor); }

/// Pins the memory of all tensors for the card, if they are large enough to be worth the time. Logs a failure.
void pin_all(std::span<const Tensor> tensors, Device card) {
  std::uint64_t bytes = 0;
  for (const Tensor& tensor : tensors) bytes += tensor.nbytes();
  if (bytes < kWorthPinning) return;
  for (const Tensor& tensor : tensors) {
    if (tensor.nbytes() == 0 || !can_be_pinned(tensor) || is_pinned(tensor)) continue;
    try {
      pin(tensor, card);
    } catch (const Error& error) {
      log_warning(std::string("copied without being pinned: ") + error.what());
      return;
    }
  }
}

void check_tensors(std::span<const Tensor> tensors, Device device) {
  for (const Tensor& tensor : tensors) {
    if (!tensor || (!is_shareable(tensor) && tensor.device() != kCpu))
      throw Error(ErrorCode::invalid_argument,
                  "a tensor's memory belongs to another library; share a copy of it: copy(tensor.view())");
    if (tensor.device() != kCpu && device != kCpu && tensor.device() != device)
      throw Error(ErrorCode::invalid_argument, "from " + tensor.device().str() + " to " + device.str() +
                                                   " there is no way by this; use copy()");
  }
}

Tensor new_block(std::uint64_t bytes, Device device) {
  const Layout row(DType::u8, {static_cast<std::int64_t>(std::max<std::uint64_t>(bytes, 1))});
  return empty(row, AllocateOptions{device == kCpu && bytes != 0, device});
}

/// Runs that share one block on the device, each at a line of 256 bytes; gaps before them stay unused.
struct Group {
  std::span<const Run> runs;
  std::vector<std::uint64_t> offsets{};
  std::uint64_t bytes = 0;
};

/// Returns as many runs from the front as may share one block.
Group next_group(std::span<const Run> runs) {
  constexpr std::uint64_t kTogether = std::uint64_t{1}
                                      << 30;  // a block of a card's takes its driver a millisecond
  Group group;
  for (const Run& run : runs) {
    if (!group.offsets.empty() && group.bytes + run.bytes() > kTogether) break;
    group.offsets.push_back(group.bytes);
    group.bytes = (group.bytes + run.bytes() + kBlockAlignment - 1) / kBlockAlignment * kBlockAlignment;
  }
  group.runs = runs.first(group.offsets.size());
  return group;
}

/// Copies memory that cannot be pinned: through a ring of pinned memory, by several threads, if it is large. A copy by the
/// driver alone has a fraction of the speed. A stream that is captured cannot wait for the ring.
void copy_unpinned(const Transfer& t, Stream stream) {
  const bool is_large = t.bytes >= kWorthPinning && t.to_device != kCpu && t.from_device == kCpu;
  if (is_large && !backend(t.to_device.type).is_captured(t.to_device.index, stream)) try {
      const std::span memory(static_cast<const std::byte*>(t.from), t.bytes);
      return DeviceLoader(memory, static_cast<std::byte*>(t.to), t.to_device, stream).run({});
    } catch (const Error& error) {
      if (error.code() != ErrorCode::out_of_memory) throw;
      log_warning(std::string("copied without a ring of pinned memory: ") + error.what());
    }
  copy_bytes(t, stream);
}

void copy_group(std::span<const Tensor> tensors, const Group& group, Device device, Stream stream,
                std::vector<Tensor>& made) {
  const Tensor fresh = new_block(group.bytes, device);
  const Tensor block = device == kCpu ? fresh : record_stream(fresh, stream);
  for (std::size_t i = 0; i < group.runs.size(); ++i) {
    const Run& run = group.runs[i];
    const Tensor& first = tensors[run.tensors.front()];
    const Transfer copy{block.as<std::byte>() + group.offsets[i], device, run.begin, first.device(),
                        run.bytes()};
    can_be_pinned(first) ? copy_bytes(copy, stream) : copy_unpinned(copy, stream);
    for (const std::size_t t : run.tensors) {
      const auto offset = static_cast<std::size_t>(begin_of(tensors[t]) - run.begin);
      made[t] = block.with_layout(tensors[t].layout(), group.offsets[i] + offset);
    }
  }
}

}  // namespace

/// Copies group after group: the card copies one while the next gets its block.
std::vector<Tensor> to_device(std::span<const Tensor> given, Device device, Stream stream) {
  std::vector<Tensor> tensors(given.begin(), given.end());
  for (Tensor& tensor : tensors) {
    if (!tensor || is_shareable(tensor)) continue;
    if (tensor.device() != kCpu) tensor = sendable(tensor);  // of a stored version
    else if (Tensor lent = tensor.block().group()->lend(tensor)) tensor = std::move(lent);
  }
  check_tensors(tensors, device);
  if (device != kCpu) pin_all(tensors, device);
  const std::vector<Run> runs = runs_of(tensors);
  std::vector<Tensor> made(tensors.size());
  for (std::span<const Run> left = runs; !left.empty();) {
    const Group group = next_group(left);
    copy_group(tensors, group, device, stream, made);
    left = left.subspan(group.runs.size());
  }
  return made;
}

void pin(const Tensor& tensor, std::optional<Device> card) {
  Runtime::current().pinning().pin(tensor, card);
}

void unpin(const Tensor& tensor) { Runtime::current().pinning().unpin(tensor); }

Tensor view_on(const Tensor& tensor, Device device) {
  if (device == kCpu)
    throw Error(ErrorCode::invalid_argument, "a view is for a card: name one, such as cuda:0");
  identity_of(device);  // throws if the device does not exist
  Runtime& runtime = Runtime::current();
  runtime.pinning().pin_for_views(tensor, device);
  runtime.streams().note_use(device);
  backend(device.type).require_in_place(device.index, tensor.data());
  return {tensor.block(), tensor.data(), tensor.layout(), device, tensor.access()};
}

bool is_view(const Tensor& tensor) noexcept {
  return PinnedRanges::is_view(tensor.device(), tensor.data());
}

bool is_pinned(const Tensor& tensor) { return Pinning::is_pinned(tensor); }

Tensor empty(const Layout& layout, const AllocateOptions& options) {
  if (options.pinned && options.device != kCpu)
    throw Error(ErrorCode::invalid_argument,
                "memory of " + options.device.str() + " is not pinned: leave out the device, or pinned");
  Tensor made = empty(layout, options.device);
  if (options.pinned) pin(made);
  return made;
}

}  // namespace onecopy
