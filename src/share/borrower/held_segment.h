// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/backend.h"
#include "os/fd.h"

namespace onecopy {

/// A segment as a holder other than its owner hands it out.
struct HeldSegment {
  Fd table;  ///< the owner's block table
  ExportedMemory memory;
  bool owner_gone = false;
};

}  // namespace onecopy
