// SPDX-License-Identifier: Apache-2.0
#include "share/fork_page.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>

#include "onecopy/core/error.h"
#include "onecopy/os/log.h"
#include "share/process_origin.h"
#include "share/wire.h"

namespace onecopy {

std::optional<ForkPage> send_child_page(Claims mine, UnixSocket& owner) noexcept {
  announce_child(mine);
  try {
    ClaimFile page = create_claim_file();
    ForkPage child{std::move(page.memory), {}};
    claims_in(child.memory).header().all.store(1);
    auto [ours, theirs] = UnixSocket::pair();
    child.socket = std::move(ours);
    const int fds[] = {page.file.get(), theirs.fd()};
    owner.send(wire::pack(wire::Type::adopt_child, wire::AdoptChild{}), fds, std::chrono::seconds(10));
    point("fork.page_sent");
    return child;
  } catch (const Error& e) {
    if (e.code() == ErrorCode::peer_died) return {};
    // Announced but never attached, the child counts as holding everything: safe, and visible in
    // the owner's limbo until this process ends.
    log_warning(fmt::format("fork: {}; what the child borrows stays reserved", e.what()));
  }
  return {};
}

bool greet_owner(UnixSocket& owner) noexcept {
  try {
    const ProcessOrigin self = this_process_origin();
    return owner.try_send(wire::pack(wire::Type::child_hello, wire::ChildHello{self.pid, self.start_time}));
  } catch (const Error&) {
    return false;
  }
}

void or_end_child(const std::function<void()>& f) noexcept {
  try {
    f();
  } catch (const std::exception& e) {
    log_error(fmt::format("fork: {}; the child ends, since nothing would keep the memory that it inherited",
                          e.what()));
    ::_exit(EXIT_FAILURE);
  }
}

}  // namespace onecopy
