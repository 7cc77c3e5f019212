// SPDX-License-Identifier: Apache-2.0
#include "store/client/as_is.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <iterator>
#include <memory>

#include "core/throw_error.h"
#include "onecopy/share/share.h"
#include "store/client/state.h"

namespace onecopy::store {
namespace {

/// A set of blocks that are kept for a version, and the end of the pipe that tells when they may be released.
struct KeptBlocks {
  Fd end;
  std::vector<BlockRef> blocks;
};

/// Keeps blocks until no process has the returned descriptor open.
Fd keep(std::vector<BlockRef> blocks) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0)
    throw_errno("cannot make a pipe for a published version", errno, ErrorCode::out_of_descriptors);
  Fd ours(ends[0]);
  Fd theirs(ends[1]);
  auto kept = std::make_shared<KeptBlocks>(KeptBlocks{std::move(ours), std::move(blocks)});
  const int fd = kept->end.get();
  EventLoop& loop = Session::current().loop();
  loop.add(fd, [kept, &loop] {  // the registration owns the blocks
    loop.remove(kept->end.get());
    kept->blocks.clear();
  });
  return theirs;
}

[[noreturn]] void refuse(const NamedTensor& named) {
  throw_error(ErrorCode::unsupported, "\"{}\" cannot be published as it is: {}", named.first,
              named.second.layout().is_contiguous()
                  ? "its memory ends with the process that made it; let it be copied, or "
                    "publish it into a slot"
                  : "it is not row-major");
}

}  // namespace

bool outlives_its_maker(SegmentKind kind) noexcept {
  return kind == SegmentKind::memfd || kind == SegmentKind::cuda_vmm;
}

bool outlives_its_maker(Device device) { return outlives_its_maker(backend(device.type).traits().kind); }

void check_outlives_its_maker(Device device) {
  if (outlives_its_maker(device)) return;
  throw_error(ErrorCode::unsupported,
              "memory of {} ends with the process that made it, and the store cannot keep it; "
              "publish copies on the cpu",
              device.str());
}

AsIs::AsIs(std::span<const NamedTensor> tensors, bool copies) {
  rows_.reserve(tensors.size());
  sources_.reserve(tensors.size());
  blocks_.reserve(tensors.size());
  for (const NamedTensor& named : tensors) {
    const Tensor& tensor = named.second;
    if (tensor.device() != tensors.front().second.device())
      throw_error(ErrorCode::invalid_argument,
                  "\"{}\" is on {} and \"{}\" on {}; a version is on one device", tensors.front().first,
                  tensors.front().second.device().str(), named.first, tensor.device().str());
    add_row(named, copies);
  }
}

/// Adds a row for the tensor, or for a copy of it.
void AsIs::add_row(const NamedTensor& named, bool copies) {
  if (const auto first = tied_.first(named.second.data(), named.second.layout(), rows_.size())) {
    rows_.push_back({named.first, rows_[*first].layout, rows_[*first].offset});
    sources_.push_back(sources_[*first]);
    return;
  }
  Tensor source = named.second;
  std::optional<std::uint64_t> offset = source.nbytes() == 0 ? 0 : find(source);
  if (!offset && copies) offset = find(source = copy(source.view()));
  if (!offset) refuse(named);
  rows_.push_back({named.first, Layout(source.dtype(), source.shape()), *offset});
  sources_.push_back(std::move(source));
}

std::optional<std::uint64_t> AsIs::find(const Tensor& tensor) {
  if (!tensor || !tensor.layout().is_contiguous()) return std::nullopt;
  return is_shareable(tensor) ? find_own(tensor) : find_stored(tensor);
}

/// Finds the tensor in the segments of this process. Ignores blocks of other processes, whose memory may be reused when
/// the process ends.
std::optional<std::uint64_t> AsIs::find_own(const Tensor& tensor) {
  Session& session = Session::current();
  const auto [group, spot] = session.locate(tensor, "publish");
  if (group.owner() != session.id()) return std::nullopt;
  auto at = segments_.find(spot.info.segment);
  if (at == segments_.end()) {
    ExportedMemory memory = group.export_segment(spot.info.segment, Access::read_only);
    at = segments_.try_emplace(spot.info.segment, Source{size_, outlives_its_maker(memory.kind)}).first;
    if (at->second.lasts) add(std::move(memory));
  }
  if (!at->second.lasts) return std::nullopt;
  blocks_.push_back(tensor.block());
  return at->second.begin + spot.info.offset +
         static_cast<std::uint64_t>(tensor.as<std::byte>() - spot.data);
}

/// Finds the tensor in versions that are open here, whose memory stays for ever, or as long as their pipes are open.
std::optional<std::uint64_t> AsIs::find_stored(const Tensor& tensor) {
  BlockRef version = MappedMemory::find(tensor.data());
  if (!version) return std::nullopt;
  const auto& memory = *static_cast<const MappedMemory*>(version.group());
  const auto shown = memory.shown();
  if (!shown) return std::nullopt;  // a draft
  std::vector<Fd> files = shown->reading.files_for_others();
  if (files.empty()) return std::nullopt;  // the version was deleted, and its number given to another
  auto at = versions_.find(&memory);
  if (at == versions_.end()) {
    at = versions_.try_emplace(&memory, Source{size_, true, std::move(version)}).first;
    add_version(std::move(files));
  }
  return at->second.begin + static_cast<std::uint64_t>(tensor.as<std::byte>() - memory.data());
}

void AsIs::add_version(std::vector<Fd> files) {
  const Table table = OpenTable(files.front()).table;
  std::size_t chunks = 1;  // the number of descriptors before the pipes: the table, then the chunks
  for (const Part& part : table.parts) chunks += part.files;
  while (files.size() > chunks) {
    pipes_.push_back(std::move(files.back()));
    files.pop_back();
  }
  for (ExportedMemory& part : memory_of(table, std::move(files))) add(std::move(part));
}

void AsIs::add(ExportedMemory memory) {
  parts_.push_back({memory.size, static_cast<std::uint32_t>(memory.fds.size()),
                    static_cast<std::uint8_t>(memory.kind), std::move(memory.blob)});
  size_ += memory.size;
  std::move(memory.fds.begin(), memory.fds.end(), std::back_inserter(files_));
}

void AsIs::describe(Table& table, bool checksums) {
  table.rows = std::move(rows_);
  table.size = size_;
  table.parts = std::move(parts_);
  if (!checksums) return;
  for (const Tensor& source : sources_)
    table.checksums.push_back(checksum(source.as<std::byte>(), source.nbytes(), source.device()));
}

/// Keeps the memory before any other process has the descriptors, and until the last process has closed them.
std::vector<Fd> AsIs::keep_and_export() {
  std::move(pipes_.begin(), pipes_.end(), std::back_inserter(files_));
  if (!blocks_.empty()) files_.push_back(keep(std::move(blocks_)));
  return std::move(files_);
}

}  // namespace onecopy::store
