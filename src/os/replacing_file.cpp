// SPDX-License-Identifier: Apache-2.0
#include "os/replacing_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <utility>

#include "onecopy/core/error.h"
#include "os/file.h"
#include "os/random.h"

namespace onecopy {
namespace {

void write_to_disk(const Fd& fd, const std::string& path) {
  if (::fsync(fd.get()) != 0) throw_errno("cannot write " + path, errno);
}

}  // namespace

ReplacingFile::ReplacingFile(std::string path, unsigned mode)
    : path_(std::move(path)),
      temporary_(fmt::format("{}.{:016x}.part", path_, random_value<std::uint64_t>())),
      fd_(open_file(temporary_, O_WRONLY | O_CREAT | O_EXCL, mode)) {}

ReplacingFile::~ReplacingFile() {
  if (!done_) ::unlink(temporary_.c_str());
}

void ReplacingFile::finish(bool on_disk) {
  if (on_disk) write_to_disk(fd_, temporary_);
  rename_over(temporary_, path_);
  done_ = true;
  if (on_disk) write_to_disk(open_file(directory_of(path_), O_RDONLY | O_DIRECTORY), directory_of(path_));
}

void replace_file(const std::string& path, ByteSpan content, bool on_disk) {
  ReplacingFile file(path);
  write_all(file.fd(), content);
  file.finish(on_disk);
}

void rename_over(const std::string& fresh, const std::string& path) {
  if (::rename(fresh.c_str(), path.c_str()) == 0) return;
  const int error = errno;
  ::unlink(fresh.c_str());
  throw_errno("cannot replace " + path, error);
}

}  // namespace onecopy
