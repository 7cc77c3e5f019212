// SPDX-License-Identifier: Apache-2.0
#include "store/ferry/changes.h"

#include <poll.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <utility>

#include "onecopy/core/bytes.h"
#include "store/client/group_mark.h"
#include "store/client/state.h"

namespace onecopy::store::ferry {

Changes::Changes(const Client& client, std::string name)
    : name_(std::move(name)),
      link_(Link::connect(client.directories(), Deadline::after(kKeeperPatience))),
      file_(file_about(link_.home(), "pulled", name_)),
      written_(::inotify_init1(IN_NONBLOCK | IN_CLOEXEC)) {
  file_.erase(0, link_.home().size() + 1);
  if (written_ && ::inotify_add_watch(written_.get(), link_.home().c_str(), IN_MODIFY) < 0)
    written_.reset();
  ask();
}

void Changes::ask() { link_.send(pack(WaitForChange{name_, known_}), Deadline::after(kKeeperPatience)); }

void Changes::wait(Deadline until) {
  const Deadline end = written_ ? until : std::min(until, Deadline::after(kLookAgain));
  std::array<pollfd, 2> on{{{link_.fd(), POLLIN, 0}, {written_.get(), POLLIN, 0}}};
  do {
    if (::poll(on.data(), on.size(), end.poll_timeout()) <= 0) continue;
    if (on[0].revents != 0) {
      known_ = unpack<Opened>(link_.receive(Deadline::after(kKeeperPatience)).bytes).version.token;
      return ask();
    }
    if (is_noted()) return;
  } while (!end.has_passed());
}

/// Reads what was written in the directory, and returns whether it was the file of Origins.
bool Changes::is_noted() const noexcept {
  alignas(inotify_event) std::array<std::byte, 4096> events{};
  bool found = false;
  for (ssize_t bytes = 0; (bytes = ::read(written_.get(), events.data(), events.size())) > 0;)
    for (const std::byte *at = events.data(), *const end = at + bytes; at < end;) {
      const auto* const event = reinterpret_cast<const inotify_event*>(at);
      found = found || (event->mask & IN_Q_OVERFLOW) != 0 || (event->len != 0 && file_ == event->name);
      at += sizeof(inotify_event) + event->len;
    }
  return found;
}

}  // namespace onecopy::store::ferry
