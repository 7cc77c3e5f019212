// SPDX-License-Identifier: Apache-2.0
#include "safetensors_json.h"

#include <fmt/format.h>

#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "core/throw_error.h"
#include "safetensors_dtype.h"

namespace onecopy {

void refuse_safetensors(const std::string& why) {
  throw Error(ErrorCode::bad_file, "this is not a valid safetensors file: " + why);
}

namespace {

/// A reader that takes the JSON piece by piece, so that nothing unneeded is kept, keys that occur twice are seen, and
/// nesting cannot go deeper than the format.
///
/// The levels are 1 for the file, 2 for a tensor or the metadata, 3 for an array of a tensor.
class HeaderReader final : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit HeaderReader(SafetensorsHeader& header) : header_(header) {}

  bool start_object(std::size_t) override;
  bool key(string_t& text) override;
  bool end_object() override;
  bool start_array(std::size_t) override;
  bool end_array() override;
  bool string(string_t& text) override;
  bool number_unsigned(number_unsigned_t value) override;
  bool number_integer(number_integer_t value) override { unexpected(std::to_string(value)); }
  bool number_float(number_float_t, const string_t& text) override { unexpected(printable(text)); }
  bool null() override { unexpected("null"); }
  bool boolean(bool value) override { unexpected(value ? "true" : "false"); }
  bool binary(binary_t&) override { unexpected("binary data"); }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception& error) override {
    const std::string_view why = error.what();
    const bool encoding = why.find("UTF-8") != std::string_view::npos;
    refuse_safetensors(
        fmt::format("its header is not {}: {}", encoding ? "UTF-8" : "JSON", printable(why)));
  }

 private:
  static constexpr const char* kMetadata = "__metadata__";

  [[noreturn]] void unexpected(const std::string& what) const {
    refuse_safetensors(fmt::format("{} where {} belongs{}", what, expected(), place()));
  }
  const char* expected() const;
  std::string place() const;
  void finish_tensor();
  SafetensorsEntry& entry() { return header_.entries.back(); }

  SafetensorsHeader& header_;
  int level_ = 0;
  bool in_metadata_ = false;
  std::unordered_set<std::string> names_;
  std::string field_;  // the last key of level 2
  bool has_dtype_ = false;
  bool has_shape_ = false;
  std::vector<std::uint64_t> offsets_;
};

const char* HeaderReader::expected() const {
  if (level_ == 0) return "an object of tensors";
  if (level_ == 1) return "an object";
  if (level_ == 3) return "an integer that is not negative";
  return in_metadata_ || field_ == "dtype" ? "a string" : "an array of integers";
}

std::string HeaderReader::place() const {
  if (level_ == 0 || (level_ == 1 && names_.empty())) return "";
  if (in_metadata_) return fmt::format(" in {}", kMetadata);
  return header_.entries.empty() ? ""
                                 : fmt::format(" in tensor \"{}\"", printable(header_.entries.back().name));
}

bool HeaderReader::start_object(std::size_t) {
  if (level_ > 1) unexpected("an object");
  ++level_;
  return true;
}

bool HeaderReader::key(string_t& text) {
  if (level_ == 1) {
    if (!names_.insert(text).second)
      refuse_safetensors(fmt::format("the name \"{}\" comes twice", printable(text)));
    in_metadata_ = text == kMetadata;
    if (!in_metadata_) {
      header_.entries.emplace_back();
      entry().name = text;
      has_dtype_ = has_shape_ = false;
      offsets_.clear();
    }
    return true;
  }
  field_ = text;
  if (in_metadata_) {
    if (!header_.metadata.emplace(text, "").second)
      refuse_safetensors(fmt::format("the key \"{}\" comes twice in {}", printable(text), kMetadata));
  } else if (text != "dtype" && text != "shape" && text != "data_offsets") {
    refuse_safetensors(fmt::format("unknown field \"{}\"{}", printable(text), place()));
  } else if ((text == "dtype" && has_dtype_) || (text == "shape" && has_shape_) ||
             (text == "data_offsets" && !offsets_.empty())) {
    refuse_safetensors(fmt::format("the field \"{}\" comes twice{}", text, place()));
  }
  return true;
}

bool HeaderReader::end_object() {
  if (level_ == 2 && !in_metadata_) finish_tensor();
  --level_;
  return true;
}

void HeaderReader::finish_tensor() {
  const char* missing = !has_dtype_        ? "dtype"
                        : !has_shape_      ? "shape"
                        : offsets_.empty() ? "data_offsets"
                                           : nullptr;
  if (missing) refuse_safetensors(fmt::format("no \"{}\"{}", missing, place()));
  entry().begin = offsets_[0];
  entry().end = offsets_[1];
}

bool HeaderReader::start_array(std::size_t) {
  if (level_ != 2 || in_metadata_ || field_ == "dtype") unexpected("an array");
  ++level_;
  if (field_ == "shape") has_shape_ = true;
  return true;
}

bool HeaderReader::end_array() {
  --level_;
  if (field_ == "data_offsets" && offsets_.size() != 2)
    refuse_safetensors(fmt::format("{} data_offsets where two are expected{}", offsets_.size(), place()));
  return true;
}

bool HeaderReader::string(string_t& text) {
  if (level_ != 2 || (!in_metadata_ && field_ != "dtype")) unexpected("a string");
  if (in_metadata_) {
    header_.metadata[field_] = text;
    return true;
  }
  const auto dtype = parse_safetensors_dtype(text);
  if (!dtype && is_known_safetensors_dtype(text))
    throw_error(ErrorCode::unsupported,
                "elements of type {} are smaller than a byte, which onecopy cannot hold{}", text, place());
  if (!dtype) refuse_safetensors(fmt::format("unknown dtype \"{}\"{}", printable(text), place()));
  entry().dtype = *dtype;
  has_dtype_ = true;
  return true;
}

bool HeaderReader::number_unsigned(number_unsigned_t value) {
  if (level_ != 3) unexpected(std::to_string(value));
  if (field_ == "shape") {
    if (value > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
      refuse_safetensors(fmt::format("the size {} is too large{}", value, place()));
    if (entry().shape.size() == kMaxDims)
      refuse_safetensors(fmt::format("more than {} dimensions{}", kMaxDims, place()));
    entry().shape.push_back(static_cast<std::int64_t>(value));
  } else if (offsets_.size() < 2) {
    offsets_.push_back(value);
  } else {
    refuse_safetensors(fmt::format("more than two data_offsets{}", place()));
  }
  return true;
}

}  // namespace

std::string printable(std::string_view text) {
  constexpr std::size_t kMax = 120;
  std::string out;
  for (const char c : text.substr(0, kMax)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte >= 0x7f) out += fmt::format("\\x{:02x}", byte);
    else out += c;
  }
  return text.size() > kMax ? out + "..." : out;
}

void parse_safetensors_json(ByteSpan json, SafetensorsHeader& header) {
  const auto* text = reinterpret_cast<const char*>(json.data());
  if (json.empty() || text[0] != '{') refuse_safetensors("its header does not start with {");
  // The parser would take a NUL for the end and ignore the bytes after it.
  if (std::memchr(text, 0, json.size()))
    refuse_safetensors("its header is not JSON: it contains a NUL byte");
  HeaderReader reader(header);
  nlohmann::json::sax_parse(text, text + json.size(), &reader);
}

}  // namespace onecopy
