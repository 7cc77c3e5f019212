// SPDX-License-Identifier: Apache-2.0
#include "store/keeper/partner.h"

#include <sys/wait.h>
#include <unistd.h>
#include <csignal>

#include <algorithm>
#include <cerrno>

#include "onecopy/core/bytes.h"
#include "onecopy/core/error.h"
#include "os/log.h"
#include "os/process.h"

namespace onecopy::store {
namespace {

constexpr std::chrono::seconds kPatience{1};

struct NoteHead {
  Partner::Kind kind;
  std::uint64_t id;
};

}  // namespace

Partner Partner::fork() {
  auto [ours, theirs] = UnixSocket::pair();
  const int self = ::getpid();
  Fd own_pidfd = open_pidfd(self);
  const int child = ::fork();
  if (child < 0) throw_errno("cannot start the other half of the store's keeper", errno);
  if (child == 0) return {std::move(theirs), std::move(own_pidfd), self, true};
  return {std::move(ours), open_pidfd(child), child, false};
}

bool Partner::has_ended() const noexcept { return has_exited(pidfd_); }

void Partner::reap() const noexcept {
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

void Partner::send(Kind kind, std::uint64_t id, std::span<const int> fds) {
  Bytes bytes(sizeof(NoteHead));
  write_value(bytes.data(), NoteHead{kind, id});
  try {
    do {  // the guard joins the descriptors of one version again
      const auto some = fds.first(std::min(fds.size(), UnixSocket::kMaxPacketFds));
      socket_.send(bytes, some, kPatience);
      fds = fds.subspan(some.size());
    } while (!fds.empty());
  } catch (const Error& error) {
    if (error.code() == ErrorCode::peer_died) return;
    if (error.code() != ErrorCode::timeout) throw;
    log_warning("the guard of the store (pid {}) is stopped; another one takes its place", pid_);
    ::kill(pid_, SIGKILL);
  }
}

std::optional<Partner::Note> Partner::receive() {
  try {
    auto packet = socket_.try_receive();
    if (!packet || packet->bytes.size() != sizeof(NoteHead)) return std::nullopt;
    const NoteHead head = load<NoteHead>(packet->bytes.data());
    return Note{head.kind, head.id, std::move(packet->fds)};
  } catch (const Error& error) {
    if (error.code() == ErrorCode::peer_died) return std::nullopt;
    throw;
  }
}

}  // namespace onecopy::store
