// SPDX-License-Identifier: Apache-2.0
#include "store/keeper/keeper.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <climits>
#include <csignal>
#include <thread>
#include <tuple>

#include "core/point.h"
#include "core/throw_error.h"
#include "os/file.h"
#include "os/log.h"
#include "os/process.h"
#include "os/random.h"
#include "store/format/link.h"
#include "store/format/message.h"
#include "store/keeper/guard.h"
#include "store/keeper/index.h"
#include "store/keeper/keeper_server.h"
#include "store/keeper/partner.h"

namespace onecopy::store {
namespace {

constexpr std::chrono::seconds kEndOfTheLastOne{2};

/// Raises the limit of descriptors as far as possible, because each version needs some.
void raise_descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

/// Blocks the signals and returns a descriptor that tells of them. The worker ends the keeper in order; the guard
/// ignores the signals.
Fd block_signals() {
  sigset_t signals;
  ::sigemptyset(&signals);
  ::signal(SIGXFSZ, SIG_IGN);  // a limit of the size of files is an error of the index
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) ::sigaddset(&signals, signal);
  ::sigprocmask(SIG_BLOCK, &signals, nullptr);
  Fd fd(::signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd) throw_errno("cannot wait for signals", errno);
  return fd;
}

/// Returns whether a worker answers in a directory. A socket that listens proves nothing, because a killed keeper may not have ended
/// entirely.
bool is_answered_in(const StoreDirectory& directory) {
  constexpr std::chrono::milliseconds kPatience{500};
  try {
    UnixSocket socket = UnixSocket::connect(directory.socket(), kPatience);
    socket.send(peer::Greeting(kProtocol).hello(), {}, kPatience);
    socket.receive(kPatience);
    return true;
  } catch (const Error&) {
    return false;
  }
}

/// Takes the directories. Waits for a keeper that is ending. A keeper whose files were removed makes them again first.
KeeperDirectories take(const StoreDirectories& directories) {
  const Deadline until = Deadline::after(kEndOfTheLastOne);
  KeeperDirectories held(directories);
  while (!held.try_take()) {
    directories.ring(until);
    if (std::ranges::any_of(directories.all(), is_answered_in) || until.has_passed())
      throw_error(ErrorCode::unsupported,
                  "the store in {} has a keeper already: `onecopy store serve --replace` takes "
                  "over from it with all versions, and `onecopy store stop` ends it",
                  directories.all().front().path());
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return held;
}

KeeperState prepare(const StoreDirectories& directories, const Limits& limits) {
  KeeperState state;
  state.directories = take(directories);
  state.keeper = random_value<Token>();
  state.limits = limits;
  state.index_path = state.directories.index();
  FoundIndex found = open_index(state.index_path);
  state.index = std::move(found.log);
  state.knows_all = found.knows_all;
  state.trouble = std::move(found.trouble);
  state.signals = block_signals();
  std::tie(state.listener, state.secret) = state.directories.listen();
  return state;
}

/// Returns the limits. A limit that is not set is the limit of the present keeper.
Limits with_former(const StoreDirectories& directories, Limits limits, Deadline deadline) {
  if (const auto kept = ask_limits(directories, deadline)) limits.inherit(Limits::from(*kept));
  return limits;
}

/// Takes the state over from the present keeper. Throws peer_died if there is none.
KeeperState take_over(const StoreDirectories& directories, const Limits& limits) {
  const Deadline deadline = Deadline::after(Predecessor::kPatience);
  Limits kept = with_former(directories, limits, deadline);
  Link link = Link::connect(directories, deadline);
  Packet packet = link.request(pack(Replace{}), {}, deadline);
  const auto handover = unpack<Handover>(packet.bytes);
  if (packet.fds.empty()) throw Error(ErrorCode::protocol, "the store's keeper sent no listener");
  KeeperState state;
  state.listener = UnixSocket(std::move(packet.fds.back()));
  packet.fds.pop_back();
  state.directories = KeeperDirectories(directories, link.home(), std::move(packet.fds));
  state.secret = state.directories.home().secret();
  state.keeper = handover.keeper;
  state.knows_all = handover.knows_all;
  state.limits = std::move(kept);
  state.index_path = state.directories.index();
  // The worker puts it in the place of the old keeper's when that has ended.
  state.index = make_nameless_log(state.index_path);
  state.predecessor.processes.push_back(link.worker());
  state.predecessor.processes.push_back(open_pidfd(handover.guard));
  for (std::uint64_t i = 0; i < handover.records; ++i) {
    Packet moved = link.receive(deadline);
    const Record record = unpack<Moved>(moved.bytes).record;
    state.index.append(record);
    if (!moved.fds.empty()) state.versions[record.id] = std::move(moved.fds);
  }
  point("store.replace.received");
  state.predecessor.socket = link.release();
  state.signals = block_signals();
  return state;
}

KeeperState prepare(const StoreDirectories& directories, const ServeOptions& options) {
  if (options.replace) {
    try {
      return take_over(directories, options.limits);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::peer_died) throw;
    }
  }
  return prepare(directories, options.limits);
}

/// Leaves the session, the terminal and the directory of the program that started this process. Logs to a new file, or to
/// no file if that cannot be made.
void detach(const std::string& log) {
  ::setsid();
  ::dup2(open_file("/dev/null", O_RDWR).get(), STDIN_FILENO);
  for (const int fd : {STDOUT_FILENO, STDERR_FILENO}) ::dup2(STDIN_FILENO, fd);
  try {
    const Fd file = open_file(log, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND);
    for (const int fd : {STDOUT_FILENO, STDERR_FILENO}) ::dup2(file.get(), fd);
  } catch (const Error&) {  // the disk is full
  }
  if (::chdir("/") != 0) log_warning("the store's keeper cannot leave its directory");
}

/// Runs this process as a half of the keeper. A process that was forked to replace the other half then runs as that
/// half.
void run(KeeperState& state) {
  if (!state.trouble.empty()) log_error("{}", state.trouble);
  Partner partner = Partner::fork();
  Next next = partner.is_child() ? Next::be_guard : Next::be_worker;
  while (next == Next::be_worker || next == Next::be_guard) {
    const bool was_worker = next == Next::be_worker;
    if (next == Next::be_guard) next = run_guard(state, partner);
    else next = KeeperServer(state, partner).run();
    if (next == Next::end && was_worker) state.directories.leave();
  }
}

}  // namespace

void serve(const StoreDirectories& directories, const ServeOptions& options) {
  if (options.in_background) ::syscall(SYS_close_range, 3U, UINT_MAX, 0);
  raise_descriptor_limit();
  KeeperState state = prepare(directories, options);
  if (options.in_background) {
    const int child = ::fork();
    if (child < 0) throw_errno("cannot start the store's keeper", errno);
    if (child > 0) return;
    detach(state.directories.home().log());
  }
  run(state);
  if (options.in_background) ::_exit(0);
}

}  // namespace onecopy::store
