// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

namespace onecopy::bench {

/// The current memory of a process.
struct Footprint {
  std::uint64_t descriptors = 0;
  std::uint64_t mappings = 0;
  std::uint64_t resident = 0;         ///< bytes in this process, shared ones counted in full
  std::uint64_t resident_shared = 0;  ///< of these in files and shared memory
};
Footprint footprint();

/// Returns the bytes of physical memory behind the memfds that this process has open.
std::uint64_t memfd_bytes();

/// A private mapping whose pages no one has touched, unmapped by the destructor.
class FreshMemory {
 public:
  explicit FreshMemory(std::size_t size);
  ~FreshMemory();
  FreshMemory(const FreshMemory&) = delete;
  FreshMemory& operator=(const FreshMemory&) = delete;
  void* data() const { return data_; }

 private:
  void* data_;
  std::size_t size_;
};

}  // namespace onecopy::bench
