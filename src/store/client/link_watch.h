// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>

#include "os/worker.h"
#include "store/client/client.h"

namespace onecopy::store {

/// A watch on the keeper for a process that reads versions, which only living processes can bring back, and that may make
/// no call for hours.
///
/// When the keeper ends, the watch waits for another one and lets the Client give back what is read here. It starts no
/// keeper. The end is seen on a connection of its own by the process's EventLoop; a thread exists only after the first
/// end. Thread safety: begin() may be called concurrently.
class LinkWatch {
 public:
  /// Watches until the client is gone. Does nothing for a client that is watched already.
  static void begin(const std::shared_ptr<Client>& client);

 private:
  explicit LinkWatch(std::weak_ptr<Client> client);
  void listen();
  void restore();

  const std::weak_ptr<Client> client_;
  std::optional<Link> link_;  ///< used by listen(), which begin() calls first and the worker later
  Worker worker_;
};

}  // namespace onecopy::store
