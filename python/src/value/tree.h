// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "binding/no_collection.h"
#include "value/seen_objects.h"
#include "value/walk.h"

namespace onecopy::python {

/// Says what is copied: memory that cannot be shared in place, and memory of a module on a card that would end with the
/// process; only the former; or everything.
enum class Copy : std::uint8_t { as_needed, no, all };

/// A value converted for sharing: a single array, or a mapping, list, tuple or torch.nn.Module, which may contain arrays.
/// The value contains only types that encode_value() takes; each array is a separate object, named by its place, e.g.
/// "layers.3.weight".
/// Thread safety: used with the GIL held.
class Tree final : private Visitor {
 public:
  /// Converts a value. Throws as walk() and refuse().
  Tree(nb::handle x, Copy copy);

  struct Leaf {
    std::string name;
    nb::object array;
  };
  struct OtherName {
    std::string name;
    std::uint32_t leaf;
  };
  /// Returns whether the value is more than a single array.
  bool is_nested() const noexcept { return leaves_.empty() || !value_.is(leaves_[0].array); }
  nb::handle value() const { return value_; }
  /// Returns the leaves in the order in which encode_value() meets them.
  const std::vector<Leaf>& leaves() const { return leaves_; }
  std::string take_name(std::size_t leaf) { return std::move(leaves_[leaf].name); }
  /// Enables Python's garbage collector again. Called when all objects of a large tree have been made.
  void let_collect() noexcept { no_collection_.end(); }
  /// Returns the further places of arrays that occur more than once.
  const std::vector<OtherName>& other_names() const { return other_names_; }

 private:
  void take(std::span<Item> items, const Path& path) override;
  nb::object tensors_of(nb::handle module, const std::string& place) override;
  void make_room_for(std::size_t more);

  const Copy copy_;
  std::vector<Leaf> leaves_;
  std::vector<OtherName> other_names_;
  NoCollection no_collection_;  ///< active once there are many leaves
  SeenObjects seen_;            ///< the leaves by the caller's object
  nb::object value_;
};

}  // namespace onecopy::python
