// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "binding/module.h"
#include "onecopy/channel/queue.h"
#include "onecopy/core/bytes.h"
#include "onecopy/memory/tensor.h"

/// The bytes of Python values, with the tensors among them beside the bytes. The format is in docs/design/formats/python-message-v1.md;
/// src/value writes and reads it. Objects that occur twice are one object on the other side too.
/// Thread safety: all functions are called with the GIL held.
namespace onecopy::python {

/// The treatment of tensors among the values.
enum class Tensors : std::uint8_t {
  are_shared,  ///< torch tensors are moved into shared memory, and both sides have them
  /// Copies dense and row-major torch tensors: small ones of the CPU into the bytes, others once into shared memory.
  /// A onecopy.Tensor crosses without a copy.
  are_copied,
};

/// The targets of tensors by their cards.
struct DeviceMap {
  std::vector<std::pair<int, int>> cards{};  ///< (number of the card here, number there); the CPU is -1
  bool numbers_agree = false;                ///< whether both processes number the cards of the host alike
  bool is_automatic = false;                 ///< whether a card that is not in the map is meant itself then
};

/// A process that gets copies.
struct Receiver {
  DeviceMap devices{};
  /// The type of objects whose attribute `tensor` crosses in a special way; null: there is none.
  PyTypeObject* marked = nullptr;
};

/// Tensors of a value by what became of them.
struct TensorCounts {
  std::size_t inlined = 0;  ///< copied into the bytes
  std::size_t copied = 0;   ///< copied into memory of their own
  std::size_t lent = 0;     ///< of which no byte was copied
};

struct EncodeOptions {
  Tensors tensors = Tensors::are_shared;
  const Receiver* receiver = nullptr;  ///< where copies go
  /// `reduce(object)` returns (kind, part, part, ...) for an object that has no form of its own, and for a tensor that is not
  /// dense, row-major and on a device of the receiver. Its exceptions are thrown by encode_value().
  nb::handle reduce{};
  nb::handle classes{};  ///< the classes whose objects need no reduce(): see ClassPlan
  /// Gets the torch tensors of the value, each once, in the order in which they are complete: a sparse tensor behind its parts.
  std::vector<nb::object>* sent = nullptr;
  TensorCounts* counts = nullptr;
};

/// Appends the value to message.data and message.tensors. Takes None, bool, int, float, complex, str, bytes, tuple, list, dict,
/// torch and onecopy tensors, of exactly these types and nested up to 32 deep.
///
/// For a value that contains something else returns false, with the message unspecified; with `reduce` it never does, and
/// throws TypeError with the reason instead. Tensors are copied once it is known that all of the value can be written. Throws
/// the exceptions of moving a tensor.
bool encode_value(PyObject* value, Message& message, const EncodeOptions& options = {});

/// A tensor as it was before encoding: a torch tensor with the flags' properties, or for no flags a
/// onecopy.Tensor. Throws bad_handle for flags that do not exist.
nb::object open_tensor(const Tensor& tensor, std::uint32_t flags);

/// Makes an object of a tensor and its flags. For a tensor that is for a card, the number of the card and one more are
/// above the flags: see card_of().
using TensorOpener = std::function<nb::object(const Tensor& tensor, std::uint32_t flags)>;

/// The number of the card that a tensor with these flags is for; -1: it stays where it is.
constexpr int card_of(std::uint32_t flags) noexcept { return static_cast<int>(flags >> 8) - 1; }

struct DecodeOptions {
  Tensors tensors = Tensors::are_shared;
  nb::handle classes{};  ///< as in EncodeOptions
  nb::handle rebuild{};  ///< `rebuild(kind, part, part, ...)` returns the object that `reduce` was given
  std::vector<nb::object>* received =
      nullptr;  ///< gets the torch tensors, in the order of EncodeOptions::sent
};

/// Decodes the value. Throws bad_handle for bytes that encode_value() does not write. REQUIRES: a value that was
/// written with copies is read with them.
nb::object decode_value(ByteSpan data, std::span<const Tensor> tensors,
                        const TensorOpener& open = open_tensor, const DecodeOptions& options = {});

/// The Tensor inside a onecopy.Tensor; null for all other objects.
const Tensor* as_onecopy_tensor(PyObject* object);

}  // namespace onecopy::python
