// SPDX-License-Identifier: Apache-2.0
#include "kept_descriptors.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <utility>

#include "os/fork_hook.h"

namespace onecopy::cuda {

namespace {

/// The number of each kept descriptor, plus one, while it is open; 0 in free places. Written so that a fork in the
/// middle of another thread's change finds either.
std::array<std::atomic<int>, kMostReceived + kMostExports> numbers{};

void replace(int before, int after) noexcept {
  for (std::atomic<int>& number : numbers)
    if (int expected = before; number.compare_exchange_strong(expected, after)) return;
}

void leave_to_parent() noexcept {
  if (std::all_of(numbers.begin(), numbers.end(), [](const auto& number) { return number == 0; })) return;
  const int nothing = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  if (nothing < 0) return;
  for (std::atomic<int>& number : numbers)  // once: the child may use the number for something else
    if (const int next = number.exchange(0); next != 0) ::dup3(nothing, next - 1, O_CLOEXEC);
  ::close(nothing);
}

const ForkHook descriptors_at_fork{ForkRank::devices, {.in_child = &leave_to_parent}};

bool take(Room& room, std::size_t count) noexcept {
  std::size_t left = room.load();
  while (left >= count && !room.compare_exchange_weak(left, left - count)) {
  }
  return left >= count;
}

}  // namespace

void KeptDescriptors::keep(std::vector<Fd> fds) {
  if (!take(room_, fds.size())) return;
  for (const Fd& fd : fds) replace(0, fd.get() + 1);
  fds_ = std::move(fds);
}

void KeptDescriptors::close() noexcept {
  for (const Fd& fd : fds_) replace(fd.get() + 1, 0);
  const std::size_t count = fds_.size();
  fds_.clear();
  room_ += count;
}

}  // namespace onecopy::cuda
