// SPDX-License-Identifier: Apache-2.0
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/sock_diag.h>
#include <linux/unix_diag.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <array>
#include <cstddef>
#include <cstring>
#include <string_view>

#include "os/fd.h"
#include "os/unix_socket.h"

namespace onecopy {
namespace {

constexpr std::uint32_t kShowUser = 0x40;  // UDIAG_SHOW_UID, Linux 5.3
constexpr unsigned short kUser = 7;        // UNIX_DIAG_UID
constexpr std::uint32_t kListening = 10;   // TCP_LISTEN

struct Question {
  nlmsghdr head{sizeof(Question), SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST | NLM_F_DUMP, 0, 0};
  unix_diag_req body{};
};

/// Opens a socket on which the kernel lists all listening Unix sockets of this network namespace; empty if it refuses.
Fd ask_for_listeners() noexcept {
  Fd fd(::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG));
  if (!fd) return {};
  const timeval limit{1, 0};
  ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  Question question;
  question.body.sdiag_family = AF_UNIX;
  question.body.udiag_states = 1u << kListening;
  question.body.udiag_show = UDIAG_SHOW_NAME | kShowUser;
  const ssize_t sent = ::send(fd.get(), &question, sizeof question, 0);
  return sent == ssize_t{sizeof question} ? std::move(fd) : Fd();
}

/// Returns the user in the message about one socket, if the socket has the name.
std::optional<unsigned> user_if_named(const nlmsghdr* message, std::string_view name) noexcept {
  const auto* socket = static_cast<const unix_diag_msg*>(NLMSG_DATA(message));
  if (message->nlmsg_type != SOCK_DIAG_BY_FAMILY || socket->udiag_type != SOCK_SEQPACKET) return {};
  bool is_named = false;
  std::optional<unsigned> user;
  auto left = static_cast<int>(message->nlmsg_len - NLMSG_LENGTH(sizeof *socket));
  auto* part = reinterpret_cast<const rtattr*>(socket + 1);
  for (; RTA_OK(part, left); part = RTA_NEXT(part, left)) {
    const std::string_view value(static_cast<const char*>(RTA_DATA(part)), RTA_PAYLOAD(part));
    if (part->rta_type == UNIX_DIAG_NAME)
      is_named = value.size() == name.size() + 1 && value[0] == 0 && value.substr(1) == name;
    unsigned uid = 0;
    if (part->rta_type == kUser && value.size() == sizeof uid) {
      std::memcpy(&uid, value.data(), sizeof uid);
      user = uid;
    }
  }
  return is_named ? user : std::nullopt;
}

}  // namespace

std::optional<unsigned> listening_user(const std::string& name) {
  const Fd fd = ask_for_listeners();
  if (!fd) return {};
  alignas(nlmsghdr) std::array<std::byte, std::size_t{32} * 1024> buffer;
  for (;;) {
    const ssize_t got = ::recv(fd.get(), buffer.data(), buffer.size(), 0);
    if (got <= 0) return {};
    auto left = static_cast<std::size_t>(got);
    for (auto* m = reinterpret_cast<const nlmsghdr*>(buffer.data()); NLMSG_OK(m, left);
         m = NLMSG_NEXT(m, left)) {
      if (m->nlmsg_type == NLMSG_DONE || m->nlmsg_type == NLMSG_ERROR) return {};
      if (const auto user = user_if_named(m, name)) return user;
    }
  }
}

}  // namespace onecopy
