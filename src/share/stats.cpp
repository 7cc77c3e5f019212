// SPDX-License-Identifier: Apache-2.0
#include "onecopy/share/stats.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <span>
#include <utility>

#include "onecopy/core/error.h"
#include "onecopy/os/log.h"
#include "share/info_text.h"
#include "share/process.h"
#include "share/process_name.h"

namespace onecopy {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kPatience{2'000};

std::chrono::milliseconds left_until(Clock::time_point deadline) {
  return std::max(std::chrono::milliseconds(0),
                  std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()));
}

/// An owner with a question on its way.
struct Asked {
  std::string name;
  UnixSocket socket;
  int pid = 0;
};

void add_silent(OwnerList& list, const std::string& name, int pid, const Error& error) {
  if (error.code() == ErrorCode::peer_died) return;  // it ended while we looked
  if (error.code() != ErrorCode::timeout || pid == 0)
    return list.silent.push_back({pid, name, error.what()});
  list.silent.push_back(
      {pid, name,
       fmt::format("process {} did not answer within {} s; it may be stopped (SIGSTOP, a debugger)", pid,
                   kPatience.count() / 1000)});
}

/// Nothing when it is another user's.
std::optional<Asked> ask(const std::string& name, Clock::time_point deadline) {
  UnixSocket socket = UnixSocket::connect(socket_name(name), left_until(deadline));
  const PeerCredentials peer = socket.peer();
  if (peer.uid != geteuid()) return {};
  socket.send(wire::pack(wire::Type::want_info, wire::WantInfo{}), {}, left_until(deadline));
  return Asked{name, std::move(socket), peer.pid};
}

std::vector<Asked> ask_all(std::span<const std::string> names, Clock::time_point deadline,
                           OwnerList& list) {
  std::vector<Asked> asked;
  for (const std::string& name : names) {
    try {
      if (auto owner = ask(name, deadline)) asked.push_back(std::move(*owner));
    } catch (const Error& e) {
      add_silent(list, name, 0, e);
    }
  }
  return asked;
}

OwnerInfo answer_of(Asked& owner, Clock::time_point deadline) {
  const Packet packet = owner.socket.receive(left_until(deadline));
  wire::expect(packet.bytes, wire::Type::info);
  const ByteSpan text = ByteSpan(packet.bytes).subspan(sizeof(wire::Head));
  return owner_from_json({reinterpret_cast<const char*>(text.data()), text.size()});
}

void hear_all(std::vector<Asked> asked, Clock::time_point deadline, OwnerList& list) {
  for (Asked& owner : asked) {
    try {
      list.owners.push_back(answer_of(owner, deadline));
    } catch (const Error& e) {
      add_silent(list, owner.name, owner.pid, e);
    }
  }
}

}  // namespace

Stats stats() { return Process::current().stats(); }

void collect() {
  if (Process* process = Process::existing()) process->collect();
}

OwnerInfo this_owner() { return Process::current().describe(); }

OwnerList ask_owners() {
  constexpr std::size_t kAtOnce = 64;  // a descriptor each
  const std::vector<std::string> names = listening_names();
  OwnerList list;
  for (std::span<const std::string> left(names); !left.empty();
       left = left.subspan(std::min(kAtOnce, left.size()))) {
    const auto deadline = Clock::now() + kPatience;
    hear_all(ask_all(left.first(std::min(kAtOnce, left.size())), deadline, list), deadline, list);
  }
  return list;
}

std::vector<OwnerInfo> list_owners() {
  OwnerList list = ask_owners();
  for (const SilentOwner& owner : list.silent)
    log_warning(fmt::format("not listed, {}...: {}", owner.socket.substr(0, 8), owner.why));
  return std::move(list.owners);
}

}  // namespace onecopy
