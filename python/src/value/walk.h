// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "binding/module.h"

namespace onecopy::python {

/// An object in a container: under a key of a mapping, or at an index of a list or tuple.
struct Item {
  nb::object object;
  nb::handle key;             ///< null in a list or tuple; kept by the container
  Py_ssize_t index;           ///< in a list or tuple
  PyObject* given = nullptr;  ///< what the object was before the visitor took it
};

/// The place of the container that a walk is in. Its texts are made when they are asked for.
/// Thread safety: used with the GIL held.
class Path {
 public:
  explicit Path(const char* argument) : argument_(argument) {}

  /// Returns whether the item is the whole value, in no container.
  bool is_whole() const noexcept { return is_whole_; }
  /// Returns the keys and indices on the way to the container, e.g. "layers.3"; empty for the whole value.
  std::string name() const;
  /// Appends the last part of an item's name to the name of its container. The whole value has no name.
  void append(std::string& name, const Item& item) const;
  /// Returns the item's place for an error, e.g. `x at "layers.3.weight"`.
  std::string place(const Item& item) const;
  /// Returns the container's place for an error.
  std::string place() const;

 private:
  friend class Walk;

  const char* argument_;
  std::vector<Item> steps_;
  bool is_whole_ = true;
};

/// A visitor of the tensors of a nested value: what a verb does with them.
class Visitor {
 public:
  /// The containers that a walk returns: none; dicts, lists and tuples of exactly these types, the given ones if nothing
  /// in them was replaced, with plain values of exactly their types; or new ones of the given types.
  enum class Makes : std::uint8_t { nothing, plain_types, same_types };

  explicit Visitor(Makes makes) : makes_(makes) {}
  Visitor& operator=(Visitor&&) = delete;
  virtual ~Visitor() = default;

  /// Takes objects that follow each other in one container and are neither containers nor plain values. May replace
  /// them. Throws for an object that the verb does not take.
  virtual void take(std::span<Item> items, const Path& path) = 0;
  /// Returns the tensors of a torch.nn.Module by name, in place of which the walk goes on; None if the verb does not
  /// take modules.
  virtual nb::object tensors_of(nb::handle module, const std::string& place);
  Makes makes() const noexcept { return makes_; }

 private:
  const Makes makes_;
};

/// Walks over a value: mappings, lists, tuples and modules, nested up to 32 deep. Returns the value with the objects
/// that the visitor has replaced. Walks over copies of the containers, which no other thread changes. `argument` names
/// the value in errors. Throws invalid_argument for a value that is nested deeper or contains itself and, if plain types
/// are made, for keys that are not plain values.
nb::object walk(nb::handle value, Visitor& visitor, const char* argument);

/// Returns the parameters and buffers of a module by name. A tensor with two names occurs twice.
nb::object tensors_of_module(nb::handle module);

}  // namespace onecopy::python
