// SPDX-License-Identifier: Apache-2.0
#include "store/client/group_mark.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <span>

#include "core/throw_error.h"
#include "onecopy/core/error.h"
#include "os/file.h"
#include "os/hmac.h"

namespace onecopy::store {

std::string file_about(const std::string& home, const char* what, const std::string& name) {
  constexpr std::size_t kNameBytes = 16;
  const Digest digest = sha256(std::as_bytes(std::span(name)));
  return fmt::format("{}/{}-{:02x}", home, what, fmt::join(std::span(digest).first(kNameBytes), ""));
}

bool is_of_group(Client& client, const std::string& name) {
  const std::string home = client.home(Deadline::after(kKeeperPatience));
  return ::access(file_about(home, "group", name).c_str(), F_OK) == 0;
}

void mark_as_of_group(const std::string& home, const std::string& name) {
  open_file(file_about(home, "group", name), O_WRONLY | O_CREAT);
}

void check_not_of_group(Client& client, const std::string& name, const char* what_to_do) {
  if (is_of_group(client, name))
    throw_error(ErrorCode::invalid_argument,
                "\"{}\" belongs to the group of this host, and would differ from the other hosts: {}", name,
                what_to_do);
}

}  // namespace onecopy::store
