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

/// Encodes Python values as bytes, with the tensors among the values beside the bytes.
/// docs/design/formats/python-message-v1.md describes the format, which src/value writes and reads. An object that
/// occurs twice is one object on the other side, too.
/// Thread safety: all functions are called with the GIL held.
namespace onecopy::python {

/// The treatment of tensors among the values.
enum class Tensors : std::uint8_t {
  are_shared,  ///< torch tensors are moved into shared memory, and both sides use the memory
  /// Copies dense and row-major torch tensors: small tensors of the CPU into the bytes, others into shared memory. A
  /// onecopy.Tensor is sent without a copy.
  are_copied,
};

/// The targets of tensors by their cards.
struct DeviceMap {
  std::vector<std::pair<int, int>> cards{};  ///< (number here, number in the receiver); -1 for the CPU
  bool numbers_agree = false;                ///< whether both processes number the cards of the host alike
  bool is_automatic = false;  ///< whether a card that is not in the map maps to itself if numbers_agree
};

/// Returns the number of the card that tensors of the card `here` go to, or -1 if the card has no target.
int target_of(const DeviceMap& devices, int here);

/// A process that receives copies.
struct Receiver {
  DeviceMap devices{};
  /// The type of objects whose attribute `tensor` is sent by reduce(), or null.
  PyTypeObject* marked = nullptr;
};

/// The numbers of a value's tensors by the way in which they are sent.
struct TensorCounts {
  std::size_t inlined = 0;  ///< copied into the bytes
  std::size_t copied = 0;   ///< copied into memory of their own
  std::size_t lent = 0;     ///< sent without a copy
};

struct EncodeOptions {
  Tensors tensors = Tensors::are_shared;
  const Receiver* receiver = nullptr;  ///< the process that gets the copies
  /// `reduce(object)` returns (kind, part, part, ...) for an object that has no form of its own, and for a tensor that is not
  /// dense, row-major and on a device of the receiver. Its exceptions are thrown by encode_value().
  nb::handle reduce{};
  nb::handle classes{};  ///< the classes whose objects need no reduce(): see ClassPlan
  /// Receives the torch tensors of the value, each once, in the order in which they are complete, so that a sparse
  /// tensor follows its parts.
  std::vector<nb::object>* sent = nullptr;
  TensorCounts* counts = nullptr;
};

/// Appends the value to message.data and message.tensors. Takes None, bool, int, float, complex, str, bytes, tuple, list, dict,
/// torch and onecopy tensors, of exactly these types and nested up to 32 deep.
///
/// Returns false, with the message unspecified, if the value contains another type; with `reduce`, throws TypeError
/// with the reason instead. Copies tensors only after the whole value was found writable. Throws the exceptions of
/// moving a tensor.
bool encode_value(PyObject* value, Message& message, const EncodeOptions& options = {});

/// Returns the tensor that was encoded: a torch tensor with the properties of the flags, or a onecopy.Tensor for no
/// flags. Throws bad_handle for unknown flags.
nb::object open_tensor(const Tensor& tensor, std::uint32_t flags);

/// Makes an object of a tensor and its flags. The bits above the flags hold the number of the tensor's target card plus
/// one, or 0: see card_of().
using TensorOpener = std::function<nb::object(const Tensor& tensor, std::uint32_t flags)>;

/// Returns the number of the target card in these flags, or -1 for a tensor that stays on its device.
constexpr int card_of(std::uint32_t flags) noexcept { return static_cast<int>(flags >> 8) - 1; }

struct DecodeOptions {
  Tensors tensors = Tensors::are_shared;
  nb::handle classes{};  ///< see EncodeOptions
  nb::handle rebuild{};  ///< `rebuild(kind, part, part, ...)` returns the object that `reduce` was given
  std::vector<nb::object>* received =
      nullptr;  ///< receives the torch tensors, in the order of EncodeOptions::sent
};

/// Decodes the value. Throws bad_handle for malformed bytes. REQUIRES: options.tensors is the same as at encoding.
nb::object decode_value(ByteSpan data, std::span<const Tensor> tensors,
                        const TensorOpener& open = open_tensor, const DecodeOptions& options = {});

}  // namespace onecopy::python
