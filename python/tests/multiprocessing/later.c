// SPDX-License-Identifier: Apache-2.0
// Preloaded, it lets a program and its forked children see a later time: later(seconds).
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <semaphore.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static volatile long* passed;

__attribute__((constructor)) static void prepare(void) {
  passed = mmap(NULL, sizeof *passed, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
}

void later(long seconds) { *passed += seconds; }

int clock_gettime(clockid_t clock, struct timespec* now) {
  const int result = (int)syscall(SYS_clock_gettime, clock, now);
  if (passed && clock == CLOCK_MONOTONIC) now->tv_sec += *passed;
  return result;
}

// What waits until a time means the kernel's.

static struct timespec of_kernel(clockid_t clock, const struct timespec* until) {
  struct timespec real = *until;
  if (passed && clock == CLOCK_MONOTONIC) real.tv_sec -= *passed;
  return real;
}

int clock_nanosleep(clockid_t clock, int flags, const struct timespec* until, struct timespec* left) {
  static int (*original)(clockid_t, int, const struct timespec*, struct timespec*);
  if (!original) original = dlsym(RTLD_NEXT, "clock_nanosleep");
  const struct timespec real = flags & TIMER_ABSTIME ? of_kernel(clock, until) : *until;
  return original(clock, flags, &real, left);
}

int sem_clockwait(sem_t* semaphore, clockid_t clock, const struct timespec* until) {
  static int (*original)(sem_t*, clockid_t, const struct timespec*);
  if (!original) original = dlsym(RTLD_NEXT, "sem_clockwait");
  const struct timespec real = of_kernel(clock, until);
  return original(semaphore, clock, &real);
}

int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                           const struct timespec* until) {
  static int (*original)(pthread_cond_t*, pthread_mutex_t*, clockid_t, const struct timespec*);
  if (!original) original = dlsym(RTLD_NEXT, "pthread_cond_clockwait");
  const struct timespec real = of_kernel(clock, until);
  return original(condition, mutex, clock, &real);
}
