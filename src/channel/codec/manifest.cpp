// SPDX-License-Identifier: Apache-2.0
#include "channel/codec/manifest.h"

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

}  // namespace onecopy
