// SPDX-License-Identifier: Apache-2.0
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <new>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "onecopy/core/error.h"
#include "os/cgroup_owner.h"
#include "os/fd.h"
#include "os/mapping.h"
#include "os/memfd.h"
#include "os/process.h"
#include "os/random.h"
#include "os/robust_mutex.h"
#include "os/unix_socket.h"
#include "probe.h"
#include "store/group/config.h"
#include "store/group/etcd.h"
#include "store_table.h"
#include "text.h"

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

namespace onecopy::cli {
namespace {

constexpr std::chrono::milliseconds kProbeTimeout{1000};

Finding probe_descriptor_passing() {
  const Fd memory = create_memfd("onecopy-doctor", 4096);
  const Mapping mine = Mapping::of(memory, 4096, Access::read_write);
  auto [left, right] = UnixSocket::pair();
  const std::array fds{memory.get()};
  left.send(Bytes(1), fds, kProbeTimeout);
  const Packet packet = right.receive(kProbeTimeout);
  if (packet.fds.size() != 1) return missing("the descriptor did not arrive", "");
  const Mapping theirs = Mapping::of(packet.fds.front(), 4096, Access::read_write);
  *theirs.as<int>() = 42;
  if (*mine.as<int>() != 42) return missing("the descriptor that arrived is another file", "");
  return works("memory sent through a socket (SCM_RIGHTS) and written by the receiver");
}

/// Tries pidfd_open. A socket names only its peer; owners of memory that others pass on, and forked children, are
/// watched by their pids.
Finding probe_pidfd() {
  const Fd watched(static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0)));
  if (!watched)
    return missing(
        fmt::format("pidfd_open: {}", std::strerror(errno)),
        "Ends of other processes cannot be seen: device memory that a process put into a queue of "
        "another one ends with it, and what a forked child borrows stays reserved. Needs Linux 5.3, and a "
        "sandbox (seccomp profile) that allows the call.");
  std::array<int, 2> pair{};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair.data()) != 0)
    throw_errno("socketpair", errno);
  const Fd left(pair[0]);
  const Fd right(pair[1]);
  int raw = -1;
  socklen_t size = sizeof raw;
  if (::getsockopt(left.get(), SOL_SOCKET, SO_PEERPIDFD, &raw, &size) == 0) {
    const Fd pidfd(raw);
    pollfd poller{pidfd.get(), POLLIN, 0};
    if (::poll(&poller, 1, 0) == 0) return works("a socket names its peer for certain (SO_PEERPIDFD)");
    return missing("SO_PEERPIDFD names a process that has exited", "");
  }
  return works("pidfd_open; SO_PEERPIDFD needs Linux 6.5, start times are compared instead");
}

Finding probe_robust_mutex() {
  const Fd memory = create_memfd("onecopy-doctor", 4096);
  const Mapping mapping = Mapping::of(memory, 4096, Access::read_write);
  auto* mutex = new (mapping.data()) RobustMutex;
  mutex->init();
  std::thread([mutex] { mutex->lock(); }).join();
  if (!mutex->try_lock())
    return missing("stays locked after the death of its holder", "Queues would hang.");
  mutex->unlock();
  return works("unlocked by the kernel after the death of its holder");
}

Finding probe_abstract_socket() {
  std::array<std::byte, 8> noise{};
  random_bytes(noise);
  const SocketName name{fmt::format("onecopy-doctor-{:016x}", load<std::uint64_t>(noise.data())), true};
  UnixSocket listener = UnixSocket::listen(name);
  UnixSocket client = UnixSocket::connect(name, kProbeTimeout);
  const auto accepted = listener.try_accept();
  if (!accepted) return missing("connected, but no connection was accepted", "");
  if (accepted->peer().pid != current_pid())
    return missing(
        fmt::format("the peer's pid reads {} instead of {}", accepted->peer().pid, current_pid()),
        "The peer is in another PID namespace.");
  return works("connected through an abstract name; the peer's pid and user are known");
}

