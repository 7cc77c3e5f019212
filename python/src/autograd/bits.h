// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace onecopy::python::autograd {

/// A set of numbers, stored in one word while all numbers are below 64, and in more words otherwise.
/// Thread safety: that of a value.
class Bits {
 public:
  void add(std::size_t number) {
    if (number < kWord) {
      first_ |= std::uint64_t{1} << number;
      return;
    }
    const std::size_t at = number / kWord - 1;
    if (at >= more_.size()) more_.resize(at + 1);
    more_[at] |= std::uint64_t{1} << number % kWord;
  }
  Bits& operator|=(const Bits& other) {
    first_ |= other.first_;
    if (more_.size() < other.more_.size()) more_.resize(other.more_.size());
    for (std::size_t i = 0; i < other.more_.size(); ++i) more_[i] |= other.more_[i];
    return *this;
  }
  /// Removes the other's numbers.
  Bits& operator-=(const Bits& other) noexcept {
    first_ &= ~other.first_;
    const std::size_t both = std::min(more_.size(), other.more_.size());
    for (std::size_t i = 0; i < both; ++i) more_[i] &= ~other.more_[i];
    return *this;
  }

  bool has(std::size_t number) const noexcept { return (word(number / kWord) >> number % kWord & 1) != 0; }
  bool is_empty() const noexcept {
    return first_ == 0 &&
           std::all_of(more_.begin(), more_.end(), [](std::uint64_t word) { return word == 0; });
  }
  /// Returns whether a number is in both.
  bool meets(const Bits& other) const noexcept {
    if ((first_ & other.first_) != 0) return true;
    for (std::size_t i = 0; i < std::min(more_.size(), other.more_.size()); ++i)
      if ((more_[i] & other.more_[i]) != 0) return true;
    return false;
  }
  bool is_within(const Bits& other) const noexcept {
    for (std::size_t i = 0; i <= more_.size(); ++i)
      if ((word(i) & ~other.word(i)) != 0) return false;
    return true;
  }
  /// Calls look(number) for each, the lowest first.
  template <class Look>
  void each(Look&& look) const {
    for (std::size_t i = 0; i <= more_.size(); ++i)
      for (std::uint64_t left = word(i); left != 0; left &= left - 1)
        look(i * kWord + static_cast<std::size_t>(std::countr_zero(left)));
  }

 private:
  static constexpr std::size_t kWord = 64;

  std::uint64_t word(std::size_t at) const noexcept {
    if (at == 0) return first_;
    return at <= more_.size() ? more_[at - 1] : 0;
  }

  std::uint64_t first_ = 0;
  std::vector<std::uint64_t> more_;  ///< the bits of the numbers from 64 on
};

}  // namespace onecopy::python::autograd
