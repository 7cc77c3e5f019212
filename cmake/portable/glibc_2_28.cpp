// SPDX-License-Identifier: Apache-2.0
// Lets a wheel that is built with a newer glibc run with glibc 2.28 (ONECOPY_PORTABLE, x86-64).
//
// glibc 2.34 moved the functions of libpthread and libdl to libc.so.6 under a new version, and kept the old version
// beside it. All objects of the wheel, including libstdc++, call __wrap_NAME for NAME: OnecopyPortable.cmake reads the
// names from this file and passes --wrap=NAME to the linker.
#include <dlfcn.h>
#include <pthread.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <ctime>

// NOLINTBEGIN(bugprone-reserved-identifier): the linker makes these names
#define ONECOPY_OLDER(name, version)                      \
  asm(".symver older_" #name ", " #name "@" version       \
      "\n"                                                \
      ".pushsection .text.older_" #name                   \
      ", \"ax\", @progbits\n"                             \
      ".globl __wrap_" #name "\n.hidden __wrap_" #name    \
      "\n"                                                \
      ".type __wrap_" #name                               \
      ", @function\n"                                     \
      "__wrap_" #name ":\n  endbr64\n  jmp *older_" #name \
      "@GOTPCREL(%rip)\n"                                 \
      ".size __wrap_" #name ", . - __wrap_" #name "\n.popsection\n")

ONECOPY_OLDER(dlclose, "GLIBC_2.2.5");
ONECOPY_OLDER(dlerror, "GLIBC_2.2.5");
ONECOPY_OLDER(dlopen, "GLIBC_2.2.5");
ONECOPY_OLDER(dlsym, "GLIBC_2.2.5");
ONECOPY_OLDER(dladdr, "GLIBC_2.2.5");
ONECOPY_OLDER(exp, "GLIBC_2.2.5");  // of libm, new in glibc 2.29, as are the next three
ONECOPY_OLDER(log, "GLIBC_2.2.5");
ONECOPY_OLDER(log2, "GLIBC_2.2.5");
ONECOPY_OLDER(pow, "GLIBC_2.2.5");
ONECOPY_OLDER(pthread_create, "GLIBC_2.2.5");
ONECOPY_OLDER(pthread_detach, "GLIBC_2.2.5");
ONECOPY_OLDER(pthread_getspecific, "GLIBC_2.2.5");
ONECOPY_OLDER(pthread_join, "GLIBC_2.2.5");
ONECOPY_OLDER(pthread_key_create, "GLIBC_2.2.5");
ONECOPY_OLDER(pthread_key_delete, "GLIBC_2.2.5");
ONECOPY_OLDER(pthread_kill, "GLIBC_2.2.5");
ONECOPY_OLDER(pthread_mutex_trylock, "GLIBC_2.2.5");
ONECOPY_OLDER(pthread_mutexattr_init, "GLIBC_2.2.5");
ONECOPY_OLDER(pthread_mutexattr_settype, "GLIBC_2.2.5");
ONECOPY_OLDER(pthread_once, "GLIBC_2.2.5");
ONECOPY_OLDER(pthread_rwlock_rdlock, "GLIBC_2.2.5");
ONECOPY_OLDER(pthread_rwlock_unlock, "GLIBC_2.2.5");
ONECOPY_OLDER(pthread_rwlock_wrlock, "GLIBC_2.2.5");
ONECOPY_OLDER(pthread_setname_np, "GLIBC_2.12");
ONECOPY_OLDER(pthread_setspecific, "GLIBC_2.2.5");
ONECOPY_OLDER(pthread_sigmask, "GLIBC_2.2.5");

asm(".symver older_xstat, __xstat@GLIBC_2.2.5");
asm(".symver older_lxstat, __lxstat@GLIBC_2.2.5");
asm(".symver older_fxstat, __fxstat@GLIBC_2.2.5");

namespace {

constexpr int kStatVersion = 1;  // of struct stat on x86-64

// Converts the deadline `until` of `clock` to CLOCK_REALTIME.
timespec by_wall_clock(clockid_t clock, const timespec& until) {
  constexpr std::int64_t kSecond = 1'000'000'000;
  timespec then{}, now{};
  clock_gettime(clock, &then);
  clock_gettime(CLOCK_REALTIME, &now);
  const std::int64_t left = (until.tv_sec - then.tv_sec) * kSecond + until.tv_nsec - then.tv_nsec;
  const std::int64_t at = now.tv_sec * kSecond + now.tv_nsec + left;
  return {at / kSecond, at % kSecond};
}

}  // namespace

extern "C" {

// Belongs to glibc 2.32. libstdc++ reads it to avoid atomic operations in a process with one thread.
__attribute__((visibility("hidden"))) char __libc_single_threaded = 0;

int older_xstat(int version, const char* path, struct stat* into);
int older_lxstat(int version, const char* path, struct stat* into);
int older_fxstat(int version, int descriptor, struct stat* into);

int __wrap_stat(const char* path, struct stat* into) { return older_xstat(kStatVersion, path, into); }
int __wrap_lstat(const char* path, struct stat* into) { return older_lxstat(kStatVersion, path, into); }
int __wrap_fstat(int descriptor, struct stat* into) { return older_fxstat(kStatVersion, descriptor, into); }
int __wrap_fstat64(int descriptor, struct stat* into) {
  return older_fxstat(kStatVersion, descriptor, into);
}

// Belongs to glibc 2.30. Without it a wait follows the wall clock, and a jump of that clock moves its end.
int __wrap_pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                                  const timespec* until) {
  using Function = int (*)(pthread_cond_t*, pthread_mutex_t*, clockid_t, const timespec*);
  static const auto newer = reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, "pthread_cond_clockwait"));
  if (newer != nullptr) return newer(condition, mutex, clock, until);
  const timespec wall = by_wall_clock(clock, *until);
  return pthread_cond_timedwait(condition, mutex, &wall);
}

// Belongs to glibc 2.30.
pid_t __wrap_gettid() { return static_cast<pid_t>(syscall(SYS_gettid)); }

// Belongs to glibc 2.36. std::random_device calls it.
std::uint32_t __wrap_arc4random() {
  std::uint32_t number = 0;
  while (getrandom(&number, sizeof number, 0) < 0 && errno == EINTR) {
  }
  return number;
}
}
// NOLINTEND(bugprone-reserved-identifier)
