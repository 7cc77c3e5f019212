// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "onecopy/memory/block.h"
#include "onecopy/share/handle_fields.h"

namespace onecopy {

/// The bytes that travel: enough to open a tensor, or a bundle of them, in another process.
///
/// A handle made by share() keeps its block alive while it lives. Bytes or text written down hold nothing, unless
/// hold() made the handle: opening them works while any process keeps the tensor, and throws stale_handle afterwards.
/// Thread safety: as a value.
class Handle {
 public:
  Handle() = default;
  /// `keep` may be empty.
  Handle(HandleFields fields, BlockRef keep) noexcept
      : fields_(std::move(fields)), keep_(std::move(keep)) {}

  const HandleFields& fields() const noexcept { return fields_; }
  /// The block that this handle keeps alive; none if it was read from bytes or text.
  const BlockRef& block() const noexcept { return keep_; }
  const Layout& layout() const noexcept { return fields_.layout; }
  bool is_bundle() const noexcept { return fields_.is_bundle(); }

  Bytes to_bytes() const { return encode(fields_); }
  /// Throws bad_handle or version_mismatch. Only open() tells whether it can be opened.
  static Handle from_bytes(ByteSpan bytes);
  /// Returns "onecopy:...", for command lines and environment variables.
  std::string to_text() const;
  static Handle from_text(std::string_view text);

 private:
  HandleFields fields_;
  BlockRef keep_;
};

}  // namespace onecopy
