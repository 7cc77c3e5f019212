// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "onecopy/core/api.h"
#include "onecopy/memory/block.h"
#include "onecopy/share/handle_fields.h"

ONECOPY_API_BEGIN
namespace onecopy {

/// The data with which another process opens a tensor, or a bundle of tensors.
///
/// A handle made by share() keeps its block alive while the handle lives. Its bytes or text keep nothing alive, unless
/// hold() made the handle: they can be opened while any process holds the tensor, and throw stale_handle afterwards.
/// Thread safety: as a value.
class Handle {
 public:
  Handle() = default;
  /// Constructs a handle of these fields. `keep` may be empty.
  Handle(HandleFields fields, BlockRef keep) noexcept
      : fields_(std::move(fields)), keep_(std::move(keep)) {}

  const HandleFields& fields() const noexcept { return fields_; }
  /// Returns the block that this handle keeps alive; empty if the handle was read from bytes or text.
  const BlockRef& block() const noexcept { return keep_; }
  const Layout& layout() const noexcept { return fields_.layout; }
  bool is_bundle() const noexcept { return fields_.is_bundle(); }

  Bytes to_bytes() const { return encode(fields_); }
  /// Decodes the bytes of to_bytes(). Throws bad_handle or version_mismatch. Only open() finds out whether the tensor
  /// can still be opened.
  static Handle from_bytes(ByteSpan bytes) { return Handle(bytes); }
  /// Returns "onecopy:...", for command lines and environment variables.
  std::string to_text() const;
  static Handle from_text(std::string_view text);

 private:
  explicit Handle(ByteSpan bytes) : fields_(decode_handle(bytes)) {}

  HandleFields fields_;
  BlockRef keep_;
};

}  // namespace onecopy
ONECOPY_API_END
