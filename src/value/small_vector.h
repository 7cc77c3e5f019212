// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory_resource>
#include <vector>

namespace onecopy::value {

/// A vector whose first `kFew` items lie within itself. It stays where it is made.
/// Thread safety: as a vector.
template <class T, std::size_t kFew>
class SmallVector {
 public:
  SmallVector() { items_.reserve(kFew); }
  SmallVector(const SmallVector&) = delete;
  SmallVector& operator=(const SmallVector&) = delete;

  T& operator[](std::size_t at) noexcept { return items_[at]; }
  const T& operator[](std::size_t at) const noexcept { return items_[at]; }
  std::size_t size() const noexcept { return items_.size(); }
  T& emplace_back() { return items_.emplace_back(); }
  bool has(const T& item) const noexcept {
    return std::find(items_.begin(), items_.end(), item) != items_.end();
  }
  void pop_back() noexcept { items_.pop_back(); }

 private:
  alignas(T) std::array<std::byte, kFew * sizeof(T)> few_;
  std::pmr::monotonic_buffer_resource memory_{few_.data(), few_.size()};
  std::pmr::vector<T> items_{&memory_};
};

}  // namespace onecopy::value
