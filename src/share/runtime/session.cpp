// SPDX-License-Identifier: Apache-2.0
#include "share/session.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <utility>

#include "device/janitor.h"
#include "device/pinned_ranges.h"
#include "onecopy/core/error.h"
#include "os/random.h"
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

SharedBlocks& shared_blocks(const Tensor& tensor, const char* verb) {
  BlockGroup* const group = tensor.block().group();
  if (!group) [[unlikely]]
    throw Error(ErrorCode::invalid_argument,
                fmt::format("an empty tensor has no memory to {}; make one first", verb));
  if (!group->shareable()) [[unlikely]]
    throw Error(ErrorCode::invalid_argument,
                fmt::format("this tensor's memory belongs to another library and cannot be opened by other "
                            "processes; {} onecopy::copy(tensor.view()) instead",
                            verb));
  if (PinnedRanges::is_view(tensor.device(), tensor.data())) [[unlikely]]
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("this is {}'s view of memory of the host, and stays in this process; {} the tensor "
                    "that it is a view of",
                    tensor.device().str(), verb));
  return as_shared(*group).root();
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
  runtime_.opened_total_.fetch_add(1, std::memory_order_relaxed);
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

/// Names a tensor for a framework's reducers, with a single copy of the fields.
Handle Session::share_held(const Tensor& tensor, Stream stream) {
  HandleFields fields = runtime_.name_in_order(tensor, stream);
  fields.hold = holds_.add(tensor.block(), Holds::Clock::now(), Holds::Until::opened);
  return {std::move(fields), tensor.block()};
}

// Files that others have made.
namespace {

[[noreturn]] void refuse_file(int fd, const std::string& problem) {
  throw Error(ErrorCode::invalid_argument, fmt::format("descriptor {} cannot be adopted: {}", fd, problem));
}

/// Throws unless the file is memory: an ordinary file would be written to its disk without notice.
void check_is_memory(int fd) {
  struct statfs system {};
  struct stat file {};
  if (::fstatfs(fd, &system) != 0 || ::fstat(fd, &file) != 0)
    throw_errno(fmt::format("cannot examine descriptor {}", fd), errno, ErrorCode::invalid_argument);
  if (!S_ISREG(file.st_mode) || system.f_type != TMPFS_MAGIC)
    refuse_file(fd,
                "it is not shared memory (a memfd or a file in /dev/shm); read it into onecopy::empty()");
}

void check_size(int fd, std::size_t size, std::size_t offset) {
  struct stat file {};
  ::fstat(fd, &file);
  if (size == 0) refuse_file(fd, "no bytes were asked for; use onecopy::empty()");
  const auto there = static_cast<std::uint64_t>(file.st_size);
  if (there < size || there - size < offset)
    refuse_file(fd, fmt::format("it has {} bytes, {} were asked for from byte {} on; ftruncate() it first",
                                there, size, offset));
}

void check_is_writable(int fd) {
  if ((::fcntl(fd, F_GETFL) & O_ACCMODE) != O_RDWR)
    throw Error(
        ErrorCode::read_only,
        fmt::format("descriptor {} cannot be adopted: it was not opened for reading and writing", fd));
}

void check(int fd, std::size_t size, std::size_t offset) {
  check_is_memory(fd);
  check_size(fd, size, offset);
  check_is_writable(fd);
}

std::size_t whole_pages(std::size_t bytes) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return (bytes + page - 1) / page * page;
}

/// Returns a second name for a file. The name ends in a number, as the names of a pool's segments do, but in a much higher
/// one.
std::string second_name() {
  std::array<std::uint64_t, 1> number{};
  random_bytes(std::as_writable_bytes(std::span(number)));
  return fmt::format("{}/onecopy-{}-{}", shared_directory(), Runtime::current().name(),
                     number[0] | std::uint64_t{1} << 63);
}

/// Locks the file first: the janitor of another process removes a file that has a second name and no lock.
bool try_give_second_name(const Fd& file, const std::string& path, std::size_t bytes) {
  const std::string open_file = fmt::format("/proc/self/fd/{}", file.get());
  return ::flock(file.get(), LOCK_SH | LOCK_NB) == 0 &&
         ::ftruncate(file.get(), static_cast<off_t>(bytes)) == 0 &&
         ::linkat(AT_FDCWD, open_file.c_str(), AT_FDCWD, path.c_str(), AT_SYMLINK_FOLLOW) == 0;
}

ExportedMemory segment_named(const std::string& path, std::size_t bytes) {
  const auto* begin = reinterpret_cast<const std::byte*>(path.data());
  return {SegmentKind::named_file, bytes, {}, {begin, begin + path.size()}};
}

}  // namespace

std::optional<Tensor> try_adopt_by_name(const Fd& file, std::size_t size, std::size_t offset) {
  check(file.get(), size, offset);
  const std::size_t bytes = whole_pages(offset + size);
  struct stat status {};
  if (::fstat(file.get(), &status) != 0 || status.st_nlink == 0 || status.st_uid != ::geteuid() ||
      static_cast<std::size_t>(status.st_size) > bytes)
    return std::nullopt;
  const std::string path = second_name();
  if (!try_give_second_name(file, path, bytes)) return std::nullopt;
  try {
    auto mapped = backend(DeviceType::cpu).open(0, segment_named(path, bytes), Access::read_write);
    mapped->commit(0, bytes);
    return Runtime::current().adopt(std::move(mapped), size, bytes, offset);
  } catch (...) {
    ::unlink(path.c_str());
    throw;
  }
}

Tensor adopt_file(int fd, std::size_t size, std::size_t offset) {
  check(fd, size, offset);
  Fd own(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (!own) throw_errno(fmt::format("cannot duplicate descriptor {}", fd), errno);
  const std::size_t end = offset + size;
  ExportedMemory memory{SegmentKind::shared_file, whole_pages(end), {}, {}};
  memory.fds.push_back(std::move(own));
  auto mapped = backend(DeviceType::cpu).open(0, std::move(memory), Access::read_write);
  mapped->commit(0, end);  // not beyond the end of the file, which would lengthen it
  return Runtime::current().adopt(std::move(mapped), size, end, offset);
}

}  // namespace onecopy
