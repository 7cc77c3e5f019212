// SPDX-License-Identifier: Apache-2.0
#include "memfd_memory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include "core/throw_error.h"
#include "device/private_memory.h"
#include "file_pages.h"
#include "os/mapping.h"
#include "os/memfd.h"
#include "os/one_descriptor.h"

namespace onecopy {

namespace {

/// Maps a segment. Nobody can change a sealed file, so that a mapping for writing is a copy of this process's own.
Mapping map_segment(SegmentKind kind, const Fd& fd, std::size_t bytes, Access access) {
  if (kind != SegmentKind::sealed_file || access == Access::read_only)
    return Mapping::of(fd, bytes, access);
  has_private_memory = true;
  return Mapping::copy_on_write(fd, bytes);
}

/// A segment of kind memfd, shared_file or sealed_file, in the owner or in a borrower.
class MemfdMemory final : public DeviceMemory {
 public:
  MemfdMemory(SegmentKind kind, Fd fd, std::size_t bytes, Access access)
      : DeviceMemory(access),
        kind_(kind),
        fd_(std::move(fd)),
        mapping_(map_segment(kind, fd_, bytes, access)) {}

  std::byte* data() const noexcept override { return mapping_.data(); }
  std::size_t size() const noexcept override { return mapping_.size(); }
  SegmentKind kind() const noexcept override { return kind_; }
  std::size_t present() const noexcept override { return present_pages(fd_, size()); }
  void decommit(std::size_t offset, std::size_t bytes) noexcept override;

 private:
  void do_commit(std::size_t offset, std::size_t bytes) override;
  void do_populate(std::size_t offset, std::size_t bytes) override {
    if (kind_ != SegmentKind::sealed_file) reserve_pages({fd_, data(), size(), "", false}, offset, bytes);
  }
  ExportedMemory do_export(Access access) const override;

  SegmentKind kind_;
  Fd fd_;
  Mapping mapping_;
};

void MemfdMemory::do_commit(std::size_t offset, std::size_t bytes) {
  if (kind_ == SegmentKind::sealed_file) return;  // all pages are there
  reserve_pages({fd_, data(), size(), "", kind_ != SegmentKind::shared_file}, offset, bytes);
}

void MemfdMemory::decommit(std::size_t offset, std::size_t bytes) noexcept {
  if (kind_ == SegmentKind::sealed_file) return;
  give_back_pages(fd_, offset, bytes);
}

/// Duplicates the descriptor of a sealed file, whose open file may have a lock that tells who uses the memory.
ExportedMemory MemfdMemory::do_export(Access access) const {
  ExportedMemory memory;
  const bool is_reopened = access == Access::read_only && kind_ != SegmentKind::sealed_file;
  memory.fds.push_back(is_reopened ? reopen_read_only(fd_) : fd_.duplicate());
  return memory;
}

/// Checks the size of the file. Its maker may still shrink it; the last page may lie partly beyond its end.
void check_shared_file(const Fd& fd, std::uint64_t size) {
  const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  if (const std::uint64_t actual = file_size(fd); actual + page <= size || actual == 0)
    throw_error(ErrorCode::bad_handle,
                "the shared file has {} bytes where {} were announced: it was shrunk", actual, size);
}

}  // namespace

/// Throws bad_handle unless the file is a memfd of this size that no process can write to.
void check_sealed_file(const Fd& fd, std::uint64_t size) {
  check_memfd(fd, size);
  if ((seals_of(fd) & kSealWrite) == 0)
    throw Error(ErrorCode::bad_handle, "the descriptor of a segment that cannot change is not sealed");
}

void check_memfd(const Fd& fd, std::uint64_t size) {
  int seals = 0;
  try {
    seals = seals_of(fd);
  } catch (const Error&) {
    throw Error(ErrorCode::bad_handle, "the descriptor of a memfd segment is not a memfd");
  }
  if ((seals & kSealShrink) == 0)
    throw Error(ErrorCode::bad_handle,
                "the descriptor of a segment is not sealed against shrinking: using it could end in "
                "SIGBUS");
  if (const std::uint64_t actual = file_size(fd); actual != size)
    throw_error(ErrorCode::bad_handle, "the segment has {} bytes where {} were announced", actual, size);
}

std::unique_ptr<DeviceMemory> create_memfd_memory(std::size_t bytes, const std::string& owner,
                                                  std::uint32_t number) {
  Fd fd = create_memfd(fmt::format("onecopy-{:.8}-{}", owner, number), bytes);
  return std::make_unique<MemfdMemory>(SegmentKind::memfd, std::move(fd), bytes, Access::read_write);
}

std::unique_ptr<DeviceMemory> open_memfd_memory(ExportedMemory memory, Access access) {
  if (memory.fds.size() != 1)
    throw_error(ErrorCode::bad_handle, "a segment in a file has one descriptor; {} came",
                memory.fds.size());
  Fd fd = std::move(memory.fds.front());
  if (memory.kind == SegmentKind::sealed_file) {
    check_sealed_file(fd, memory.size);
  } else {
    if (memory.kind == SegmentKind::memfd) {
      check_memfd(fd, memory.size);
      fd = one_descriptor_of(std::move(fd));  // items in a queue may keep the same segment
    } else {
      check_shared_file(fd, memory.size);
    }
    const int flags = ::fcntl(fd.get(), F_GETFL);
    require_lent((flags & O_ACCMODE) == O_RDWR ? Access::read_write : Access::read_only, access);
  }
  return std::make_unique<MemfdMemory>(memory.kind, std::move(fd), memory.size, access);
}

}  // namespace onecopy
