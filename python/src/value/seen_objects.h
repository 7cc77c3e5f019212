// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "binding/module.h"

namespace onecopy::python {

/// The numbers of the objects that may occur again. The table holds references to the objects, so that no address is
/// reused. Thread safety: used with the GIL held.
class SeenObjects {
 public:
  SeenObjects& operator=(SeenObjects&&) = delete;
  ~SeenObjects() {
    for (const Entry& entry : entries_) Py_XDECREF(entry.object);
  }

  /// Reserves room for `more` objects.
  void reserve(std::size_t more) {
    if (2 * (used_ + more) > entries_.size()) grow(std::bit_ceil(2 * (used_ + more)));
  }

  /// Returns the object's number, or kNew.
  std::uint32_t find(PyObject* object) noexcept {
    if (entries_.empty()) return kNew;
    const Entry& entry = place(object);
    return entry.object ? entry.number : kNew;
  }
  /// Returns the object's number. Gives a new object `number`, and returns kNew.
  std::uint32_t find_or_add(PyObject* object, std::uint32_t number) {
    if (2 * (used_ + 1) > entries_.size()) grow(2 * entries_.size());
    Entry& entry = place(object);
    if (entry.object) return entry.number;
    Py_INCREF(object);
    entry = {object, number};
    ++used_;
    return kNew;
  }
  static constexpr std::uint32_t kNew = ~0U;

 private:
  struct Entry {
    PyObject* object;
    std::uint32_t number;
  };

  Entry& place(const PyObject* object) noexcept {
    const std::size_t mask = entries_.size() - 1;
    std::size_t at = (reinterpret_cast<std::uintptr_t>(object) >> 4) * 0x9e3779b97f4a7c15ULL >> 32;
    while (entries_[at & mask].object && entries_[at & mask].object != object) ++at;
    return entries_[at & mask];
  }

  /// Enlarges the table, whose first entries lie in this object.
  void grow(std::size_t size) {
    if (size <= few_.size()) {
      few_.fill({});
      entries_ = few_;
      return;
    }
    std::vector<Entry> grown(size);
    const std::span<const Entry> old = std::exchange(entries_, grown);
    for (const Entry& entry : old)
      if (entry.object) place(entry.object) = entry;
    many_.swap(grown);
  }

  std::array<Entry, 16> few_;  ///< uninitialised until the first object
  std::vector<Entry> many_;
  std::span<Entry> entries_;  ///< a hash table with open addressing, whose size is a power of two
  std::size_t used_ = 0;
};

}  // namespace onecopy::python
