// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "store/client/client.h"

namespace onecopy::store {

/// A question on a link of its own, which the keeper answers when there is news. Thread safety: none.
struct Watch::State {
  State(std::shared_ptr<Client> asks, std::string object)
      : client(std::move(asks)), name(std::move(object)) {}

  void connect();

  std::shared_ptr<Client> client;  // shared with stores; it starts the keeper if there is none
  const std::string name;
  std::optional<Link> link;
  bool has_asked = false;   ///< the answer is still to come
  Token keeper{};           ///< to which `known` means something
  std::uint64_t known = 0;  ///< the id of the version that was returned last
};

}  // namespace onecopy::store
