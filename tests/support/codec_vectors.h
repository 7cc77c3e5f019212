// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "onecopy/core/bytes.h"
#include "onecopy/share/handle_fields.h"

/// Test vectors as docs/design/formats/*.md holds them: under a "### title", fenced blocks with a kind, such
/// as ```fields and ```hex.
namespace onecopy::test {

struct VectorBlock {
  std::string kind;
  std::string text;
};

struct FormatVector {
  std::string title;
  std::vector<VectorBlock> blocks;

  /// The text of the only block of this kind; throws when there is none.
  const std::string& text(std::string_view kind) const;
};

/// `page` relative to the source folder.
std::vector<FormatVector> read_vectors(const std::string& page);

/// "key = value" lines; keys that are absent keep their defaults. Throws on an unknown key.
HandleFields parse_fields(const std::string& text);
/// The value of one key.
std::string value_of(const std::string& text, std::string_view key);

Bytes from_hex(std::string_view text);
/// Lines of 16 bytes, as on the pages.
std::string to_hex(ByteSpan bytes);

/// Writes the handle's checksum anew, after a test has changed its bytes.
void reseal_handle(Bytes& handle);
/// Both checksums of a bundle's table.
void reseal_table(Bytes& table);

/// A handle that uses most fields: 2-d float32 with odd strides on the CPU.
HandleFields sample_fields();

}  // namespace onecopy::test
