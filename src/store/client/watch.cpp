// SPDX-License-Identifier: Apache-2.0
#include "store/client/state.h"

#include "core/moved_from.h"
#include "onecopy/core/error.h"

namespace onecopy::store {

Watch::Watch(std::unique_ptr<State> state) noexcept : state_(std::move(state)) {}
Watch::Watch(Watch&&) noexcept = default;
Watch& Watch::operator=(Watch&&) noexcept = default;
Watch::~Watch() = default;

void Watch::State::connect() {
  const Deadline deadline = Deadline::after(kKeeperPatience);
  Client::here(client).welcome(deadline);
  link = Link::connect(client->directories(), deadline);
  has_asked = false;
}

std::optional<std::uint64_t> Watch::next(std::chrono::nanoseconds timeout) {
  const Deadline deadline = Deadline::after(timeout);
  State& s = of_object(state_, "Watch");
  for (;;) {
    try {
      if (!s.link) s.connect();
      if (!s.has_asked)
        s.link->send(pack(WaitForChange{s.name, s.known}), Deadline::after(kKeeperPatience));
      s.has_asked = true;
      const auto version = unpack<Opened>(s.link->receive(deadline).bytes).version;
      s.has_asked = false;
      s.known = version.token;
      return version.number;
    } catch (const Error& error) {
      if (error.code() == ErrorCode::timeout && s.has_asked) return std::nullopt;
      s.link.reset();
      if (error.code() != ErrorCode::peer_died) throw;
    }
  }
}

}  // namespace onecopy::store
