// SPDX-License-Identifier: Apache-2.0
#include "store/client/kv_pool_files.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "core/throw_error.h"
#include "os/file.h"
#include "os/memfd.h"
#include "os/page_tables.h"
#include "os/replacing_file.h"
#include "store/client/client.h"
#include "store/client/kv_pool_blocks.h"
#include "store/client/kv_pool_lock.h"

namespace onecopy::store {
namespace {

void check_directory(const std::string& directory, std::uint64_t bytes) {
  struct statfs system {};
  if (::statfs(directory.c_str(), &system) != 0)
    throw_errno(fmt::format("cannot look at {}", directory), errno);
  const std::uint64_t size = system.f_blocks * static_cast<std::uint64_t>(system.f_bsize);
  if (system.f_type == TMPFS_MAGIC && (size == 0 || size >= bytes)) return;  // 0: without a limit
  throw_error(
      ErrorCode::unsupported,
      "a KV pool of {} bytes that outlives the keeper lies in the store's directory, and {} is not on "
      "a tmpfs of that size: set ONECOPY_STORE_DIR to a directory in /dev/shm, or enlarge that",
      bytes, directory);
}

/// Returns 0 or errno. Sends no signal for more bytes than RLIMIT_FSIZE allows.
int set_size(const Fd& file, std::uint64_t bytes, bool is_sparse) noexcept {
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && bytes > limit.rlim_cur) return EFBIG;
  const auto size = static_cast<off_t>(bytes);
  const bool is_done =
      is_sparse ? ::ftruncate(file.get(), size) == 0 : ::fallocate(file.get(), 0, 0, size) == 0;
  return is_done ? 0 : errno;
}

/// Makes a file in the place of an old one, whose memory stays with its users.
Fd make_file(const std::string& path, std::uint64_t bytes, bool is_sparse) {
  ::unlink(path.c_str());
  Fd file = open_file(path, O_RDWR | O_CREAT | O_EXCL);
  if (const int error = set_size(file, bytes, is_sparse); error != 0)
    throw_errno(fmt::format("cannot allocate {} bytes of {}", bytes, path), error,
                ErrorCode::out_of_memory);
  return file;
}

}  // namespace

bool can_populate() noexcept { return ::madvise(nullptr, 0, PageTableFiller::kAbsent) == 0; }

bool KvPoolFiles::exist(const std::string& directory, const std::string& name) {
  return ::access((kv_pool_path(directory, name) + ".control").c_str(), F_OK) == 0;
}

std::optional<KvPoolFiles> KvPoolFiles::find(const std::string& directory, const std::string& name) {
  if (!exist(directory, name)) return {};
  const std::string path = kv_pool_path(directory, name);
  try {
    KvPoolFiles files{open_file(path + ".memory", O_RDWR), open_file(path + ".control", O_RDWR)};
    const KvGeometry geometry = KvPoolBlocks::geometry_of(files.control);
    if (file_size(files.memory) >= geometry.extents * geometry.extent_bytes) return files;
    throw Error(ErrorCode::bad_file, "the memory is too small");
  } catch (const Error& error) {
    throw_error(
        ErrorCode::bad_file,
        "the KV pool \"{}\" cannot be used: {} ({}.*); delete it (`onecopy store rm {}`), or use the "
        "onecopy that made it",
        name, error.what(), path, name);
  }
}

/// Allocates the control memory at once, so that a full tmpfs is an error here and no SIGBUS later. Extents are populated
/// when blocks are needed.
KvPoolFiles KvPoolFiles::make(const std::string& directory, const std::string& name,
                              const KvGeometry& geometry, std::uint64_t bytes) {
  check_directory(directory, bytes);
  const std::string path = kv_pool_path(directory, name), fresh = path + ".new";
  KvPoolFiles files{make_file(path + ".memory", bytes, can_populate()),
                    make_file(fresh, KvMemory::bytes_for(geometry), false)};
  KvPoolBlocks::format(files.control, geometry);
  rename_over(fresh, path + ".control");
  return files;
}

std::map<std::string, std::uint64_t> KvPoolFiles::all(const std::string& directory) {
  std::map<std::string, std::uint64_t> found;
  std::error_code error;
  for (std::filesystem::directory_iterator at(directory, error), end; !error && at != end;
       at.increment(error)) {
    const std::filesystem::path path = at->path();
    const bool is_part = path.extension() == ".memory" || path.extension() == ".control";
    struct stat info {};
    if (is_part && path.stem().string().starts_with("kv_pool-") && ::stat(path.c_str(), &info) == 0)
      found[path.parent_path() / path.stem()] += static_cast<std::uint64_t>(info.st_blocks) * 512;
  }
  return found;
}

void KvPoolFiles::remove(const std::string& directory, const std::string& name) {
  if (!exist(directory, name)) return;
  const std::string path = kv_pool_path(directory, name);
  const KvPoolLock lock(directory, name, Deadline::after(kKeeperPatience));
  for (const char* const end : {".control", ".memory"}) ::unlink((path + end).c_str());
}

}  // namespace onecopy::store
