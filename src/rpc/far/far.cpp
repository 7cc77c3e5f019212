// SPDX-License-Identifier: Apache-2.0
#include "rpc/far/far.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "core/point.h"
#include "onecopy/core/error.h"
#include "os/blocked_signals.h"
#include "os/event_loop.h"
#include "os/log.h"
#include "os/process.h"

namespace onecopy::rpc {
namespace {

using namespace std::chrono_literals;

/// A living process answers sooner.
constexpr std::chrono::seconds kConnectPatience{10};

std::string environment(const char* name) {
  const char* const text = std::getenv(name);
  return text ? text : "";
}

/// Without ONECOPY_RPC_LISTEN: where others reach a process that has a key, and on loopback one that is told to.
std::string usual_listen(bool has_key, bool is_forced) {
  if (!has_key && !is_forced) return "";
  const auto host = has_key ? first_host_address() : std::nullopt;
  return HostPort{host.value_or(0x7f00'0001), 0}.str();
}

}  // namespace

FarOptions FarOptions::of_environment() {
  FarOptions options;
  const std::string key = environment("ONECOPY_RPC_KEY"), link = environment("ONECOPY_RPC_LINK");
  const auto bytes = std::as_bytes(std::span(key));
  options.key.assign(bytes.begin(), bytes.end());
  if (!link.empty() && link != "auto" && link != "tcp")
    throw Error(ErrorCode::invalid_argument,
                fmt::format("ONECOPY_RPC_LINK must be auto or tcp, not \"{}\"", link));
  options.is_forced = link == "tcp";
  options.listen = environment("ONECOPY_RPC_LISTEN");
  if (options.listen.empty()) options.listen = usual_listen(!key.empty(), options.is_forced);
  return options;
}

Far::Far(FarOptions options, EventLoop& loop, std::function<Address()> own, Opened opened)
    : options_(std::move(options)),
      loop_(loop),
      own_(std::move(own)),
      opened_(std::move(opened)),
      pid_(current_pid()),
      wake_(std::make_shared<Event>()) {
  if (!options_.listen.empty()) listen();
}

void Far::listen() {
  const HostPort at = HostPort::parse(options_.listen);
  if (options_.key.empty() && !at.is_loopback())
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format(
            "without a key rpc listens on 127.0.0.1 alone, and not on {}: set ONECOPY_RPC_KEY to one "
            "secret of the group in all members",
            at.str()));
  if (options_.key.empty())
    log_warning(
        "rpc has no key, and listens on 127.0.0.1 alone, where any user of this host may call: set "
        "ONECOPY_RPC_KEY to one secret of the group in all members");
  listener_ = StreamSocket::listen(at);
  unshared_ = UnsharedDescriptor(listener_.fd());
  endpoint_ = listener_.address().substr(std::string_view("tcp:").size());
  {
    const LockGuard lock(starter_->mutex);
    starter_->far = this;
  }
  const auto start_thread = [starter = starter_] {
    const LockGuard lock(starter->mutex);
    if (starter->far) starter->far->start();
  };
  loop_.add(listener_.fd(), start_thread, true);
}

void Far::stop() noexcept {
  if (is_over_.exchange(true)) return;
  if (current_pid() != pid_) {
    if (thread_.joinable()) thread_.detach();
    return;
  }
  if (listener_) loop_.remove(listener_.fd());
  {
    const LockGuard lock(starter_->mutex);
    starter_->far = nullptr;
  }
  wake_->set();
  if (thread_.joinable()) thread_.join();
}

/// At the first client, or the first connection to another.
void Far::start() {
  const LockGuard lock(mutex_);
  if (std::exchange(has_thread_, true)) return;
  const BlockedSignals blocked;
  thread_ = std::thread([this] { run(); });
}

FarLinkRef Far::connect(const Address& to, Deadline deadline) {
  if (to.endpoint.empty())
    throw Error(
        ErrorCode::unsupported,
        fmt::format(
            "{} is on another host, and listens for no other hosts: set ONECOPY_RPC_KEY to one secret of "
            "the group in all members",
            to.name));
  const Deadline until = std::min(deadline, Deadline::after(kConnectPatience));
  auto [socket, keys, unshared] = prove_to(HostPort::parse(to.endpoint), options_.key, until);
  auto link = std::make_shared<FarLink>(std::move(socket), keys, FarLink::Side::client, wake_);
  link->put_hello(encode_hello(to, own_()));
  return link;
}

void Far::read(const FarLinkRef& link, Delivery delivery) {
  {
    const LockGuard lock(mutex_);
    if (has_ended_) return link->end();
    all_links_.push_back(link);
    new_links_.push_back({link, std::move(delivery)});
  }
  start();
  wake_->set();
}

void Far::flush() noexcept {
  const Deadline end = Deadline::after(1s);
  const auto have_arrived = [&] {
    const LockGuard lock(mutex_);
    return std::all_of(all_links_.begin(), all_links_.end(), [](const auto& known) {
      const FarLinkRef link = known.lock();
      return !link || link->is_closed() || link->has_arrived();
    });
  };
  while (!have_arrived() && !end.has_passed()) std::this_thread::sleep_for(1ms);
}

}  // namespace onecopy::rpc
