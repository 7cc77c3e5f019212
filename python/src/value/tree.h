// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "binding/module.h"
#include "binding/no_collection.h"
#include "value/seen_objects.h"

namespace onecopy::python {

/// Returns the object for one array in a shared value: a plain torch tensor, or a onecopy.Tensor in shared memory; with
/// `copy` in new memory. Returns an invalid object if x is not an array. Throws unsupported, naming `argument`, for
/// arrays that cannot be shared. REQUIRES: the GIL.
nb::object shareable_array(nb::handle x, bool copy, const std::string& argument);

/// Says what is copied: memory that cannot be shared in place, and memory of a module on a card that would end with the
/// process; only the former; or everything.
enum class Copy : std::uint8_t { as_needed, no, all };

/// A value converted for sharing: a single array, or a dict, list, tuple or torch.nn.Module, which may contain arrays.
/// The value contains only types that encode_value() takes; each array is a separate object, named by its place, e.g.
/// "layers.3.weight".
/// Thread safety: used with the GIL held.
class Tree {
 public:
  /// Converts a value. Throws invalid_argument with the place of an object that cannot be shared, and TypeError if the
  /// value is none.
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
  nb::object walk(nb::handle x, int depth);
  nb::object walk_dict(nb::handle x, int depth);
  nb::object walk_sequence(nb::handle x, bool is_tuple, int depth);
  nb::object leaf(nb::handle x, int depth);
  nb::object array(nb::handle x, bool is_torch);
  /// Reserves memory, since growing it by doubling would cost a fifth of the walk.
  void make_room_for_many();
  std::string place() const;
  [[noreturn]] void refuse(const std::string& problem) const;
  /// Adds a part to the path for its own lifetime.
  class Step;

  const bool copy_;
  const bool moves_modules_;
  std::string path_;              ///< the name of the current place
  std::size_t max_together_ = 0;  ///< the size of the largest dict, list or tuple
  std::vector<Leaf> leaves_;
  std::vector<OtherName> other_names_;
  NoCollection no_collection_;  ///< active once there are many leaves
  SeenObjects seen_;            ///< the leaves by the caller's object
  nb::object value_;
};

}  // namespace onecopy::python
