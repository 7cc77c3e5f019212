// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "store/client/client.h"

namespace onecopy::store {

/// A question on a link of its own, which the keeper answers when the object changes. Thread safety: none.
struct Watch::State {
  State(std::shared_ptr<Client> asks, std::string object)
      : client(std::move(asks)), name(std::move(object)) {}

  void connect();

  std::shared_ptr<Client> client;  // shared with stores; starts the keeper if there is none
  const std::string name;
  std::optional<Link> link;
  bool has_asked = false;  ///< the keeper has not answered yet
  Token known{};           ///< the token of the last version that was returned
};

}  // namespace onecopy::store
