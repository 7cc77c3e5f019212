// SPDX-License-Identifier: Apache-2.0
#include "os/poller.h"

#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "onecopy/core/error.h"
#include "os/deadline.h"

namespace onecopy {
namespace {

void control(int poller, int operation, int fd, std::uint64_t token, std::uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = token;
  if (::epoll_ctl(poller, operation, fd, &event) != 0)
    throw_errno(fmt::format("cannot watch descriptor {}", fd), errno);
}

constexpr std::uint32_t interest(bool edge, bool writable) {
  return EPOLLIN | EPOLLRDHUP | (edge ? static_cast<std::uint32_t>(EPOLLET) : 0u) |
         (writable ? static_cast<std::uint32_t>(EPOLLOUT) : 0u);
}

}  // namespace

Poller::Poller() : fd_(::epoll_create1(EPOLL_CLOEXEC)) {
  if (!fd_) throw_errno("cannot create an epoll instance", errno);
}

void Poller::add(int fd, std::uint64_t token, bool edge, bool writable) {
  control(fd_.get(), EPOLL_CTL_ADD, fd, token, interest(edge, writable));
}

void Poller::rearm(int fd, std::uint64_t token, bool edge, bool writable) {
  control(fd_.get(), EPOLL_CTL_MOD, fd, token, interest(edge, writable));
}

void Poller::remove(int fd) noexcept {
  epoll_event unused{};
  ::epoll_ctl(fd_.get(), EPOLL_CTL_DEL, fd, &unused);
}

std::vector<std::uint64_t> Poller::wait(std::chrono::milliseconds timeout) {
  std::array<epoll_event, 64> events;
  const int count = ::epoll_wait(fd_.get(), events.data(), static_cast<int>(events.size()),
                                 Deadline(timeout).poll_timeout());
  if (count < 0 && errno != EINTR) throw_errno("cannot wait for descriptors", errno);
  std::vector<std::uint64_t> tokens;
  tokens.reserve(static_cast<std::size_t>(std::max(count, 0)));
  for (int i = 0; i < count; ++i)
    tokens.push_back(std::uint64_t{
        events[static_cast<std::size_t>(i)].data.u64});  // a copy: the kernel packs the struct
  return tokens;
}

Event::Event() : fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!fd_) throw_errno("cannot create an eventfd", errno);
}

void Event::set() noexcept {
  const int error = errno;
  // EAGAIN means that the counter is full, so the flag is set already.
  while (::eventfd_write(fd_.get(), 1) != 0 && errno == EINTR) {
  }
  errno = error;
}

void Event::clear() noexcept {
  eventfd_t count;
  while (::eventfd_read(fd_.get(), &count) != 0 && errno == EINTR) {
  }
}

}  // namespace onecopy
