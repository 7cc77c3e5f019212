// SPDX-License-Identifier: Apache-2.0
#include "os/mapping.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <string>
#include <utility>

#include "core/point.h"
#include "onecopy/core/error.h"
#include "os/file.h"

namespace onecopy {
namespace {

/// Counts without allocating: when mappings have run out, malloc fails as well.
std::size_t count_mappings() noexcept {
  const Fd maps(::open("/proc/self/maps", O_RDONLY | O_CLOEXEC));
  std::array<char, 4096> part;
  std::size_t lines = 0;
  for (ssize_t got; maps && (got = ::read(maps.get(), part.data(), part.size())) > 0;)
    lines += static_cast<std::size_t>(std::count(part.begin(), part.begin() + got, '\n'));
  return lines;
}

std::size_t max_mappings() {
  const auto text = try_read_text("/proc/sys/vm/max_map_count");
  return text ? std::strtoull(text->c_str(), nullptr, 10) : 65530;
}

/// Throws for the limit that was reached: mmap reports ENOMEM for three different ones.
[[noreturn]] void throw_no_memory(std::size_t size) {
  constexpr std::size_t kAddresses = std::size_t{1} << 47;
  if (size >= kAddresses)
    throw Error(ErrorCode::out_of_memory,
                fmt::format("cannot map {} bytes: a process can address at most {}", size, kAddresses),
                ENOMEM, ErrorDomain::posix);
  const std::size_t now = count_mappings();
  point("mapping.counted");
  const std::size_t most = max_mappings();
  rlimit space{};
  ::getrlimit(RLIMIT_AS, &space);
  const std::string limit =
      space.rlim_cur == RLIM_INFINITY ? "unlimited" : fmt::format("{} bytes", space.rlim_cur);
  const bool mappings = now + 16 >= most || space.rlim_cur != RLIM_INFINITY;
  throw Error(mappings ? ErrorCode::out_of_mappings : ErrorCode::out_of_memory,
              fmt::format("cannot map {} bytes: {} mappings of at most {} (vm.max_map_count), address "
                          "space (RLIMIT_AS, `ulimit -v`) {}; raise the limit that is reached or "
                          "release tensors",
                          size, now, most, limit),
              ENOMEM, ErrorDomain::posix);
}

[[noreturn]] void throw_map_failed(std::size_t size, int error) {
  if (error == ENOMEM) throw_no_memory(size);
  if (error == EACCES || error == EPERM)
    throw Error(ErrorCode::read_only,
                fmt::format("cannot map {} bytes for writing: the memory was opened or sealed "
                            "read-only; open it with read-only access",
                            size),
                error, ErrorDomain::posix);
  throw_errno(fmt::format("cannot map {} bytes", size), error,
              error == EINVAL ? ErrorCode::invalid_argument : ErrorCode::system);
}

}  // namespace

Mapping::Mapping(Mapping&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  if (this != &other) {
    reset();
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
  }
  return *this;
}

Mapping Mapping::of(const Fd& fd, std::size_t size, Access access, std::size_t offset) {
  const int protection = access == Access::read_only ? PROT_READ : PROT_READ | PROT_WRITE;
  void* data =
      ::mmap(nullptr, size, protection, MAP_SHARED | MAP_NORESERVE, fd.get(), static_cast<off_t>(offset));
  if (data == MAP_FAILED) throw_map_failed(size, errno);
  return Mapping(static_cast<std::byte*>(data), size);
}

Mapping Mapping::copy_on_write(const Fd& fd, std::size_t size) {
  void* data = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_NORESERVE, fd.get(), 0);
  if (data == MAP_FAILED) throw_map_failed(size, errno);
  return Mapping(static_cast<std::byte*>(data), size);
}

Mapping Mapping::anonymous(std::size_t size) {
  void* data =
      ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) throw_map_failed(size, errno);
  return Mapping(static_cast<std::byte*>(data), size);
}

void Mapping::forget() noexcept {
  if (!data_) return;
  // If this fails, the memory stays until the process ends. The kernel swaps the pages while readers may read words of
  // them. ThreadSanitizer takes a plain mmap() for a write to all of them, but not the bare system call.
  (void)::syscall(SYS_mmap, data_, size_, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0L);
}

/// Replaces the mapping, or unmaps and maps it again: at its limit of mappings the kernel refuses to replace one, but
/// allows a new one after an old one has gone.
void Mapping::clear() {
  const auto map = [this] {
    return ::mmap(data_, size_, PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  };
  if (map() != MAP_FAILED) return;
  ::munmap(data_, size_);
  if (map() != MAP_FAILED) return;
  const int error = errno;
  data_ = nullptr;
  throw_map_failed(std::exchange(size_, 0), error);
}

/// Unmaps part by part: another thread that maps memory waits for the part alone. A GiB takes 200 ms.
void Mapping::shrink(std::size_t size) noexcept {
  constexpr std::size_t kPart = std::size_t{16} << 20;
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const std::size_t kept = std::min(size_, (size + page - 1) / page * page);
  for (std::size_t rest = size_; rest > kept;) {
    const std::size_t begin = std::max(kept, (rest - 1) / kPart * kPart);
    ::munmap(data_ + begin, std::exchange(rest, begin) - begin);
  }
  size_ = kept;
  if (size_ == 0) data_ = nullptr;
}

/// Tests with neighbours of different access, which the kernel cannot merge into one mapping.
bool has_room_for_mappings(std::size_t count) noexcept {
  constexpr std::size_t kSmallest = 4096;
  constexpr std::size_t kMax = 64;
  std::array<void*, kMax> tried;
  std::size_t made = 0;
  for (count = std::min(count, kMax); made < count; ++made) {
    const int access = made % 2 == 0 ? PROT_NONE : PROT_READ;
    tried[made] = ::mmap(nullptr, kSmallest, access, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (tried[made] == MAP_FAILED) break;
  }
  for (std::size_t i = 0; i < made; ++i) ::munmap(tried[i], kSmallest);
  return made == count;
}

}  // namespace onecopy
