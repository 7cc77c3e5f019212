// SPDX-License-Identifier: Apache-2.0
#include "store/client/kv_pool_user.h"

#include <sys/stat.h>

#include <cerrno>

#include "onecopy/core/error.h"
#include "os/memfd.h"
#include "os/read_lock.h"

namespace onecopy::store {
namespace {

std::uint64_t byte_of(std::uint32_t number) noexcept { return (std::uint64_t{1} << 32) + number; }

std::uint64_t inode_of(const Fd& file) {
  struct stat status {};
  if (::fstat(file.get(), &status) != 0)
    throw_errno("cannot look at the control memory of a KV pool", errno);
  return status.st_ino;
}

}  // namespace

KvUser::KvUser(const Fd& control, std::uint32_t number)
    : ask_(reopen_read_only(control)),
      inode_(inode_of(ask_)),
      number_(number),
      mark_(control, byte_of(number)) {
  if (!may_be_read(ask_, byte_of(number)) || may_be_read(ask_, byte_of(0)))
    throw Error(
        ErrorCode::unsupported,
        "this system does not show locks of open files, by which the users of a KV pool see each other "
        "end (F_OFD_SETLK on a memfd)");
}

bool KvUser::lives(std::uint32_t number) const noexcept {
  return may_be_marked(ask_, inode_, byte_of(number));
}

}  // namespace onecopy::store
