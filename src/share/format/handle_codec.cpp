// SPDX-License-Identifier: Apache-2.0
// docs/design/formats/handle-v1.md describes the bytes of a handle.
#include <fmt/format.h>

#include <cctype>
#include <cstring>
#include <utility>

#include "core/base64.h"
#include "core/throw_error.h"
#include "onecopy/share/handle_fields.h"
#include "share/format/field_checks.h"

namespace onecopy {
namespace {

constexpr char kHandleMagic[6] = {'1', 'C', 'O', 'P', 'Y', '\0'};
constexpr std::uint16_t kHandleVersion = 1;
constexpr std::string_view kTextPrefix = "onecopy:";
constexpr std::uint32_t kKnownFlags = kHandleIsBundle | kHandleIsReadOnly | kHandleIsQueue;
constexpr Subject kHandle{};

struct HandleHeader {
  char magic[6];
  std::uint16_t version;
  std::uint32_t length;
  std::uint32_t crc;
  BootId boot;
  ProcessId owner;
  ProcessId maker;
  Uuid device;
  std::uint8_t device_type;
  std::uint8_t kind;
  std::uint8_t dtype;
  std::uint8_t ndim;
  std::uint32_t segment;
  std::uint64_t segment_size;
  std::uint32_t block;
  std::uint32_t flags;
  std::uint64_t generation;
  std::uint64_t storage_size;
  std::uint64_t tensor_offset;
  std::uint64_t hold;
};
static_assert(sizeof(HandleHeader) == 128 && std::is_trivially_copyable_v<HandleHeader>);
static_assert(std::has_unique_object_representations_v<HandleHeader>, "no padding may travel");

constexpr std::size_t kHandleDimSize = 16;
constexpr std::uint16_t kMustUnderstand = 1;
constexpr std::uint16_t kTimelineTag = 1;

struct PartHeader {
  std::uint16_t tag;
  std::uint16_t flags;
  std::uint32_t length;  ///< the number of bytes that follow the header
};
static_assert(sizeof(PartHeader) == 8);

struct TimelinePart {
  std::uint32_t slot;
  std::uint32_t reserved;
  std::uint64_t value;
};
static_assert(sizeof(TimelinePart) == 16);

bool has_timeline(const HandleFields& f) noexcept { return f.timeline_slot != 0 || f.timeline_value != 0; }

HandleHeader handle_header_of(const HandleFields& f, std::size_t length) noexcept {
  HandleHeader h;
  std::memcpy(h.magic, kHandleMagic, sizeof kHandleMagic);
  h.version = kHandleVersion;
  h.length = static_cast<std::uint32_t>(length);
  h.crc = 0;
  h.boot = f.boot;
  write_segment(f, h);
  write_block(f, h);
  h.hold = f.hold;
  return h;
}

[[noreturn]] void refuse_start(ByteSpan bytes) {
  if (bytes.size() >= kTextPrefix.size() &&
      std::memcmp(bytes.data(), kTextPrefix.data(), kTextPrefix.size()) == 0)
    refuse(kHandle, "is in its text form; turn it into bytes with from_text first");
  if (bytes.size() < sizeof(HandleHeader))
    refuse(kHandle, "is cut off: it has {} bytes, and the header alone has {}", bytes.size(),
           sizeof(HandleHeader));
  throw Error(ErrorCode::bad_handle, "These bytes are not a handle: they do not begin with \"1COPY\".");
}

[[noreturn]] void refuse_version(std::uint16_t version) {
  throw_error(ErrorCode::version_mismatch,
              "This handle has format version {}, this program reads version {}: use the same version of "
              "onecopy on both sides.",
              version, kHandleVersion);
}

/// Returns the header after checking its version, length and checksum. Reports the version before the length, since
/// another version may have another header.
HandleHeader checked_handle_header(ByteSpan bytes) {
  if (bytes.size() < offsetof(HandleHeader, length) ||
      std::memcmp(bytes.data(), kHandleMagic, sizeof kHandleMagic) != 0)
    refuse_start(bytes);
  if (const auto version = load<std::uint16_t>(bytes.data() + offsetof(HandleHeader, version));
      version != kHandleVersion)
    refuse_version(version);
  if (bytes.size() < sizeof(HandleHeader)) refuse_start(bytes);
  HandleHeader h;
  copy_once(&h, bytes.data(), sizeof h);
  if (h.length != bytes.size())
    refuse(kHandle, "says that it has {} bytes, but {} are here: it was cut off or something was appended",
           h.length, bytes.size());
  if (h.length > kMaxHandleBytes)
    refuse(kHandle, "has {} bytes; the most is {}", h.length, kMaxHandleBytes);
  const std::uint32_t crc = std::exchange(h.crc, 0);
  const std::uint32_t head = crc32c(std::as_bytes(std::span(&h, 1)));
  if (const std::uint32_t actual = crc32c(bytes.subspan(sizeof h), head); actual != crc)
    refuse(kHandle, "is damaged: its checksum is {:08x}, it should be {:08x}; ask its maker for it again",
           actual, crc);
  return h;
}

void read_timeline(const PartHeader& part, const std::byte* bytes, HandleFields& f) {
  TimelinePart timeline;
  if (part.length != sizeof timeline || part.flags != kMustUnderstand)
    refuse(kHandle, "has a timeline part of {} bytes with flags {}; it should be {} bytes with flags {}",
           part.length, part.flags, sizeof timeline, kMustUnderstand);
  if (has_timeline(f)) refuse(kHandle, "has two timeline parts");
  copy_once(&timeline, bytes, sizeof timeline);
  if (timeline.reserved != 0)
    refuse(kHandle, "has {} in the reserved bytes of its timeline part", timeline.reserved);
  if (timeline.value > kMaxHandleGeneration)
    refuse(kHandle, "waits for timeline value {}; values have 62 bits", timeline.value);
  f.timeline_slot = timeline.slot;
  f.timeline_value = timeline.value;
  if (!has_timeline(f)) refuse(kHandle, "has a timeline part that names nothing to wait for");
}

void read_parts(ByteSpan bytes, HandleFields& f) {
  while (!bytes.empty()) {
    PartHeader part;
    if (bytes.size() < sizeof part) refuse(kHandle, "has {} stray bytes after its last part", bytes.size());
    copy_once(&part, bytes.data(), sizeof part);
    bytes = bytes.subspan(sizeof part);
    if (part.length > bytes.size())
      refuse(kHandle, "has a part with tag {} of {} bytes where only {} are left", part.tag, part.length,
             bytes.size());
    if ((part.flags & ~kMustUnderstand) != 0)
      refuse(kHandle, "has unknown flags {:#x} on its part with tag {}", part.flags, part.tag);
    if (part.tag == kTimelineTag) read_timeline(part, bytes.data(), f);
    else if (part.flags & kMustUnderstand)
      throw_error(ErrorCode::version_mismatch,
                  "This handle has a part with tag {} that must be understood and that this program does "
                  "not know: use the same version of onecopy on both sides.",
                  part.tag);
    bytes = bytes.subspan(part.length);
  }
}

constexpr std::string_view kSpace = " \t\r\n\v\f";

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

}  // namespace

Bytes encode(const HandleFields& f) {
  std::byte out[kMaxHandleBytes];  // on the stack, because a vector would be filled with zeros first
  std::byte* end = out + sizeof(HandleHeader) + kHandleDimSize * f.layout.ndim();
  store_dims(f.layout, out + sizeof(HandleHeader));
  if (has_timeline(f)) {
    write_value(end, PartHeader{kTimelineTag, kMustUnderstand, sizeof(TimelinePart)});
    write_value(end + sizeof(PartHeader), TimelinePart{f.timeline_slot, 0, f.timeline_value});
    end += sizeof(PartHeader) + sizeof(TimelinePart);
  }
  write_value(out, handle_header_of(f, static_cast<std::size_t>(end - out)));
  write_value(out + offsetof(HandleHeader, crc), crc32c(ByteSpan(out, end)));
  return {out, end};
}

HandleFields decode_handle(ByteSpan bytes) {
  const HandleHeader h = checked_handle_header(bytes);
  HandleFields f;
  read_segment(kHandle, h, f);
  f.boot = h.boot;
  read_block(kHandle, h, kKnownFlags, f);
  f.hold = h.hold;
  const ByteSpan rest = bytes.subspan(sizeof h);
  if (rest.size() < kHandleDimSize * h.ndim)
    refuse(kHandle, "has {} dimensions but only {} bytes for them", h.ndim, rest.size());
  f.layout = checked_layout(kHandle, h.dtype, h.ndim, rest.data(), h.tensor_offset, h.storage_size);
  read_parts(rest.subspan(kHandleDimSize * h.ndim), f);
  return f;
}

std::string to_text(ByteSpan handle) {
  std::string text(kTextPrefix);
  append_base64url(handle, text);
  return text;
}

namespace {

std::string shown(char c) {
  return c > ' ' && c <= '~' ? fmt::format("\"{}\"", c)
                             : fmt::format("(code {})", static_cast<unsigned char>(c));
}

bool is_digit(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_'; }

/// Returns the length of the handle that begins with `digits`, if they contain it; 0 if they are not the beginning of a
/// handle.
std::size_t announced_bytes(std::string_view digits) {
  constexpr std::string_view kMagicAndVersion = "MUNPUFkAAQ";
  constexpr std::size_t kUntilLength = 16;  // the digits of 12 bytes
  if (digits.substr(0, kMagicAndVersion.size()) != kMagicAndVersion) return 0;
  if (digits.size() < kUntilLength) return sizeof(HandleHeader);
  Bytes start;
  decode_base64url(digits.substr(0, kUntilLength), start);
  if (start.size() < offsetof(HandleHeader, crc)) return 0;
  const auto length = load<std::uint32_t>(start.data() + offsetof(HandleHeader, length));
  return length <= kMaxHandleBytes ? length : 0;
}

/// Throws if a part of the text is missing, as happens when a long line is copied from a terminal.
void check_whole(std::string_view digits) {
  const std::size_t before = kTextPrefix.size();
  if (const std::size_t space = digits.find_first_of(kSpace); space != std::string_view::npos)
    refuse(kHandle, "has white space at position {} of its text, which is one word: join its parts",
           before + space);
  const std::size_t whole = (announced_bytes(digits) * 4 + 2) / 3;
  if (digits.size() < whole)
    refuse(kHandle,
           "is cut off or was changed: its text has {} characters and begins like one "
           "of {}; copy the whole line",
           before + digits.size(), before + whole);
}

}  // namespace

Bytes from_text(std::string_view text) {
  text = trimmed(text);
  if (text.substr(0, kTextPrefix.size()) != kTextPrefix)
    throw Error(
        ErrorCode::bad_handle,
        text.empty()
            ? "The text of a handle is empty."
            : fmt::format("This is not the text of a handle: it does not begin with \"{}\".{}", kTextPrefix,
                          text.starts_with("<onecopy.Handle") ? " str(handle) returns the text."
                          : text.ends_with(".safetensors") || text.ends_with(".npy")
                              ? " load() and load_npy() read files."
                              : ""));
  text.remove_prefix(kTextPrefix.size());
  if (text.size() > (kMaxHandleBytes * 4 + 2) / 3)
    refuse(kHandle, "has a text of {} characters, more than any handle", text.size());
  check_whole(text);
  Bytes bytes;
  const std::size_t bad = decode_base64url(text, bytes);
  if (bad != std::string_view::npos && bad + 1 == text.size() && is_digit(text[bad]))
    refuse(kHandle,
           "has a text of {} characters, which ends in the middle of a byte at "
           "position {}: it was cut off or changed on its way",
           kTextPrefix.size() + text.size(), bad + kTextPrefix.size());
  if (bad != std::string_view::npos)
    refuse(kHandle,
           "has a text with an impossible character {} at position {}: it was cut off "
           "or changed on its way",
           shown(text[bad]), bad + kTextPrefix.size());
  return bytes;
}

}  // namespace onecopy
