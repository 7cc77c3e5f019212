// SPDX-License-Identifier: Apache-2.0
#include "support/peer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>

#include "onecopy/core/error.h"
#include "os/memfd.h"

extern char** environ;

namespace onecopy::bench {
namespace {

// The descriptors of a peer's ends.
constexpr int kTalk = 3;
constexpr int kArena = 4;
constexpr int kFrom = 5;
constexpr int kTo = 6;
constexpr int kSocket = 7;

constexpr int kPatienceMs = 120'000;

std::pair<Fd, Fd> socket_pair() {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0)
    throw_errno("socketpair", errno);
  return {Fd(ends[0]), Fd(ends[1])};
}

std::pair<Fd, Fd> pipe_pair() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) throw_errno("pipe", errno);
  return {Fd(ends[0]), Fd(ends[1])};
}

/// Moves a descriptor above these numbers, so that no dup2 overwrites what a later dup2 copies.
int moved_up(const Fd& fd) {
  const int copy = ::fcntl(fd.get(), F_DUPFD_CLOEXEC, 32);
  if (copy < 0) throw_errno("fcntl(F_DUPFD_CLOEXEC)", errno);
  return copy;
}

}  // namespace

void Talk::say(std::string_view text) {
  if (::send(socket_.get(), text.data(), text.size(), MSG_NOSIGNAL) < 0)
    throw_errno("send to the other process", errno);
}

bool Talk::try_hear(std::string& text) {
  text.resize(64 * 1024);
  const ssize_t size = ::recv(socket_.get(), text.data(), text.size(), 0);
  text.resize(size > 0 ? static_cast<std::size_t>(size) : 0);
  return size > 0;
}

std::string Talk::hear() {
  pollfd wait{socket_.get(), POLLIN, 0};
  if (::poll(&wait, 1, kPatienceMs) == 0)
    throw Error(ErrorCode::timeout, "the other process of the benchmark says nothing");
  std::string text;
  if (!try_hear(text)) throw Error(ErrorCode::peer_died, "the other process of the benchmark ended");
  if (text.rfind("error: ", 0) == 0)
    throw Error(ErrorCode::protocol, "in the other process: " + text.substr(7));
  return text;
}

double Talk::hear_number() { return std::strtod(hear().c_str(), nullptr); }

Peer::Peer(const std::string& role, const std::string& program) : talk_(Fd()) {
  Fd arena = create_memfd("bench-arena", kArenaBytes);
  raw_.arena = Mapping::of(arena, kArenaBytes, Access::read_write);
  auto [talk_here, talk_there] = socket_pair();
  auto [socket_here, socket_there] = socket_pair();
  auto [down_read, down_write] = pipe_pair();
  auto [up_read, up_write] = pipe_pair();
  spawn(program, role,
        {moved_up(talk_there), moved_up(arena), moved_up(down_read), moved_up(up_write),
         moved_up(socket_there)});
  raw_.from = std::move(up_read);
  raw_.to = std::move(down_write);
  raw_.socket = std::move(socket_here);
  talk_ = Talk(std::move(talk_here));
}

void Peer::spawn(const std::string& program, const std::string& role, const std::vector<int>& fds) {
  const char* path = program.empty() ? "/proc/self/exe" : program.c_str();
  std::array<char*, 4> argv{const_cast<char*>("onecopy_bench"), const_cast<char*>("peer"),
                            const_cast<char*>(role.c_str()), nullptr};
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  int number = kTalk;
  for (const int fd : fds) ::posix_spawn_file_actions_adddup2(&actions, fd, number++);
  const int error = ::posix_spawn(&pid_, path, &actions, nullptr, argv.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  for (const int fd : fds) ::close(fd);
  if (error != 0) throw_errno(fmt::format("cannot start {}", path), error);
}

Peer::~Peer() {
  talk_ = Talk(Fd());
  raw_ = RawLink();  // closes its ends, so that a peer that waits on one of them ends
  int status = 0;
  for (int ms = 0; ms < 1000; ++ms) {
    if (::waitpid(pid_, &status, WNOHANG) != 0) return;
    ::usleep(1000);
  }
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, &status, 0);
}

Parent::Parent() : talk(Fd(kTalk)) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (int fd = kTalk; fd <= kSocket; ++fd) ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  raw.arena = Mapping::of(Fd(kArena), kArenaBytes, Access::read_write);
  raw.from = Fd(kFrom);
  raw.to = Fd(kTo);
  raw.socket = Fd(kSocket);
}

}  // namespace onecopy::bench
