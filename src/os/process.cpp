// SPDX-License-Identifier: Apache-2.0
#include "os/process.h"

#include <fmt/format.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <new>

#include "core/throw_error.h"
#include "os/cgroup.h"
#include "os/file.h"
#include "os/poll_once.h"

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif

namespace onecopy {
namespace {

/// Returns the nth field (from 1) of /proc/<pid>/stat, counted after the name, which may contain spaces and brackets.
std::string_view field_after_name(std::string_view stat, int nth) {
  const auto bracket = stat.rfind(')');
  if (bracket == std::string_view::npos) return {};
  stat.remove_prefix(bracket + 1);
  for (;; --nth) {
    const auto begin = stat.find_first_not_of(' ');
    if (begin == std::string_view::npos) return {};
    stat.remove_prefix(begin);
    const auto end = std::min(stat.find(' '), stat.size());
    if (nth == 1) return stat.substr(0, end);
    stat.remove_prefix(end);
  }
}

/// Allocates a number in a page that reads as zero in every child, even after a raw clone. Returns null on
/// kernels without MADV_WIPEONFORK.
std::atomic<int>* make_wiped_by_fork() noexcept {
  constexpr std::size_t kPage = 4096;
  void* const page = ::mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return nullptr;
  if (::madvise(page, kPage, MADV_WIPEONFORK) == 0) return new (page) std::atomic<int>(0);
  ::munmap(page, kPage);
  return nullptr;
}

int cpus_in_affinity_mask() {
  // The kernel refuses masks smaller than its own; real machines have up to 8192 processors.
  for (int cpus = 1024; cpus <= 65536; cpus *= 2) {
    const std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> set(CPU_ALLOC(static_cast<std::size_t>(cpus)),
                                                               [](cpu_set_t* s) { CPU_FREE(s); });
    const std::size_t size = CPU_ALLOC_SIZE(static_cast<std::size_t>(cpus));
    if (::sched_getaffinity(0, size, set.get()) == 0) return CPU_COUNT_S(size, set.get());
    if (errno != EINVAL) break;
  }
  return static_cast<int>(std::max(1L, ::sysconf(_SC_NPROCESSORS_ONLN)));
}

}  // namespace

int detail::ask_for_pid() noexcept {
  static std::atomic<int>* const known = make_wiped_by_fork();
  const int pid = ::getpid();
  if (known) known->store(pid, std::memory_order_relaxed);
  known_pid.store(known, std::memory_order_release);
  return pid;
}

int number_in_proc(int pid) {
  std::array<char, 16> self{};
  const ssize_t length = ::readlink("/proc/self", self.data(), self.size() - 1);
  if (length <= 0) return 0;
  const int our_number = std::atoi(self.data());
  if (our_number == current_pid()) return pid;
  if (pid == current_pid()) return our_number;
  const Fd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (!pidfd) return 0;
  const auto info = try_read_text(fmt::format("/proc/self/fdinfo/{}", pidfd.get()));
  const auto at = info ? info->find("\nPid:") : std::string::npos;
  return at == std::string::npos ? 0 : std::max(0, std::atoi(info->c_str() + at + 5));
}

std::uint64_t process_start_time(int pid) {
  const int number = number_in_proc(pid);
  if (number == 0) return 0;
  const auto stat = try_read_text(fmt::format("/proc/{}/stat", number));
  if (!stat) return 0;
  const std::string_view field = field_after_name(*stat, 22 - 2);
  std::uint64_t ticks = 0;
  std::from_chars(field.data(), field.data() + field.size(), ticks);
  return ticks;
}

std::array<std::uint8_t, 16> boot_id() {
  const std::optional<std::string> text = try_read_text("/proc/sys/kernel/random/boot_id");
  if (!text && (errno == EMFILE || errno == ENFILE))
    throw_errno("cannot read the machine's boot id", errno);
  std::string digits = text.value_or("");
  std::erase_if(digits, [](char c) { return std::isxdigit(static_cast<unsigned char>(c)) == 0; });
  std::array<std::uint8_t, 16> id{};
  if (digits.size() < 2 * id.size())
    throw Error(ErrorCode::unsupported, "cannot read /proc/sys/kernel/random/boot_id; onecopy needs /proc");
  for (std::size_t i = 0; i < id.size(); ++i)
    std::from_chars(digits.data() + 2 * i, digits.data() + 2 * i + 2, id[i], 16);
  return id;
}

std::uint64_t pid_namespace() noexcept {
  struct stat info {};
  return ::stat("/proc/self/ns/pid", &info) == 0 ? info.st_ino : 0;
}

Fd open_pidfd(int pid) {
  Fd fd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  if (fd) return fd;
  if (errno == ESRCH)
    throw Error(ErrorCode::peer_died, fmt::format("process {} is gone", pid), ESRCH, ErrorDomain::posix);
  throw_errno(fmt::format("cannot watch process {}", pid), errno,
              errno == ENOSYS || errno == EPERM ? ErrorCode::unsupported : ErrorCode::system);
}

bool has_exited(const Fd& pidfd) {
  pollfd entry{pidfd.get(), POLLIN, 0};
  if (pidfd.get() < 0)
    throw_error(ErrorCode::invalid_argument, "descriptor {} is not a pidfd", pidfd.get());
  return poll_once({&entry, 1}, 0) > 0 && (entry.revents & POLLNVAL) == 0;
}

std::string process_name(int pid) {
  std::string name = try_read_text(fmt::format("/proc/{}/comm", pid)).value_or("");
  if (!name.empty() && name.back() == '\n') name.pop_back();
  return name;
}

int current_cpu() noexcept { return ::sched_getcpu(); }

int usable_cpus() {
  const int allowed = cpus_in_affinity_mask();
  const double quota = cpu_quota(CgroupTree(""));
  return quota < allowed ? std::max(1, static_cast<int>(std::ceil(quota))) : std::max(1, allowed);
}

}  // namespace onecopy
