// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "os/fd.h"
#include "os/futex.h"
#include "os/lock_word.h"
#include "os/program_mark.h"

namespace onecopy::store {

/// A user of a KV pool: a number that is never used again, and that lives as long as the process that made the object.
///
/// The life is a lock of the kernel on the byte 2^32 + number of the control memory's file (ProgramMark). The lock falls when
/// the process ends or calls exec, whatever its PID namespace. Forked children are not the user. Thread safety: as a value.
class KvUser {
 public:
  /// Makes the number alive. Throws unsupported if the system does not show the lock. REQUIRES: the number is new.
  KvUser(const Fd& control, std::uint32_t number);

  std::uint32_t id() const noexcept { return number_; }
  /// Returns false if the user with that number has ended. Returns true if this cannot be decided.
  bool lives(std::uint32_t number) const noexcept;

  void begin(const void*) noexcept {}
  void end(const void*) noexcept {}

 private:
  Fd ask_;
  std::uint64_t inode_;
  std::uint32_t number_;
  ProgramMark mark_;
};

/// The machine of a LockWord whose holders are users of a KV pool. A waiter that slept a whole slice asks the kernel whether
/// the holder lives, and takes the lock over if not.
struct KvMachine {
  using Word = std::atomic<std::uint64_t>;
  using Thread = KvUser;

  static bool wait(const KvUser& me, const Word& word, std::uint32_t seen,
                   std::chrono::nanoseconds longest) noexcept {
    return futex_wait(half(word), seen, longest) || me.lives(seen & LockWord<KvMachine>::kHolder);
  }
  static void wake_one(const Word& word) noexcept { futex_wake(half(word), 1); }
  static bool exists(std::uint32_t) noexcept { return false; }  // wait() has asked

 private:
  static const std::atomic<std::uint32_t>& half(const Word& word) noexcept {
    return reinterpret_cast<const std::atomic<std::uint32_t>&>(word);
  }
};

using KvLockWord = LockWord<KvMachine>;

}  // namespace onecopy::store
