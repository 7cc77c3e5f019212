// SPDX-License-Identifier: Apache-2.0
#include "store/format/record.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/fields.h"
#include "core/throw_error.h"
#include "core/utf8.h"

namespace onecopy::store {
namespace {

constexpr std::size_t kMaxName = 1024;

bool is_control(char c) noexcept {
  const auto byte = static_cast<unsigned char>(c);
  return byte < 0x20 || byte == 0x7F;
}

[[noreturn]] void refuse_name(const std::string& why) {
  throw_error(ErrorCode::invalid_argument,
              "the name of an object {}; give 1 to {} bytes of text without control characters", why,
              kMaxName);
}

}  // namespace

void check_name(const std::string& name) {
  if (name.empty()) refuse_name("is empty");
  if (name.size() > kMaxName) refuse_name(fmt::format("has {} bytes", name.size()));
  if (!is_utf8(name)) refuse_name("is not UTF-8");
  if (std::any_of(name.begin(), name.end(), is_control)) refuse_name("contains a control character");
}

Bytes encode(const Record& record) { return write_fields(record); }

Record decode_record(ByteSpan bytes) {
  auto record = read_fields<Record>(bytes, ErrorCode::protocol, "a record of the store's index");
  if (record.kind < Record::Kind::publish || record.kind > Record::Kind::abort)
    throw_error(ErrorCode::protocol, "a record of the store's index has the unknown kind {}",
                static_cast<int>(record.kind));
  return record;
}

}  // namespace onecopy::store
