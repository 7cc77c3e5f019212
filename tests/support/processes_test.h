// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include "support/child.h"
#include "support/note.h"
#include "support/watchdog.h"

namespace onecopy::testing {

/// A test of several processes, which share a note. Where it hangs, it tells the stacks of all.
class ProcessesTest : public ::testing::Test {
 protected:
  const Watchdog watchdog;
  const Shared<Note> note;
};

}  // namespace onecopy::testing
