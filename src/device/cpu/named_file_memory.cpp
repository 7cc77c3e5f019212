// SPDX-License-Identifier: Apache-2.0
#include "named_file_memory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "core/throw_error.h"
#include "device/janitor.h"
#include "file_pages.h"
#include "onecopy/core/bytes.h"
#include "os/file.h"
#include "os/mapping.h"
#include "os/random.h"

namespace onecopy {

namespace {

constexpr const char* kWayOut =
    "set ONECOPY_SHM_DIR to a directory with room, or use the strategy file_descriptor, which needs none";

std::string free_space(const std::string& directory) {
  struct statvfs info {};
  if (::statvfs(directory.c_str(), &info) != 0) return "an unknown number of";
  return std::to_string(static_cast<std::uint64_t>(info.f_bavail) * info.f_frsize);
}

[[noreturn]] void throw_directory(const std::string& directory, const char* what, int error) {
  const ErrorCode code = error == ENOSPC || error == EDQUOT       ? ErrorCode::out_of_memory
                         : error == EMFILE || error == ENFILE     ? ErrorCode::out_of_descriptors
                         : error == EOPNOTSUPP || error == EISDIR ? ErrorCode::unsupported
                                                                  : ErrorCode::system;
  throw Error(code,
              fmt::format("cannot {} a shared file in {} ({}; {} bytes free): {}", what, directory,
                          std::strerror(error), free_space(directory), kWayOut),
              error, ErrorDomain::posix);
}

/// Returns whether `path` still names the open file `fd`.
bool still_named(const std::string& path, int fd) noexcept {
  struct stat by_name {};
  struct stat by_fd {};
  return ::lstat(path.c_str(), &by_name) == 0 && ::fstat(fd, &by_fd) == 0 && by_fd.st_nlink > 0 &&
         by_name.st_ino == by_fd.st_ino && by_name.st_dev == by_fd.st_dev;
}

[[noreturn]] void throw_gone(const std::string& path) {
  throw_error(ErrorCode::stale_handle, "{} is gone: every process that used it has ended or released it",
              path);
}

Fd open_locked(const std::string& path, Access access) {
  const int mode = access == Access::read_only ? O_RDONLY : O_RDWR;
  Fd fd(::open(path.c_str(), mode | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!fd && errno == ENOENT) throw_gone(path);
  if (!fd) throw_errno(fmt::format("cannot open {}", path), errno);
  if (::flock(fd.get(), LOCK_SH | LOCK_NB) != 0 || !still_named(path, fd.get())) throw_gone(path);
  return fd;
}

enum class Descriptor : std::uint8_t { keep, close };

/// A segment of kind named_file, in the owner or in a borrower. Its open file holds the shared lock, and its mapping
/// holds the open file. A borrower therefore keeps no descriptor, and RLIMIT_NOFILE does not bound the number of
/// segments.
class NamedFileMemory final : public DeviceMemory {
 public:
  NamedFileMemory(Fd fd, std::string path, std::size_t bytes, Access access, Descriptor descriptor)
      : DeviceMemory(access),
        path_(std::move(path)),
        fd_(std::move(fd)),
        mapping_(Mapping::of(fd_, bytes, access)) {
    if (descriptor == Descriptor::close) fd_.reset();
  }
  ~NamedFileMemory() override;

  std::byte* data() const noexcept override { return mapping_.data(); }
  std::size_t size() const noexcept override { return mapping_.size(); }
  SegmentKind kind() const noexcept override { return SegmentKind::named_file; }
  std::size_t present() const noexcept override { return fd_ ? present_pages(fd_, size()) : size(); }
  void decommit(std::size_t offset, std::size_t bytes) noexcept override {
    if (fd_) give_back_pages(fd_, offset, bytes);
  }
  void remove_name() noexcept override;

 private:
  void do_commit(std::size_t offset, std::size_t bytes) override { reserve(offset, bytes, true); }
  void do_populate(std::size_t offset, std::size_t bytes) override { reserve(offset, bytes, false); }
  void reserve(std::size_t offset, std::size_t bytes, bool gives_back);
  ExportedMemory do_export(Access access) const override;

  std::string path_;
  Fd fd_;  ///< empty in a borrower
  Mapping mapping_;
};

/// Unlinks the file if it is unused. Tries on a new descriptor, because a forked child may share the old one's lock and
/// still use the memory.
NamedFileMemory::~NamedFileMemory() {
  mapping_.reset();
  fd_.reset();
  unlink_once_unused(std::move(path_));
}

/// Takes the exclusive lock and unlinks the file, unless a borrower has it open; the borrower then unlinks it later.
void NamedFileMemory::remove_name() noexcept {
  if (fd_ && ::flock(fd_.get(), LOCK_EX | LOCK_NB) == 0 && still_named(path_, fd_.get()))
    ::unlink(path_.c_str());
}

/// Reserves pages. Pages that were reserved before an error are given back or stay.
void NamedFileMemory::reserve(std::size_t offset, std::size_t bytes, bool gives_back) {
  const std::string directory = directory_of(path_);
  const Fd file = fd_ ? fd_.duplicate() : open_locked(path_, Access::read_write);
  reserve_pages(
      {file, data(), size(),
       fmt::format("; {} has {} bytes free: {}", directory, free_space(directory), kWayOut), gives_back},
      offset, bytes);
}

ExportedMemory NamedFileMemory::do_export(Access) const {
  ExportedMemory memory;
  const auto* path = reinterpret_cast<const std::byte*>(path_.data());
  memory.blob.assign(path, path + path_.size());
  return memory;
}

Fd create_unnamed(const std::string& directory, std::size_t bytes) {
  Fd fd(::open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (!fd) throw_directory(directory, "create", errno);
  if (::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) throw_directory(directory, "size", errno);
  if (::flock(fd.get(), LOCK_SH | LOCK_NB) != 0) throw_directory(directory, "lock", errno);
  return fd;
}

/// Gives the file its name. Returns false if the name is taken.
bool try_give_name(const Fd& fd, const std::string& directory, const std::string& path) {
  const std::string open_file = fmt::format("/proc/self/fd/{}", fd.get());
  if (::linkat(AT_FDCWD, open_file.c_str(), AT_FDCWD, path.c_str(), AT_SYMLINK_FOLLOW) == 0) return true;
  if (errno != EEXIST) throw_directory(directory, "name", errno);
  return false;
}

/// Gives the file a name and returns its path.
std::string give_name(const Fd& fd, const std::string& directory, const std::string& name) {
  std::string path = directory + "/" + name;
  while (!try_give_name(fd, directory, path))
    path = fmt::format("{}/{}-{:016x}", directory, name, random_value<std::uint64_t>());
  return path;
}

/// Returns the path in an exported segment, after checking that it names a segment file.
std::string checked_path(const Bytes& blob) {
  std::string path(reinterpret_cast<const char*>(blob.data()), blob.size());
  const std::size_t slash = path.rfind('/');
  if (path.empty() || path.front() != '/' || path.size() > 4000 || path.find('\0') != std::string::npos ||
      path.compare(slash + 1, kSegmentFilePrefix.size(), kSegmentFilePrefix) != 0)
    throw Error(ErrorCode::bad_handle,
                "the path of a shared file does not have the form that onecopy uses");
  return path;
}

void check_file(const Fd& fd, const std::string& path, std::uint64_t size) {
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) throw_errno(fmt::format("cannot examine {}", path), errno);
  if (!S_ISREG(info.st_mode)) throw_error(ErrorCode::bad_handle, "{} is not a regular file", path);
  if (info.st_uid != ::geteuid())
    throw_error(ErrorCode::other_user, "{} belongs to user {}, not to {}", path, info.st_uid, ::geteuid());
  if (static_cast<std::uint64_t>(info.st_size) != size)
    throw_error(ErrorCode::bad_handle, "{} has {} bytes where {} were announced", path, info.st_size, size);
}

}  // namespace

bool is_segment_file(std::string_view name) noexcept {
  constexpr std::size_t kOwner = 32;
  constexpr std::size_t kRandom = 16;
  constexpr std::string_view kHexDigits = "0123456789abcdef";
  const auto all_of = [](std::string_view text, std::string_view characters) {
    return !text.empty() && text.find_first_not_of(characters) == std::string_view::npos;
  };
  if (name.substr(0, kSegmentFilePrefix.size()) != kSegmentFilePrefix) return false;
  name.remove_prefix(kSegmentFilePrefix.size());
  if (name.size() <= kOwner || name[kOwner] != '-' || !all_of(name.substr(0, kOwner), kHexDigits))
    return false;
  name.remove_prefix(kOwner + 1);
  const std::size_t dash = name.find('-');
  if (!all_of(name.substr(0, dash), "0123456789")) return false;
  if (dash == std::string_view::npos) return true;
  name.remove_prefix(dash + 1);
  return name.size() == kRandom && all_of(name, kHexDigits);
}

std::unique_ptr<DeviceMemory> create_named_file_memory(std::size_t bytes, const std::string& owner,
                                                       std::uint32_t number) {
  const std::string directory = shared_directory();
  Fd fd = create_unnamed(directory, bytes);
  const std::string path =
      give_name(fd, directory, fmt::format("{}{}-{}", kSegmentFilePrefix, owner, number));
  try {
    return std::make_unique<NamedFileMemory>(std::move(fd), path, bytes, Access::read_write,
                                             Descriptor::keep);
  } catch (...) {
    unlink_if_unused(path);
    throw;
  }
}

std::unique_ptr<DeviceMemory> open_named_file_memory(const ExportedMemory& memory, Access access) {
  const std::string path = checked_path(memory.blob);
  Fd fd = open_locked(path, access);
  check_file(fd, path, memory.size);
  return std::make_unique<NamedFileMemory>(std::move(fd), path, memory.size, access, Descriptor::close);
}

long long unlink_if_unused(const std::string& path) noexcept {
  const Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!fd || ::flock(fd.get(), LOCK_EX | LOCK_NB) != 0 || !still_named(path, fd.get())) return -1;
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0 || !S_ISREG(info.st_mode) || info.st_uid != ::geteuid()) return -1;
  if (::unlink(path.c_str()) != 0) return -1;
  return static_cast<long long>(info.st_blocks) * 512;
}

}  // namespace onecopy
