// SPDX-License-Identifier: Apache-2.0
// Must not compile with Clang: it touches what a lock guards without the lock.
#include "os/mutex.h"

namespace onecopy {

class Counter {
 public:
  int next() { return ++count_; }

 private:
  Mutex mutex_;
  int count_ GUARDED_BY(mutex_) = 0;
};

int next_of(Counter& counter) { return counter.next(); }

}  // namespace onecopy
