// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>

#include <fmt/format.h>

#include "device/janitor.h"
#include "onecopy/core/error.h"
#include "os/fd.h"
#include "os/mapping.h"
#include "os/process.h"
#include "probe.h"
#include "text.h"

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U
#endif
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

namespace onecopy::cli {
namespace {

constexpr std::size_t kPage = 4096;
constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr const char* kShmemEnabled = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";

/// Creates a memfd with raw calls, because the library's wrappers retry and hide the faults that this page reports.
Fd make_memfd(std::size_t size, unsigned extra_flags = 0) {
  Fd fd(::memfd_create("onecopy-doctor", MFD_CLOEXEC | MFD_ALLOW_SEALING | extra_flags));
  if (!fd) throw_errno("memfd_create", errno);
  if (::ftruncate(fd.get(), static_cast<off_t>(size)) != 0) throw_errno("ftruncate of a memfd", errno);
  return fd;
}

bool noexec_seal_works() {
  const Fd fd(::memfd_create("onecopy-doctor", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL));
  return static_cast<bool>(fd);
}

Finding probe_memfd() {
  const Fd fd = make_memfd(kPage);
  if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0)
    throw_errno("sealing a memfd", errno);
  if (::ftruncate(fd.get(), 0) == 0 || errno != EPERM)
    return missing("a sealed memfd could still be shrunk", "Borrowers could crash the owner.");
  return works(noexec_seal_works() ? "created, sealed against shrinking; NOEXEC_SEAL too"
                                   : "created, sealed against shrinking; NOEXEC_SEAL needs Linux 6.3");
}

Finding probe_future_write() {
  const char* follows = "The table of blocks cannot be protected from borrowers. Needs Linux 5.1.";
  const Fd fd = make_memfd(kPage);
  const Mapping before = Mapping::of(fd, kPage, Access::read_write);
  if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_FUTURE_WRITE) != 0)
    return missing(fmt::format("F_SEAL_FUTURE_WRITE: {}", std::strerror(errno)), follows);
  void* after = ::mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (after != MAP_FAILED) {
    ::munmap(after, kPage);
    return missing("a sealed memfd could still be mapped for writing", follows);
  }
  *before.as<int>() = 1;
  return works("the owner writes on, a later writable mapping is refused");
}

Finding probe_shared_mapping() {
  const Fd fd = make_memfd(kPage);
  const Mapping one = Mapping::of(fd, kPage, Access::read_write);
  const Mapping two = Mapping::of(fd, kPage, Access::read_only);
  std::memcpy(one.data(), "onecopy", 8);
  if (std::memcmp(two.data(), "onecopy", 8) != 0)
    return missing("a write through one mapping was not seen through another", "");
  return works("a write through one mapping is read through another");
}

std::uint64_t resident_bytes(const Fd& fd) {
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) throw_errno("fstat of a memfd", errno);
  return static_cast<std::uint64_t>(info.st_blocks) * 512;
}

Finding probe_fallocate() {
  constexpr std::size_t kBytes = std::size_t{1} << 20;
  const Fd fd = make_memfd(kBytes);
  if (::fallocate(fd.get(), 0, 0, kBytes) != 0) throw_errno("fallocate of a memfd", errno);
  const std::uint64_t reserved = resident_bytes(fd);
  if (::fallocate(fd.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, kBytes) != 0)
    throw_errno("punching a hole into a memfd", errno);
  if (reserved < kBytes || resident_bytes(fd) != 0)
    return missing("fallocate had no effect", "Lack of memory would kill instead of throwing.");
  return works("1 MiB reserved ahead of use, and given back");
}

Finding probe_populate() {
  const Fd fd = make_memfd(kHugePage);
  const Mapping mapping = Mapping::of(fd, kHugePage, Access::read_write);
  if (::madvise(mapping.data(), kHugePage, MADV_POPULATE_WRITE) != 0)
    return slower(fmt::format("MADV_POPULATE_WRITE: {}", std::strerror(errno)),
                  "New memory is mapped page by page at first touch. Needs Linux 5.14.");
  return works("2 MiB mapped by one call");
}

std::string selected_word(const std::string& choices) {
  const std::size_t begin = choices.find('[');
  const std::size_t end = choices.find(']');
  if (begin == std::string::npos || end == std::string::npos) return choices;
  return choices.substr(begin + 1, end - begin - 1);
}

