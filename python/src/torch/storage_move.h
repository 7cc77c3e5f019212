// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "onecopy/memory/tensor.h"
#include "torch/torch_api.h"

/// Moves storages of torch on the CPU into memory of onecopy. Thread safety: all functions are called with the GIL held.
namespace onecopy::python::torch {

/// Counts how storages came into shared memory.
struct Counters {
  std::uint64_t moved = 0;           ///< copied once and exchanged in place
  std::uint64_t moved_by_torch = 0;  ///< torch made a file for it, which we adopted: a descriptor each
  std::uint64_t adopted = 0;         ///< torch had it in shared memory already
};
inline Counters counters;

/// The current memory of a storage, or of the elements of a tensor.
struct Range {
  std::byte* begin;
  std::size_t size;
  bool operator==(const Range&) const = default;
};

inline Range range_of(const TorchSymbols& torch, nb::handle storage) {
  return {torch.data(storage), torch.nbytes(storage)};
}

inline Layout row_of_bytes(std::size_t count) {
  return Layout(DType::u8, {static_cast<std::int64_t>(count)});
}

/// Returns the block of a storage, which this thread or a faster one moves. REQUIRES: no block is known for it.
Tensor moved_block(const TorchSymbols& torch, nb::handle storage, Range range);

/// Moves a tensor that is the only user of its storage to a new storage in memory of onecopy, for torch before 2.12,
/// which cannot exchange memory. Empty if other code may use the storage or changes it during the copy, since many of
/// torch's methods let other threads run. REQUIRES: the tensor is on the CPU.
std::optional<Tensor> move_alone(const TorchTensor& tensor);

}  // namespace onecopy::python::torch
