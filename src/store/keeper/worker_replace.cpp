// SPDX-License-Identifier: Apache-2.0
#include "core/point.h"
#include "onecopy/core/error.h"
#include "os/log.h"
#include "store/keeper/version_files.h"
#include "store/keeper/worker.h"

namespace onecopy::store {

/// Gives everything to the keeper that asks, and answers no client until that keeper is ready: two processes would answer
/// for one index otherwise. If that keeper ends or takes too long, the asked keeper goes on.
void Worker::replace(Connection& c) {
  constexpr auto kWait = Predecessor::kPatience;
  const auto send_all = [&](ByteSpan bytes, std::span<const int> fds) { c.socket.send(bytes, fds, kWait); };
  const std::vector<Record> records = catalog_.records();
  const int shared[] = {holdings_.lock.get(), holdings_.listener.fd()};
  c.socket.send(pack(Handover{holdings_.keeper, guard_.pid(), records.size()}), shared, kWait);
  for (const Record& record : records) {
    const bool has_files = record.kind == Record::Kind::publish;
    send_in_packets(pack(Moved{record}),
                    has_files ? numbers_of(holdings_.versions.at(record.id)) : std::vector<int>(),
                    send_all);
  }
  point("store.replace.sent");
  try {
    unpack<Ready>(c.socket.receive(kWait).bytes);
  } catch (const Error& error) {
    throw Error(ErrorCode::peer_died, std::string("the keeper did not take over: ") + error.what());
  }
  is_replaced_ = true;
}

}  // namespace onecopy::store
