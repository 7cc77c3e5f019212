// SPDX-License-Identifier: Apache-2.0
#include "os/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>

#include "core/throw_error.h"

namespace onecopy {
namespace {

int open_retrying(const char* path, int flags, unsigned mode) noexcept {
  int fd;
  do {
    fd = ::open(path, flags | O_CLOEXEC, static_cast<mode_t>(mode));
  } while (fd < 0 && errno == EINTR);
  return fd;
}

}  // namespace

std::string directory_of(const std::string& path) {
  const auto slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

std::string directory_in(const char* variable) {
  const char* const set = std::getenv(variable);
  std::string path = set ? set : "";
  if (!path.empty() && path.front() != '/')
    throw_error(ErrorCode::invalid_argument,
                "{} is \"{}\", which names another directory wherever a process is; "
                "set it to an absolute path",
                variable, path);
  return path;
}

Fd open_file(const std::string& path, int flags, unsigned mode) {
  const int fd = open_retrying(path.c_str(), flags, mode);
  if (fd < 0) throw_errno(fmt::format("cannot open {}", path), errno);
  return Fd(fd);
}

void read_exactly(const Fd& fd, std::span<std::byte> bytes, std::uint64_t offset) {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t got =
        ::pread(fd.get(), bytes.data() + done, bytes.size() - done, static_cast<off_t>(offset + done));
    if (got > 0) {
      done += static_cast<std::size_t>(got);
    } else if (got == 0) {
      throw_error(ErrorCode::bad_file,
                  "the file ends at byte {}, but {} more bytes are expected; it was cut", offset + done,
                  bytes.size() - done);
    } else if (errno != EINTR) {
      throw_errno(fmt::format("cannot read {} bytes at {}", bytes.size(), offset), errno);
    }
  }
}

void write_all(const Fd& fd, ByteSpan bytes) {
  while (!bytes.empty()) {
    const ssize_t put = ::write(fd.get(), bytes.data(), bytes.size());
    if (put >= 0) bytes = bytes.subspan(static_cast<std::size_t>(put));
    else if (errno != EINTR)
      throw_errno(fmt::format("cannot write the last {} bytes", bytes.size()), errno);
  }
}

std::optional<std::string> try_read_text(const std::string& path) {
  const Fd fd(open_retrying(path.c_str(), O_RDONLY, 0));
  if (!fd) return std::nullopt;
  std::string text;
  std::array<char, 4096> chunk;
  for (;;) {
    const ssize_t got = ::read(fd.get(), chunk.data(), chunk.size());
    if (got > 0) text.append(chunk.data(), static_cast<std::size_t>(got));
    else if (got == 0) return text;
    else if (errno != EINTR) return std::nullopt;
  }
}

void ensure_private_directory(const std::string& path) {
  if (::mkdir(path.c_str(), 0700) == 0) return;
  if (errno != EEXIST) throw_errno(fmt::format("cannot create the directory {}", path), errno);
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0)
    throw_errno(fmt::format("cannot read the status of {}", path), errno);
  if (!S_ISDIR(status.st_mode) || status.st_uid != ::geteuid() || (status.st_mode & 077) != 0)
    throw_error(ErrorCode::other_user,
                "{} must be a directory (not a link) of user {} that no other user may enter, but it has "
                "owner {} and mode {:o}; `chmod 700` it or choose another directory",
                path, ::geteuid(), status.st_uid, status.st_mode);
}

}  // namespace onecopy
