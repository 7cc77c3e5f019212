// SPDX-License-Identifier: Apache-2.0

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include "core/throw_error.h"
#include "onecopy/share/share.h"
#include "os/crew.h"
#include "os/log.h"
#include "os/process.h"
#include "share/api/file_reader.h"
#include "share/session.h"

namespace onecopy {

std::string LoadTimes::text() const {
  const auto ms = [](const Nanoseconds& sum) { return static_cast<double>(sum.load()) / 1e6; };
  return fmt::format(
      "{:.1f} ms for the ring; all threads together read for {:.1f} ms and waited for the card for {:.1f} "
      "ms; {} bytes past the page cache",
      ms(prepared), ms(read), ms(waited), direct.load());
}

namespace {

constexpr std::uint64_t kPage = 4096;  // the alignment of direct reads
constexpr std::uint64_t kPart = std::uint64_t{2} << 20;
constexpr std::size_t kMaxLoadThreads = 16;
constexpr std::size_t kSlotsPerThread = 2;
/// The number of pages for which one page is looked up in the page cache.
constexpr std::uint64_t kPagesAPage = 64;
constexpr std::uint64_t kCardAlignment = 256;

std::uint64_t up(std::uint64_t bytes, std::uint64_t unit) { return (bytes + unit - 1) / unit * unit; }

std::size_t threads_for(std::uint64_t bytes) {
  const auto cpus = static_cast<std::size_t>(std::max(1, usable_cpus()));
  return std::clamp<std::size_t>(static_cast<std::size_t>(bytes / kPart), 1,
                                 std::min(kMaxLoadThreads, cpus));
}

/// Opens a descriptor of its own: O_DIRECT is a flag of the open file, which all users of the first descriptor share.
Fd open_directly(const Fd& fd) noexcept {
  return Fd(::open(fmt::format("/proc/self/fd/{}", fd.get()).c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT));
}

const Fd& no_file() {
  static const Fd none;
  return none;
}

}  // namespace

DeviceLoader::DeviceLoader(const Fd& fd, std::string name, std::span<const FilePiece> pieces, Device device,
                           Stream stream)
    : fd_(fd), direct_(open_directly(fd)), name_(std::move(name)), device_(device), stream_(stream) {
  for (const FilePiece& piece : pieces) {
    if (piece.bytes == 0) continue;
    const bool follows = !pieces_.empty() && pieces_.back().from + pieces_.back().bytes == piece.from &&
                         pieces_.back().to + pieces_.back().bytes == piece.to;
    if (follows) pieces_.back().bytes += piece.bytes;
    else pieces_.push_back(piece);
  }
  if (pieces_.empty()) return;
  first_ = pieces_.front().from / kPage * kPage;
  end_ = pieces_.back().from + pieces_.back().bytes;
  pages_ = Mapping::of(fd, static_cast<std::size_t>(end_), Access::read_only);
}

DeviceLoader::DeviceLoader(std::span<const std::byte> memory, std::byte* to, Device device, Stream stream)
    : fd_(no_file()), memory_(memory.data()), name_("memory"), device_(device), stream_(stream) {
  pieces_.push_back({0, memory.size(), to});
  end_ = memory.size();
}

/// Gives each thread slots of its own, so that no thread waits for another's. The caller is one of the threads.
void DeviceLoader::run(const LoadProgress& progress) {
  if (pieces_.empty()) return;
  const std::size_t threads = threads_for(end_ - first_);
  const auto bytes = static_cast<std::int64_t>(threads * kSlotsPerThread * kPart);
  const Tensor ring = [&] {
    const Spent spent(times_.prepared);
    return empty(Layout(DType::u8, {bytes}), AllocateOptions{.pinned = true});
  }();
  std::atomic<std::size_t> taken{0};
  const auto work = [&](auto&& each) {
    std::vector<Slot> slots(kSlotsPerThread);
    const std::size_t mine = taken++;
    for (std::size_t i = 0; i < kSlotsPerThread; ++i)
      slots[i].at = ring.as<std::byte>() + (mine * kSlotsPerThread + i) * kPart;
    for (std::size_t turn = 0; step(slots[turn % kSlotsPerThread]); ++turn) each();
  };
  {
    const Crew crew(threads - 1, [&] { error_.keep_of([&] { work([] {}); }); });
    error_.keep_of([&] { work([&] { report(progress); }); });
  }
  backend(device_.type).synchronize(device_.index, stream_);  // the next caller gets the ring
  error_.rethrow();
  report(progress);
  log_info("{} to {}, {} threads: {}", name_, device_.str(), threads, times_.text());
}

void DeviceLoader::report(const LoadProgress& progress) const {
  if (progress) progress(std::min(done_.load(), end_ - first_), end_ - first_);
}

bool DeviceLoader::step(Slot& slot) {
  if (error_.is_set()) return false;
  const std::uint64_t from = first_ + next_.fetch_add(1) * kPart;
  if (from >= end_) return false;
  const std::uint64_t bytes = std::min(kPart, end_ - from);
  wait_for(slot);
  {
    const Spent spent(times_.read);
    fill(slot.at, from, bytes);
  }
  copy(slot.at, from, bytes);
  slot.busy = Session::current().streams().mark(device_, stream_);
  done_ += bytes;
  return true;
}

/// Waits until the card has copied the slot. Sleeps, which costs no time, because the card is slower than this thread
/// here.
void DeviceLoader::wait_for(Slot& slot) {
  constexpr std::chrono::microseconds kNap{20};
  const Spent spent(times_.waited);
  Session& session = Session::current();
  while (slot.busy && session.streams().has_passed(session.id(), slot.busy) == StreamOrder::MarkState::no) {
    if (const auto failure = backend(device_.type).failure(device_.index)) throw Error(*failure);
    std::this_thread::sleep_for(kNap);
  }
}

void DeviceLoader::fill(std::byte* to, std::uint64_t from, std::uint64_t bytes) {
  if (memory_) {
    std::memcpy(to, memory_ + from, bytes);
    return;
  }
  std::uint64_t done = is_cached(from, bytes) ? 0 : read_directly(to, from, bytes);
  while (done < bytes) {
    const ssize_t got = ::pread(fd_.get(), to + done, bytes - done, static_cast<off_t>(from + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw_errno(fmt::format("cannot read {}", name_), errno);
    if (got == 0)
      throw_error(ErrorCode::bad_file,
                  "{} ended at byte {}, {} bytes too early: was it written to meanwhile?", name_,
                  from + done, bytes - done);
    done += static_cast<std::uint64_t>(got);
  }
}

/// A read with RWF_NOWAIT would still start read-ahead, so mincore(2) is asked instead. mincore() always says yes for files of
/// another user, which are therefore read through the cache. Asking about each page would take a fifth of the time of
/// copying the page. A wrong answer costs only time.
bool DeviceLoader::is_cached(std::uint64_t from, std::uint64_t bytes) const noexcept {
  for (std::uint64_t at = from; at < from + bytes; at += kPagesAPage * kPage) {
    unsigned char found = 0;
    if (::mincore(pages_.data() + at, kPage, &found) == 0 && (found & 1) == 0) return false;
  }
  return true;
}

/// Reads from the beginning of the part: direct reads begin and end at pages, except at the file's end.
std::uint64_t DeviceLoader::read_directly(std::byte* to, std::uint64_t from, std::uint64_t bytes) {
  if (!direct_) return 0;
  const std::uint64_t wanted = up(bytes, kPage);
  std::uint64_t done = 0;
  while (done < wanted) {
    const ssize_t got = ::pread(direct_.get(), to + done, wanted - done, static_cast<off_t>(from + done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    done += static_cast<std::uint64_t>(got);
    if (done % kPage != 0) break;
  }
  times_.direct += std::min(done, bytes);
  return std::min(done, bytes);
}

/// Lets the card copy a part. REQUIRES: the part has been read.
void DeviceLoader::copy(const std::byte* slot, std::uint64_t from, std::uint64_t bytes) {
  auto piece = std::upper_bound(pieces_.begin(), pieces_.end(), from,
                                [](std::uint64_t at, const FilePiece& p) { return at < p.from; });
  if (piece != pieces_.begin()) --piece;
  for (; piece != pieces_.end() && piece->from < from + bytes; ++piece) {
    const std::uint64_t begin = std::max(from, piece->from);
    const std::uint64_t end = std::min(from + bytes, piece->from + piece->bytes);
    if (begin >= end) continue;
    copy_bytes({piece->to + (begin - piece->from), device_, slot + (begin - from), kCpu, end - begin},
               stream_);
  }
}

namespace {

std::uint64_t entry_bytes(const SafetensorsEntry& entry) { return entry.end - entry.begin; }

/// Returns where each tensor goes in the block, with the end at the back. The file's own offsets are kept if all of
/// them are aligned.
std::vector<std::uint64_t> offsets_of(const SafetensorsHeader& header) {
  const bool are_aligned =
      std::all_of(header.entries.begin(), header.entries.end(),
                  [](const SafetensorsEntry& e) { return e.begin % kCardAlignment == 0; });
  std::vector<std::uint64_t> offsets;
  std::uint64_t at = 0;
  for (const SafetensorsEntry& entry : header.entries) {
    offsets.push_back(are_aligned ? entry.begin : at);
    at = up(offsets.back() + entry_bytes(entry), kCardAlignment);
  }
  offsets.push_back(std::max<std::uint64_t>(at, 1));
  return offsets;
}

void load_file(const OpenedSafetensors& file, Device device, Stream stream, const LoadProgress& progress,
               std::vector<NamedTensor>& tensors) {
  const SafetensorsHeader& header = file.header;
  const std::vector<std::uint64_t> offsets = offsets_of(header);
  const Layout row(DType::u8, {static_cast<std::int64_t>(offsets.back())});
  const Tensor block = record_stream(empty(row, device), stream);
  std::vector<FilePiece> pieces;
  for (std::size_t i = 0; i < header.entries.size(); ++i) {
    const SafetensorsEntry& entry = header.entries[i];
    tensors.emplace_back(entry.name, block.with_layout(Layout(entry.dtype, entry.shape), offsets[i]));
    pieces.push_back(
        {header.data_offset + entry.begin, entry_bytes(entry), block.as<std::byte>() + offsets[i]});
  }
  about_file(file.path, [&] { DeviceLoader(file.fd, file.path, pieces, device, stream).run(progress); });
}

}  // namespace

std::vector<NamedTensor> load_safetensors(const std::string& path, Device device, Stream stream,
                                          const LoadProgress& progress) {
  if (device == kCpu) return load_safetensors(path, progress);
  const std::vector<OpenedSafetensors> files = open_checkpoint(path);
  std::uint64_t before = 0;
  std::uint64_t total = 0;
  for (const OpenedSafetensors& file : files) total += file.header.file_size - file.header.data_offset;
  std::vector<NamedTensor> tensors;
  for (const OpenedSafetensors& file : files) {
    const std::uint64_t bytes = file.header.file_size - file.header.data_offset;
    LoadProgress of_all;
    if (progress)
      of_all = [&](std::uint64_t done, std::uint64_t) { progress(before + std::min(done, bytes), total); };
    if (progress) progress(before, total);
    load_file(file, device, stream, of_all, tensors);
    before += bytes;
  }
  if (progress) progress(total, total);
  return tensors;
}

}  // namespace onecopy
