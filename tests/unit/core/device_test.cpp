// SPDX-License-Identifier: Apache-2.0
#include "onecopy/core/device.h"

#include <gtest/gtest.h>

#include "onecopy/core/error.h"

namespace onecopy {
namespace {

TEST(Device, TextParsesBackToTheSameDevice) {
  for (const char* text : {"cpu", "cuda:0", "cuda:15", "npu:1", "npu:32767"})
    EXPECT_EQ(Device::parse(text).str(), text);
  EXPECT_EQ(Device::parse("cpu"), kCpu);
  EXPECT_EQ(Device::parse("cuda:3"), (Device{DeviceType::cuda, 3}));
}

TEST(Device, AnythingElseIsRefusedWithExamples) {
  for (const char* text : {"", "cuda", "cuda:", "cuda:-1", "cuda:+1", "cuda:01", "cuda:1 ", "cpu:0", "CPU",
                           "tpu:0", "npu:32768", "cuda:0x1"}) {
    try {
      Device::parse(text);
      ADD_FAILURE() << text << " was accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      EXPECT_NE(std::string(error.what()).find("\"cuda:0\""), std::string::npos);
    }
  }
}

TEST(Uuid, IsWrittenInGroups) {
  Uuid uuid;
  for (std::size_t i = 0; i < 16; ++i) uuid.bytes[i] = static_cast<std::uint8_t>(17 * i);
  EXPECT_EQ(uuid.str(), "00112233-4455-6677-8899-aabbccddeeff");
}

}  // namespace
}  // namespace onecopy