/// Touches aligned shared memory for which huge pages are asked for, as a segment does, and asks the kernel for the pages behind it.
bool gets_huge_pages() {
  const Fd fd = make_memfd(2 * kHugePage);
  const Mapping mapping = Mapping::of(fd, 2 * kHugePage, Access::read_write);
  const auto address = reinterpret_cast<std::uintptr_t>(mapping.data());
  std::byte* aligned = mapping.data() + (kHugePage - address % kHugePage) % kHugePage;
  ::madvise(aligned, kHugePage, MADV_HUGEPAGE);
  std::memset(aligned, 1, kHugePage);
  std::ifstream smaps("/proc/self/smaps");
  bool in_mapping = false;
  for (std::string line; std::getline(smaps, line);) {
    if (line.starts_with(fmt::format("{:x}-", address))) in_mapping = true;
    if (in_mapping && line.starts_with("ShmemPmdMapped:")) return line.find(" 0 kB") == std::string::npos;
  }
  return false;
}

Finding probe_huge_pages() {
  std::ifstream file(kShmemEnabled);
  std::string choices;
  if (!std::getline(file, choices))
    return slower(fmt::format("no {}", kShmemEnabled), "This kernel has no huge pages for shared memory.");
  const std::string setting = selected_word(choices);
  if (gets_huge_pages()) return works(fmt::format("shared memory gets 2 MiB pages (\"{}\")", setting));
  return slower(
      fmt::format("shared memory gets 4 KiB pages (shmem_enabled is \"{}\")", setting),
      fmt::format("Only the first touch of large tensors takes longer. Root may try: `echo advise > {}`",
                  kShmemEnabled));
}

/// Creates, fills, names and removes an unnamed file, as a named segment does.
void make_named_file(const std::string& directory) {
  const Fd fd(::open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (!fd) throw_errno(fmt::format("O_TMPFILE in {}", directory), errno);
  if (::fallocate(fd.get(), 0, 0, kPage) != 0)
    throw_errno(fmt::format("fallocate in {}", directory), errno);
  const std::string self = fmt::format("/proc/self/fd/{}", fd.get());
  const std::string path = fmt::format("{}/onecopy-doctor-{}", directory, current_pid());
  if (::linkat(AT_FDCWD, self.c_str(), AT_FDCWD, path.c_str(), AT_SYMLINK_FOLLOW) != 0)
    throw_errno(fmt::format("linkat in {}", directory), errno);
  if (::unlink(path.c_str()) != 0) throw_errno(fmt::format("unlink in {}", directory), errno);
}

Finding probe_shared_directory() {
  const char* follows = "Only the strategy file_system needs it; the default one does not.";
  const std::string directory = shared_directory();
  struct statfs info {};
  if (::statfs(directory.c_str(), &info) != 0)
    return missing(fmt::format("{}: {}", directory, std::strerror(errno)), follows);
  const auto unit = static_cast<std::uint64_t>(info.f_bsize);
  const std::string room =
      fmt::format("{}{} free of {}", directory == "/dev/shm" ? "" : directory + ": ",
                  format_bytes(info.f_bavail * unit), format_bytes(info.f_blocks * unit));
  try {
    make_named_file(directory);
  } catch (const Error& error) {
    return missing(fmt::format("{}; {}", room, error.what()), follows);
  }
  constexpr std::uint64_t kSmall = std::uint64_t{1} << 30;
  if (info.f_bavail * unit < kSmall)
    return slower(room, fmt::format("{} Containers: start with --shm-size or --ipc=host.", follows));
  return works(fmt::format("{}; a file was created, named and removed", room));
}

}  // namespace

Finding works(std::string detail) { return {Verdict::ok, std::move(detail), ""}; }
Finding slower(std::string detail, std::string advice) {
  return {Verdict::slower, std::move(detail), std::move(advice)};
}
Finding missing(std::string detail, std::string advice) {
  return {Verdict::missing, std::move(detail), std::move(advice)};
}

std::vector<Probe> memory_probes() {
  return {{"memfd and seals", probe_memfd, true},
          {"write-protecting seal", probe_future_write, true},
          {"shared mapping", probe_shared_mapping, true},
          {"reserving memory", probe_fallocate, true},
          {"populating memory", probe_populate},
          {"huge pages", probe_huge_pages},
          {"/dev/shm", probe_shared_directory}};
}

}  // namespace onecopy::cli
