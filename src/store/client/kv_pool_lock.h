// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "os/deadline.h"
#include "os/fd.h"
#include "os/unshared_descriptor.h"

namespace onecopy::store {

/// Returns the path of the files of a KV pool, without their endings.
std::string kv_pool_path(const std::string& directory, const std::string& name);

/// A lock of a KV pool's name among all processes of the user: the holder alone makes or opens the KV pool. The lock is that of
/// a file in the store's directory, and ends with the process; forked children do not inherit it. Thread safety: none.
class KvPoolLock {
 public:
  /// Takes the lock. Throws timeout, which names the holder if this process can see it.
  KvPoolLock(const std::string& directory, const std::string& name, Deadline deadline);
  KvPoolLock& operator=(KvPoolLock&&) = delete;
  ~KvPoolLock();

 private:
  bool try_lock();
  std::string holder() const;

  const std::string path_;
  Fd file_;
  UnsharedDescriptor unshared_;
};

}  // namespace onecopy::store
