// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <optional>

#include "onecopy/channel/queue.h"
#include "onecopy/share/share.h"
#include "onecopy/store/store.h"
#include "os/unix_socket.h"
#include "soak/commands.h"

namespace onecopy::soak {

/// One process of the soak: does as its director says and answers what came of it. A forked child of it is one, too,
/// with all that it inherited.
/// Thread safety: used by one thread.
class Agent {
 public:
  explicit Agent(UnixSocket director) : director_(std::move(director)) {}
  /// Until the director tells it to end, or is gone.
  void serve();

 private:
  void run_batch(Packet packet);
  Result run(const Command& command, std::vector<Fd>& fds);
  Result try_run(const Command& command, std::vector<Fd>& fds);
  bool fork_with(std::vector<Fd>& fds);
  void say_hello();
  void put(const Command& command, Result& result);
  void get(const Command& command, Result& result);
  store::Store& store_at_hand();
  void end_as(const Command& last);

  UnixSocket director_;
  std::map<std::uint64_t, Tensor> tensors_;
  std::map<std::uint64_t, Handle> handles_;
  std::map<std::uint64_t, Queue> queues_;
  std::optional<store::Store> store_;
  bool is_child_ = false;  ///< since the last batch began
  bool has_ended_ = false;
};

}  // namespace onecopy::soak
