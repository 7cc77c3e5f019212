// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>
#include <vector>

#include "onecopy/core/error.h"
#include "store/client/kv_pool_blocks.h"

namespace onecopy::store {

/// Holds the lock of a KV pool as one of its users, with is_changing set. Is false if a user that is stopped holds the lock.
/// Throws out_of_memory if too many processes use the KV pool, and stale_handle if others took this process for dead.
class KvPoolBlocks::Change {
 public:
  explicit Change(KvPoolBlocks& pool);
  ~Change() {
    if (entered_) end();
  }
  explicit operator bool() const noexcept { return entered_; }

 private:
  void begin();
  void end() noexcept;

  KvPoolBlocks& pool_;
  const LockGuard lock_;
  bool entered_ = false;
};

/// Throws the error of a call for which the lock was not free in time.
[[noreturn]] inline void throw_stopped(ErrorCode code) {
  throw Error(code, "a process of the KV pool is stopped in the middle of a call: let it go on, or end it");
}

/// Returns kv_key() of each text.
inline std::vector<KvKey> keys_of(std::span<const std::string> texts) {
  std::vector<KvKey> keys;
  keys.reserve(texts.size());
  for (const std::string& text : texts) keys.push_back(kv_key(text));
  return keys;
}

}  // namespace onecopy::store
