// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include "support/child.h"
#include "support/note.h"
#include "support/watchdog.h"

namespace onecopy::testing {

/// A test of several processes that share a note. If the test hangs, it prints the stacks of all its processes.
class ProcessesTest : public ::testing::Test {
 protected:
  const Watchdog watchdog;
  const Shared<Note> note;
};

}  // namespace onecopy::testing
