// SPDX-License-Identifier: Apache-2.0
#include "share/owner/fork_page.h"

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "onecopy/core/error.h"
#include "os/log.h"
#include "os/process_origin.h"
#include "share/format/wire.h"

namespace onecopy {
namespace {

constexpr std::size_t kMostUnread = std::size_t{16} * 1024;

/// Announced but never attached, the child counts as holding every block. That is safe, and visible in the owner's
/// limbo until this process and the child have ended. Logged once: a process may fork thousands of times.
void report_reserved(const char* why) noexcept {
  static std::atomic<bool> is_said{false};
  if (is_said.exchange(true)) return;
  try {
    log_warning(
        "fork: {}; what the child borrows stays reserved until both processes have ended "
        "(said once)",
        why);
  } catch (const std::exception&) {  // no memory for the words either
  }
}

void say_that_child_ends(const char* why) noexcept {
  try {
    log_error("fork: {}; the child ends, since nothing would keep the memory that it inherited", why);
  } catch (const std::exception&) {  // as above
  }
}

}  // namespace

std::optional<ForkPage> send_child_page(Claims mine, UnixSocket& owner) noexcept {
  announce_child(mine);
  constexpr const char* kDoesNotRead =
      "the owner of memory that this process borrows does not read its messages; it may be stopped";
  try {
    if (owner.unread_bytes() > kMostUnread) {
      report_reserved(kDoesNotRead);
      return {};
    }
    ClaimFile page = create_claim_file();
    ForkPage child{std::move(page.memory), {}};
    claims_in(child.memory).header().all.store(1);
    auto [ours, theirs] = UnixSocket::pair();
    child.socket = std::move(ours);
    const int fds[] = {page.file.get(), theirs.fd()};
    if (owner.try_send(wire::pack(wire::AdoptChild{}), fds)) {
      point("fork.page_sent");
      return child;
    }
    report_reserved(kDoesNotRead);
  } catch (const Error& e) {
    if (e.code() != ErrorCode::peer_died) report_reserved(e.what());
  } catch (const std::bad_alloc& e) {
    report_reserved(e.what());
  }
  return {};
}

bool greet_owner(UnixSocket& owner) noexcept {
  try {
    const ProcessOrigin self = this_process_origin();
    return owner.try_send(wire::pack(wire::ChildHello{self.pid, self.start_time}));
  } catch (const std::exception&) {
    return false;
  }
}

void or_end_child(const std::function<void()>& f) noexcept {
  try {
    f();
  } catch (const std::exception& e) {
    say_that_child_ends(e.what());
    ::_exit(EXIT_FAILURE);
  }
}

}  // namespace onecopy
