// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "support/peer_group.h"
#include "support/simulated_devices.h"

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  onecopy::testing::use_simulated_devices();
  onecopy::testing::run_if_spawned(argc, argv);
  return RUN_ALL_TESTS();
}
