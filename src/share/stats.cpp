// SPDX-License-Identifier: Apache-2.0
#include "onecopy/share/stats.h"

#include <fmt/format.h>
#include <unistd.h>

#include <optional>

#include "onecopy/core/error.h"
#include "onecopy/os/log.h"
#include "share/info_text.h"
#include "share/process.h"
#include "share/process_name.h"

namespace onecopy {
namespace {

constexpr std::chrono::milliseconds kPatience{2'000};

Packet answer_of(UnixSocket& socket, int pid) {
  try {
    return socket.receive(kPatience);
  } catch (const Error& e) {
    if (e.code() != ErrorCode::timeout) throw;
    throw Error(
        e.code(),
        fmt::format("process {} did not answer within {} s; it may be stopped (SIGSTOP, a debugger)", pid,
                    kPatience.count() / 1000));
  }
}

std::optional<OwnerInfo> ask(const std::string& name) {
  UnixSocket socket = UnixSocket::connect(socket_name(name), kPatience);
  const PeerCredentials peer = socket.peer();
  if (peer.uid != geteuid()) return {};
  socket.send(wire::pack(wire::Type::want_info, wire::WantInfo{}), {}, kPatience);
  const Packet packet = answer_of(socket, peer.pid);
  wire::expect(packet.bytes, wire::Type::info);
  const ByteSpan text = ByteSpan(packet.bytes).subspan(sizeof(wire::Head));
  return owner_from_json({reinterpret_cast<const char*>(text.data()), text.size()});
}

}  // namespace

Stats stats() { return Process::current().stats(); }

void collect() {
  if (Process* process = Process::existing()) process->collect();
}

OwnerInfo this_owner() { return Process::current().describe(); }

std::vector<OwnerInfo> list_owners() {
  std::vector<OwnerInfo> owners;
  for (const std::string& name : listening_names()) {
    try {
      if (auto owner = ask(name)) owners.push_back(std::move(*owner));
    } catch (const Error& e) {
      if (e.code() != ErrorCode::peer_died)  // it ended while we looked
        log_warning(fmt::format("not listed, {}...: {}", name.substr(0, 8), e.what()));
    }
  }
  return owners;
}

}  // namespace onecopy
