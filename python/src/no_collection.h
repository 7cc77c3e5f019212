// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <Python.h>

namespace onecopy::python {

/// While it lives, Python's cyclic garbage collector does not run: making thousands of tensors, none of
/// which is garbage, would make it walk over all objects of the program again and again.
/// Thread safety: made and destroyed with the GIL held. Another thread that switches the collector on
/// meanwhile wins; one that switches it off does not.
class NoCollection {
 public:
  NoCollection() noexcept : was_enabled_(PyGC_Disable()) {}
  NoCollection(const NoCollection&) = delete;
  NoCollection& operator=(const NoCollection&) = delete;
  ~NoCollection() {
    if (was_enabled_ != 0) PyGC_Enable();
  }

 private:
  const int was_enabled_;
};

}  // namespace onecopy::python
