// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/backend.h"
#include "os/fd.h"

namespace onecopy {

/// A segment as somebody hands it out who is not its owner, but holds it.
struct HeldSegment {
  Fd table;  ///< the owner's block table
  ExportedMemory memory;
  bool owner_gone = false;
};

}  // namespace onecopy
