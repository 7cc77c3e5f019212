// SPDX-License-Identifier: Apache-2.0
#include "channel/codec/tensor_packer.h"

namespace onecopy {

std::size_t Manifest::bytes() const noexcept {
  std::size_t bytes = encoded_size(order);
  for (const Row& row : rows()) bytes += encoded_size(row.row);
  return bytes;
}

std::byte* Manifest::write(std::byte* out) const noexcept {
  for (const Row& row : rows()) out = encode(row.row, out);
  return order.points.empty() ? out : encode(order, out);
}

std::optional<Manifest> TensorPacker::pack(Session& session, const Departure& departure,
                                           const Limits& limits) {
  std::optional<Manifest> manifest =
      pack_unordered(session, departure.tensors, limits, lookup_.directory().epoch());
  if (manifest && departure.needs_order) manifest->order = order_of(session, departure);
  return manifest;
}

std::optional<Manifest> TensorPacker::pack_unordered(Session& session, std::span<const Tensor> tensors,
                                                     const Limits& limits, std::uint32_t epoch) {
  std::optional<Manifest> manifest(std::in_place, epoch, tensors.size());
  for (const Tensor& tensor : tensors)
    if (!add(session, tensor, limits, *manifest)) {
      manifest.reset();
      break;
    }
  return manifest;  // the only return value, because the compiler would copy a row otherwise
}

/// Adds a tensor to the manifest. Returns false if the creator would have to be asked and may not.
bool TensorPacker::add(Session& session, const Tensor& tensor, const Limits& limits, Manifest& manifest) {
  const auto [group, spot] = session.locate(tensor, "put");
  const std::optional<std::uint16_t> index =
      lookup_.index_of(session, tensor, group, spot.info.segment, limits, manifest.epoch());
  if (!index) [[unlikely]]
    return false;
  Manifest::Row& added = manifest.add(*index, spot, tensor);
  if (*index == kWholeHandle) [[unlikely]] {
    added.handle = encode(session.share(tensor).fields());
    added.row.handle = added.handle;
  }
  return true;
}

void TensorPacker::prepare(Session& session, std::span<const Tensor> tensors, Deadline deadline) {
  for (const Tensor& tensor : tensors) {
    const auto [group, spot] = session.locate(tensor, "put");
    lookup_.index_of(session, tensor, group, spot.info.segment, {deadline}, lookup_.directory().epoch());
  }
}

}  // namespace onecopy
