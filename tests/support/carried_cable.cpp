// SPDX-License-Identifier: Apache-2.0
#include "support/carried_cable.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace onecopy::testing {
namespace {

constexpr std::size_t kMaxPacketBytes = 64 << 10;

/// Makes an interface in the namespace of a process. Called by a thread that does nothing afterwards.
int open_end_in(int pid, const char* name) {
  const Fd network(::open(fmt::format("/proc/{}/ns/net", pid).c_str(), O_RDONLY | O_CLOEXEC));
  if (::setns(network.get(), CLONE_NEWNET) != 0) return -1;
  const int end = ::open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
  ifreq request{};
  request.ifr_flags = IFF_TAP | IFF_NO_PI;
  std::strncpy(request.ifr_name, name, IFNAMSIZ - 1);
  return ::ioctl(end, TUNSETIFF, &request) == 0 ? end : -1;
}

}  // namespace

CarriedCable::CarriedCable(const int (&pids)[2], const char* const (&names)[2]) {
  for (std::size_t i = 0; i < 2; ++i) {
    int end = -1;
    std::jthread([&] { end = open_end_in(pids[i], names[i]); }).join();
    if (end < 0) throw std::runtime_error("a network namespace got no interface of /dev/net/tun");
    ends_[i] = Fd(end);
  }
  thread_ = std::jthread([this] { carry(); });
}

CarriedCable::~CarriedCable() { is_over_ = true; }

void CarriedCable::disturb(std::chrono::milliseconds delay, double loss) noexcept {
  delay_ = delay;
  loss_ = loss;
}

void CarriedCable::plug(bool is_plugged) noexcept {
  const int value = is_plugged ? 1 : 0;
  for (const Fd& end : ends_) ::ioctl(end.get(), TUNSETCARRIER, &value);
}

void CarriedCable::carry() {
  while (!is_over_) {
    std::array<pollfd, 2> waited{{{ends_[0].get(), POLLIN, 0}, {ends_[1].get(), POLLIN, 0}}};
    ::poll(waited.data(), waited.size(), ms_until_next());
    for (const int end : {0, 1}) {
      if ((waited[static_cast<std::size_t>(end)].revents & POLLIN) != 0) take_from(end);
      deliver_to(1 - end);
    }
  }
}

int CarriedCable::ms_until_next() const {
  int ms = 20;  // how often the thread checks for the end
  for (const auto& packets : to_) {
    if (packets.empty()) continue;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(packets.front().due - Clock::now());
    ms = std::clamp(static_cast<int>(left.count()), 0, ms);
  }
  return ms;
}

void CarriedCable::take_from(int end) {
  constexpr int kMaxAtOnce = 64;
  std::vector<char> bytes(kMaxPacketBytes);
  for (int i = 0; i < kMaxAtOnce; ++i) {
    const ssize_t got = ::read(ends_[static_cast<std::size_t>(end)].get(), bytes.data(), bytes.size());
    if (got <= 0) return;
    if (std::uniform_real_distribution<>()(random_) < loss_) continue;
    to_[static_cast<std::size_t>(1 - end)].push_back(
        {Clock::now() + delay_.load(), {bytes.begin(), bytes.begin() + got}});
  }
}

/// Delivers the packets that are due. An interface that is down refuses a packet, which is lost.
void CarriedCable::deliver_to(int end) {
  auto& packets = to_[static_cast<std::size_t>(end)];
  for (; !packets.empty() && packets.front().due <= Clock::now(); packets.pop_front()) {
    const std::vector<char>& bytes = packets.front().bytes;
    if (::write(ends_[static_cast<std::size_t>(end)].get(), bytes.data(), bytes.size()) < 0) continue;
  }
}

}  // namespace onecopy::testing
