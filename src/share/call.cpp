// SPDX-License-Identifier: Apache-2.0
#include "share/call.h"

#include <fmt/format.h>
#include <unistd.h>

#include <exception>
#include <utility>

#include "onecopy/core/error.h"
#include "share/process.h"
#include "share/process_name.h"

namespace onecopy {
namespace {

thread_local std::optional<Call>* early = nullptr;

}  // namespace

Call::Call(const ProcessId& called, std::chrono::milliseconds patience)
    : to(called),
      socket(UnixSocket::connect(socket_name(public_name(called)), patience)),
      credentials(socket.peer()),
      nonce(wire::new_nonce()) {
  if (credentials.uid != geteuid())
    throw Error(ErrorCode::other_user,
                fmt::format("the owner of this handle runs as uid {}, this process as uid {}: memory "
                            "is shared within one user only",
                            credentials.uid, geteuid()));
  socket.send(wire::pack(wire::Type::hello, wire::Hello{nonce}), {}, patience);
}

EarlyCall::EarlyCall(const ProcessId& to) noexcept {
  if (Process::existing() || early) return;
  try {
    call_.emplace(to, std::chrono::milliseconds(0));
    early = &call_;
  } catch (const std::exception&) {  // see above
  }
}

EarlyCall::~EarlyCall() {
  if (call_) early = nullptr;  // nobody took it
}

bool EarlyCall::is_waiting() noexcept { return early != nullptr; }

std::optional<Call> EarlyCall::take(const ProcessId& to) noexcept {
  if (!early || (*early)->to != to) return {};
  return std::exchange(*std::exchange(early, nullptr), {});
}

}  // namespace onecopy