Finding probe_runtime_directory() {
  const char* directory = std::getenv("ONECOPY_RUNTIME_DIR");
  if (directory == nullptr || *directory == '\0')
    return works("ONECOPY_RUNTIME_DIR is not set: abstract names, one network namespace");
  if (*directory != '/')
    return missing(fmt::format("{} is a relative path: another directory wherever a process is", directory),
                   "Set ONECOPY_RUNTIME_DIR to an absolute path.");
  struct stat info {};
  if (::stat(directory, &info) != 0)
    return missing(fmt::format("{}: {}", directory, std::strerror(errno)),
                   "Create it with mode 0700, or unset ONECOPY_RUNTIME_DIR.");
  if ((info.st_mode & 077) != 0 || info.st_uid != ::getuid())
    return missing(fmt::format("{} can be entered by others (mode {:o})", directory, info.st_mode & 0777),
                   fmt::format("`chmod 0700 {}`, and own it.", directory));
  const std::string path = fmt::format("{}/doctor-{}", directory, current_pid());
  const SocketName name{path, false};
  const UnixSocket listener = UnixSocket::listen(name);
  const UnixSocket client = UnixSocket::connect(name, kProbeTimeout);
  ::unlink(path.c_str());
  return works(fmt::format("{}: connected through a path in it", directory));
}

std::optional<store::group::Config> group_of(const StoreState& state) {
  return state.keeper ? store::group::Config::find(state.home) : std::nullopt;
}

/// Returns the first KV pool with outlives_keeper whose files were removed.
std::optional<std::string> kv_pool_without_files(const StoreState& state) {
  for (const auto& [name, namespaces] : state.kv_pools)
    if (!namespaces.empty() && namespaces.front().files_removed != 0) return name;
  return {};
}

Finding probe_store() {
  const StoreState state = poll_store();
  if (!state.problem.empty()) return missing(state.problem, "");
  const std::string end = state.keeper ? state.ends_with : what_ends(current_pid());
  const auto group = group_of(state);
  const std::string of_group =
      group ? fmt::format(", as host {} of the group {}", group->host, group->group) : "";
  const std::string detail = state.keeper ? fmt::format("a keeper listens in {}{}", state.home, of_group)
                                          : "no keeper; programs start one";
  if (group && !group->problem.empty()) return slower(detail, group->problem);
  if (const auto pool = kv_pool_without_files(state))
    return slower(detail, fmt::format("The files of the KV pool \"{0}\" were removed, and it ends with the "
                                      "keeper. Stop the engines, and `onecopy store rm {0}`.",
                                      escaped(*pool)));
  if (end.empty()) return works(detail);
  return {Verdict::ok, detail,
          fmt::format("{} ends with {}. `onecopy store serve` as a service outlives it.",
                      state.keeper ? "The keeper" : "One that is started here", end)};
}

/// Looks at the etcd of this host's group. REQUIRES: there is a group.
Finding probe_etcd() {
  constexpr std::int64_t kMany = 1'000'000;
  try {
    store::group::Etcd etcd(group_of(poll_store())->etcd);
    const std::vector<std::string> alarms = etcd.alarms();
    const auto changes = etcd.uncompacted();
    const std::string detail =
        fmt::format("it answers; {}", changes ? fmt::format("it keeps all its {} changes", *changes)
                                              : "it drops old changes");
    if (!alarms.empty())
      return slower(fmt::format("{}; its alarms: {}", detail, fmt::join(alarms, ", ")),
                    "Nothing can be published. Give it space: `etcdctl compact`, `etcdctl defrag`, "
                    "`etcdctl alarm disarm`, or a larger --quota-backend-bytes.");
    if (changes && *changes > kMany)
      return slower(detail,
                    "Start it with --auto-compaction-retention=1h: it runs out of space otherwise.");
    return works(detail);
  } catch (const Error& error) {
    return slower(error.what(), "The versions here stay, and nothing is published until it answers.");
  }
}

}  // namespace

std::vector<Probe> process_probes() {
  std::vector<Probe> probes{{"passing descriptors", probe_descriptor_passing, true},
                            {"noticing deaths", probe_pidfd, true},
                            {"robust mutex", probe_robust_mutex, true},
                            {"abstract sockets", probe_abstract_socket},
                            {"runtime directory", probe_runtime_directory},
                            {"store", probe_store}};
  if (group_of(poll_store())) probes.push_back({"etcd", probe_etcd});
  return probes;
}

}  // namespace onecopy::cli
