// SPDX-License-Identifier: Apache-2.0
#include "store/format/place.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>

#include "onecopy/core/error.h"
#include "os/file.h"
#include "os/random.h"

namespace onecopy::store {

Place Place::of_this_user() {
  if (const char* const own = std::getenv("ONECOPY_STORE_DIR"); own && *own) return Place(own);
  if (const char* const shared = std::getenv("ONECOPY_RUNTIME_DIR"); shared && *shared)
    return Place(fmt::format("{}/store", shared));
  return Place(fmt::format("/tmp/onecopy-store-{}", ::geteuid()));
}

void Place::ensure() const {
  if (const char* const shared = std::getenv("ONECOPY_RUNTIME_DIR");
      shared && directory_of(directory_) == shared)
    ensure_private_directory(shared);
  ensure_private_directory(directory_);
}

Fd Place::try_lock() const {
  const std::string path = directory_ + "/lock";
  Fd fd = open_file(path, O_RDWR | O_CREAT);
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) == 0) return fd;
  if (errno != EWOULDBLOCK) throw_errno(fmt::format("cannot lock {}", path), errno);
  return Fd();
}

Digest Place::secret() const {
  Digest secret{};
  read_exactly(open_file(secret_path(), O_RDONLY), std::as_writable_bytes(std::span(secret)), 0);
  return secret;
}

Digest Place::make_secret() const {
  try {
    return secret();
  } catch (const Error&) {  // there is no secret, or only a part of one
  }
  Digest secret{};
  random_bytes(std::as_writable_bytes(std::span(secret)));
  const std::string fresh = secret_path() + ".new";
  write_all(open_file(fresh, O_WRONLY | O_CREAT | O_TRUNC), std::as_bytes(std::span(secret)));
  if (std::rename(fresh.c_str(), secret_path().c_str()) != 0)
    throw_errno(fmt::format("cannot write {}", secret_path()), errno);
  return secret;
}

}  // namespace onecopy::store
