// SPDX-License-Identifier: Apache-2.0
#include "ferry_process.h"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "interrupts.h"
#include "onecopy/core/error.h"
#include "os/host_address.h"
#include "store/ferry/host_key.h"
#include "store/ferry/messages.h"
#include "store/ferry/source.h"
#include "store/group/host.h"
#include "text.h"
#include "transport/tls/tls_listener.h"

namespace onecopy::cli {
namespace {

void be_member(const store::group::Config& config, bool joins) noexcept {
  try {
    store::group::Host(config, {.autostart = false}, joins).run([] { return false; });
  } catch (const std::exception& error) {
    fmt::print(stderr, "onecopy: this host is no member of its group: {}\n", error.what());
    ::sleep(1);  // this process is started again
    std::_Exit(1);
  }
}

int serve(StreamSocket socket, const Bytes& key, std::uint64_t rate,
          const std::optional<store::group::Config>& group, bool joins) noexcept {
  try {
    sigset_t none;
    ::sigemptyset(&none);
    ::sigprocmask(SIG_SETMASK, &none, nullptr);  // signals end this process, which has nothing to clean up
    std::jthread member;
    if (group) member = std::jthread([&] { be_member(*group, joins); });
    store::ferry::serve_hosts(std::move(socket), key, rate, [] { return ::pause() == 0; });
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "onecopy: other hosts are not served: {}\n", error.what());
    ::sleep(1);  // this process is started again
    return 1;
  }
}

}  // namespace

FerryProcess::FerryProcess(const std::string& listen, std::uint64_t rate, const GroupOptions& group)
    : key_(store::ferry::store_keys().front()),
      socket_(transport::TlsListener::listen(HostAddress(listen).resolve().front())),
      rate_(rate) {
  const transport::TlsContext check(key_, store::ferry::kStoreProtocol);  // throws without OpenSSL
  const std::string at = socket_.address().substr(socket_.address().find(':') + 1);
  group_ = group_config(group, at);
  start();
  fmt::print("Other hosts pull from {}.\n", at);
  flush_output();
}

void FerryProcess::start() {
  const pid_t parent = ::getpid();
  pid_ = ::fork();
  if (pid_ < 0) throw_errno("cannot start a process for other hosts", errno);
  if (pid_ != 0) {
    joins_ = false;
    return;
  }
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (::getppid() != parent) std::_Exit(1);
  std::_Exit(serve(std::move(socket_), key_, rate_, group_, joins_));
}

FerryProcess::~FerryProcess() {
  if (pid_ == 0) return;
  ::kill(pid_, SIGTERM);
  ::waitpid(pid_, nullptr, 0);
}

void FerryProcess::leave() noexcept {
  pid_ = 0;
  socket_ = {};
  std::ranges::fill(key_, std::byte{});
}

void FerryProcess::wait() {
  constexpr std::chrono::milliseconds kLook{200};
  Interrupts interrupts;
  while (!interrupts.wait_for(kLook))
    if (::waitpid(pid_, nullptr, WNOHANG) == pid_) start();
}

}  // namespace onecopy::cli
