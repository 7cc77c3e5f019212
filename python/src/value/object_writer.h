// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>
#include <vector>

#include "array/numpy.h"
#include "torch/torch.h"
#include "value/class_plan.h"
#include "value/hash_cost.h"
#include "value/large_bytes.h"
#include "value/seen_objects.h"
#include "value/small_vector.h"
#include "value/values.h"
#include "value/writer.h"

namespace onecopy::python {

/// Walks over one value, for one call of encode_value().
class ObjectWriter {
 public:
  ObjectWriter(Message& message, const EncodeOptions& options)
      : message_(message), begin_(message.data.size()), out_(message.data), options_(options) {}

  static constexpr std::size_t kUsualObjects = 8;  ///< the usual number of numbered objects in a call

  bool write_all(PyObject* value);
  const TensorCounts& counts() const noexcept { return counts_; }

 private:
  /// A tensor of the CPU or of a card whose elements are copied into a row at the end.
  struct LateCopy {
    std::size_t row;
    nb::object tensor;
    Layout layout;
    Device home;
  };

  /// A str, bytes or bytearray that is copied into a row at the end.
  struct LateRow {
    std::size_t row;
    nb::object object;
    ByteSpan bytes;  ///< empty for a bytearray, whose bytes may move
  };

  /// Writes a value. REQUIRES: the caller holds a reference to the value until write() returns.
  bool write(PyObject* value, int depth);
  bool write_simple(PyObject* value, PyTypeObject* type, bool& known);
  bool write_int(PyObject* value);
  bool write_long_int(PyObject* value);
  bool write_str(PyObject* value, int depth);
  bool write_bytes(PyObject* value);
  bool write_tuple(PyObject* value, int depth);
  bool write_list(PyObject* value, int depth);
  bool write_dict(PyObject* value, int depth);
  bool write_tensor(PyObject* value, int depth);
  bool write_array(PyObject* value, int depth);
  bool write_copy(PyObject* tensor, int depth);
  bool write_card_copy(const torch::TorchTensor& from, int depth);
  bool write_shared(PyObject* tensor, int depth);
  bool write_row(Tensor tensor, std::uint32_t flags);
  bool write_large(PyObject* object, ByteSpan bytes, std::uint8_t flags);
  bool write_other(PyObject* object, int depth);
  bool write_parts(PyObject* object, nb::handle reduced, int depth);
  bool write_planned(PyObject* object, const ClassPlan& plan, int depth);
  bool write_fields(PyObject* object, PyObject* fields, int depth);
  bool write_key(PyObject* key, int depth);
  std::size_t add_numbered() {
    numbered_.emplace_back();
    return numbered_.size() - 1;
  }
  std::size_t size() const noexcept { return message_.data.size() - begin_; }

  /// Numbers the object. If the object was written before, writes a reference to it and returns true.
  bool is_again(PyObject* object);
  /// Marks a container while its items are written. In a call, no container may contain itself; elsewhere a list or
  /// dict may.
  void open(std::size_t number) { numbered_[number].is_open = true; }
  void close(std::size_t number) { numbered_[number].is_open = false; }
  bool is_large(std::size_t size) const noexcept {
    return size >= kLargeBytes && options_.tensors == Tensors::are_copied;
  }
  bool may_contain_itself() const noexcept { return options_.tensors == Tensors::are_shared; }
  void note_sent(PyObject* tensor) {
    if (options_.sent) options_.sent->push_back(nb::borrow(tensor));
  }
  bool cannot(const char* why) const;
  void add_late_copy(const torch::TorchTensor& from, Device home);
  void make_copies();
  Tensor made_copy(const LateCopy& copy);

  /// An object that has a number.
  struct Numbered {
    value::HashCost cost;  ///< the cost of hashing a complete tuple, or an object made of parts
    bool is_open = false;  ///< whether its items are being written, which must not refer to it
  };

  Message& message_;
  const std::size_t begin_;
  value::Writer out_;
  const EncodeOptions& options_;
  std::vector<std::pair<std::size_t, SharedArray>> arrays_;  ///< the arrays by row, copied at the end
  std::vector<LateCopy> copies_;
  std::vector<LateRow> rows_;
  SeenObjects seen_;
  value::SmallVector<Numbered, kUsualObjects> numbered_;  ///< the objects by number
  TensorCounts counts_;
  value::SmallVector<PyObject*, kUsualObjects>
      open_objects_;  ///< the objects whose parts are being written
  bool is_cyclic_ = false;
  value::HashCost cost_;         ///< the cost of the last written value
  std::uint64_t key_parts_ = 0;  ///< the parts of all keys
  bool is_deep_ = false;         ///< whether references nest tuples deeper than kMaxDepth
};

}  // namespace onecopy::python
