// SPDX-License-Identifier: Apache-2.0
#include <poll.h>

#include "core/point.h"
#include "onecopy/core/error.h"
#include "os/deadline.h"
#include "os/log.h"
#include "store/keeper/keeper_server.h"

namespace onecopy::store {

/// Gives all versions to the keeper that asks. Answers no client until that keeper is ready, because otherwise two
/// keepers would answer for the same versions. If the other keeper ends or takes too long, this one continues.
void KeeperServer::replace(Connection& c) {
  constexpr auto kWait = Predecessor::kPatience;
  const auto send_all = [&](ByteSpan bytes, std::span<const int> fds) { c.socket.send(bytes, fds, kWait); };
  const std::vector<Record> records = rules_.records();
  std::vector<int> shared = state_.directories.descriptors();
  shared.push_back(state_.listener.fd());
  c.socket.send(pack(Handover{state_.keeper, guard_.pid(), state_.knows_all, records.size()}), shared,
                kWait);
  for (const Record& record : records) {
    const bool has_files = record.kind != Record::Kind::drop && is_here(record.id);
    send_in_packets(pack(Moved{record}),
                    has_files ? numbers_of(state_.versions.at(record.id)) : std::vector<int>(), send_all);
  }
  point("store.replace.sent");
  try {
    unpack<Ready>(c.socket.receive(kWait).bytes);
  } catch (const Error& error) {
    throw Error(ErrorCode::peer_died, std::string("the keeper did not take over: ") + error.what());
  }
  is_replaced_ = true;
}

/// Waits for both halves. After `ready` both end; otherwise neither ends, since the guard replaces a killed worker.
/// Each new worker of the successor calls await_end() again, because the last one may have been killed while it waited.
bool Predecessor::await_end() {
  try {
    if (socket) socket.send(pack(Ready{}), {}, kPatience);
  } catch (const Error& error) {
    log_info("the keeper that is replaced cannot be told: {}", error.what());
  }
  point("store.replace.ready");
  const Deadline deadline = Deadline::after(kPatience);
  for (const Fd& process : processes) {
    if (deadline.wait_for(process.get(), POLLIN)) continue;
    log_error("the store's keeper goes on, and is not replaced");
    return false;
  }
  socket = UnixSocket();
  processes.clear();
  return true;
}

}  // namespace onecopy::store
