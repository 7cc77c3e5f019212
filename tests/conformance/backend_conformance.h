// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <ostream>
#include <vector>

#include "conformance/scratch_directory.h"
#include "device/backend.h"

namespace onecopy {

/// One kind of memory of one device that must keep what backend.h promises.
struct BackendCase {
  std::string name;
  DeviceType device = DeviceType::cpu;
  int ordinal = 0;
  SegmentKind kind = SegmentKind::memfd;
};

inline void PrintTo(const BackendCase& c, std::ostream* out) { *out << c.name; }

/// The suite; backend_conformance.cpp holds the tests. Instantiate it with
/// INSTANTIATE_TEST_SUITE_P for each case; skipped where the device is absent.
class BackendConformance : public ::testing::TestWithParam<BackendCase> {
 protected:
  void SetUp() override {
    if (static_cast<std::size_t>(GetParam().ordinal) >= device().devices().size())
      GTEST_SKIP() << "no such device on this machine";
  }

  Backend& device() const { return backend(GetParam().device); }
  std::size_t page() const { return device().granularity(); }
  std::unique_ptr<DeviceMemory> create(std::size_t bytes) {
    return device().create(GetParam().ordinal, bytes, GetParam().kind, "0123456789abcdef0123456789abcdef",
                           ++last_number_);
  }
  std::unique_ptr<DeviceMemory> open(ExportedMemory memory, Access access = Access::read_write) {
    return device().open(GetParam().ordinal, std::move(memory), access);
  }

  // Through copies, so that the bodies hold for memory that the host cannot see.
  Device place() const { return {GetParam().device, static_cast<std::int16_t>(GetParam().ordinal)}; }
  void put(const DeviceMemory& memory, std::size_t offset, int value) { fill(memory, offset, 1, value); }
  void fill(const DeviceMemory& memory, std::size_t offset, std::size_t bytes, int value) {
    const std::vector<std::byte> source(bytes, std::byte(value));
    copy_bytes_and_wait({memory.data() + offset, place(), source.data(), kCpu, bytes});
  }
  int get(const DeviceMemory& memory, std::size_t offset) {
    std::byte value{};
    copy_bytes_and_wait({&value, kCpu, memory.data() + offset, place(), 1});
    return static_cast<int>(value);
  }

  ScratchDirectory directory_;
  std::uint32_t last_number_ = 0;
};

}  // namespace onecopy
