// SPDX-License-Identifier: Apache-2.0
#include "onecopy/share/share.h"

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
#include "onecopy/core/error.h"
#include "onecopy/memory/copy.h"
#include "onecopy/share/object.h"
#include "onecopy/share/pin.h"
#include "os/random.h"
#include "share/borrower/broker_client.h"
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

Handle share(const Tensor& tensor) { return Session::current().share(tensor); }

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

Handle hold(const Handle& handle) { return Runtime::current().hold(handle); }

void end_hold(const Handle& handle) noexcept {
  const HandleFields& fields = handle.fields();
  if (fields.hold == 0) return;
  if (Runtime* runtime = Runtime::existing()) runtime->importer().acknowledge(fields);
  else acknowledge_to(fields.maker, fields.hold);
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

void check_tensor(const Handle& handle) {
  if (handle.is_bundle())
    throw Error(ErrorCode::bad_handle, "this handle names a bundle of tensors; open it with Bundle::open");
  if (handle.fields().is_queue())
    throw Error(ErrorCode::bad_handle, "this handle names a queue; open it with Queue::connect");
}

}  // namespace

Tensor open(const Handle& handle, Access access) { return open(handle, OpenOptions{access, {}, {}}); }

Tensor open(const Handle& handle, const OpenOptions& options) {
  check_tensor(handle);
  Tensor opened = Session::open_early(handle.fields(), options);
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
  Tensor shared = tensor;
  if (options.exact != Exact::no) {
    const std::string more = runtime.exposes(tensor);
    if (!more.empty() && options.exact == Exact::refuse) throw Error(ErrorCode::unsupported, more);
    if (!more.empty()) shared = copy_in_order(tensor, options.stream);
  }
  return options.stream ? runtime.share(shared, *options.stream) : Session::current().share(shared);
}

Tensor record_stream(const Tensor& tensor, Stream stream) {
  return Session::current().streams().order_release(tensor, stream);
}

std::string Handle::to_text() const { return onecopy::to_text(to_bytes()); }

Handle Handle::from_text(std::string_view text) { return from_bytes(onecopy::from_text(text)); }

/// Shares one byte, which stands for the object. The byte's block has claims, holds and deaths like any other.
Handle share_object(std::shared_ptr<const void> object) {
  if (!object)
    throw Error(ErrorCode::invalid_argument, "there is no object to share: the pointer is empty");
  Runtime& runtime = Runtime::current();
  const Tensor byte = empty(Layout(DType::u8, {1}));
  Handle handle = Session::current().share(byte);
  const PinnedObjects::Name name{handle.fields().block, handle.fields().generation};
  runtime.ledger().keep_with(name.block,
                             {ObjectBlock::keep(runtime.objects().add(name, std::move(object)))});
  return handle;
}

std::shared_ptr<const void> shared_object(const Handle& handle) {
  Runtime* const runtime = Runtime::existing();
  const HandleFields& fields = handle.fields();
  if (!runtime || fields.owner != runtime->id()) return {};
  return runtime->objects().find({fields.block, fields.generation});
}

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
