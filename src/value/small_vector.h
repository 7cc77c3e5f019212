// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <vector>

namespace onecopy::value {

/// A vector whose first `kFew` items are stored inside it. Most values have no more items, and so need no allocation.
/// Thread safety: as a vector.
template <class T, std::size_t kFew>
class SmallVector {
 public:
  T& operator[](std::size_t at) noexcept { return at < kFew ? few_[at] : more_[at - kFew]; }
  const T& operator[](std::size_t at) const noexcept { return at < kFew ? few_[at] : more_[at - kFew]; }
  std::size_t size() const noexcept { return size_; }
  T& emplace_back() {
    if (size_ < kFew) return few_[size_++] = T();
    T& added = more_.emplace_back();
    ++size_;
    return added;
  }
  bool has(const T& item) const noexcept {
    for (std::size_t i = 0; i < size_; ++i)
      if ((*this)[i] == item) return true;
    return false;
  }
  void pop_back() noexcept {
    if (--size_ >= kFew) more_.pop_back();
  }

 private:
  std::array<T, kFew> few_{};
  std::vector<T> more_;
  std::size_t size_ = 0;
};

}  // namespace onecopy::value
