// SPDX-License-Identifier: Apache-2.0
#include "support/two_networks.h"

#include <fmt/format.h>
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cstdlib>
#include <stdexcept>

namespace onecopy::testing {
namespace {

constexpr const char* kCables[2] = {"ocpy0", "ocpy1"};

bool works(const std::string& command) { return std::system((command + " >/dev/null 2>&1").c_str()) == 0; }

void must(const std::string& command) {
  if (!works(command)) throw std::runtime_error("this failed: " + command);
}

}  // namespace

std::string TwoNetworks::obstacle() {
  if (::geteuid() != 0) return "wants to be root, who may make network namespaces";
  if (!works("command -v ip && command -v nsenter"))
    return "wants ip of iproute2 and nsenter of util-linux";
  if (!works("unshare -n ip link add ocpytry0 type veth peer name ocpytry1"))
    return "wants a kernel and a container that let it make network namespaces";
  if (::access("/dev/net/tun", R_OK | W_OK) != 0) return "wants /dev/net/tun for network namespaces";
  return "";
}

TwoNetworks::TwoNetworks(int first_pid, int second_pid, Cable cable) : pids_{first_pid, second_pid} {
  if (cable == Cable::carried) carried_ = std::make_unique<CarriedCable>(pids_, kCables);
  else
    must(fmt::format("nsenter -t {} -n ip link add {} type veth peer name {} netns {}", pids_[0],
                     kCables[0], kCables[1], pids_[1]));
  for (int i = 0; i < 2; ++i) {
    const std::string in = fmt::format("nsenter -t {} -n ", pids_[i]);
    must(in + fmt::format("ip addr add {}/24 dev {}", kAddresses[i], kCables[i]));
    must(in + "ip link set lo up");
    must(in + fmt::format("ip link set {} up", kCables[i]));
  }
  for (int i = 0; i < 2; ++i)
    must(fmt::format(
        "for i in $(seq 500); do nsenter -t {} -n ip -o link show dev {} | grep -q LOWER_UP && exit 0; "
        "sleep 0.01; done; exit 1",
        pids_[i], kCables[i]));
}

void TwoNetworks::cut() {
  if (carried_) carried_->plug(false);
  must(fmt::format("nsenter -t {} -n ip link set {} down", pids_[0], kCables[0]));
}

void TwoNetworks::mend() {
  if (carried_) carried_->plug(true);
  must(fmt::format("nsenter -t {} -n ip link set {} up", pids_[0], kCables[0]));
}

void TwoNetworks::make_unreachable() {
  must(fmt::format("nsenter -t {} -n ip route add unreachable {}", pids_[1], kAddresses[0]));
}

void TwoNetworks::make_reachable() {
  must(fmt::format("nsenter -t {} -n ip route del unreachable {}", pids_[1], kAddresses[0]));
}

void enter_network() {
  if (::unshare(CLONE_NEWNET | CLONE_NEWNS) != 0)
    throw std::runtime_error("this process got no network namespace");
  // UCX finds network cards in /sys.
  if (::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
      ::mount("sysfs", "/sys", "sysfs", 0, nullptr) != 0)
    throw std::runtime_error("this process got no /sys of its network namespace");
}

}  // namespace onecopy::testing
