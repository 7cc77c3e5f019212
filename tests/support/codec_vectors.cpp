// SPDX-License-Identifier: Apache-2.0
#include "support/codec_vectors.h"

#include <fmt/format.h>

#include <charconv>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>
#include <stdexcept>

namespace onecopy::test {
namespace {

std::string trimmed(const std::string& text) {
  const auto begin = text.find_first_not_of(" \n");
  if (begin == std::string::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \n") - begin + 1);
}

std::map<std::string, std::string> pairs_of(const std::string& text) {
  std::map<std::string, std::string> pairs;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const auto equals = line.find('=');
    if (equals == std::string::npos) throw std::runtime_error("not key = value: " + line);
    pairs[trimmed(line.substr(0, equals))] = trimmed(line.substr(equals + 1));
  }
  return pairs;
}

std::uint64_t number(const std::string& text) { return std::stoull(text, nullptr, 0); }

std::vector<std::int64_t> numbers(const std::string& text) {
  std::vector<std::int64_t> values;
  std::istringstream parts(text);
  for (std::string part; std::getline(parts, part, ',');) values.push_back(std::stoll(part));
  return values;
}

template <std::size_t N>
void read_bytes(const std::string& hex, std::array<std::uint8_t, N>& out) {
  const Bytes bytes = from_hex(hex);
  if (bytes.size() != N) throw std::runtime_error("wrong number of bytes: " + hex);
  std::memcpy(out.data(), bytes.data(), N);
}

SegmentKind kind_named(const std::string& name) {
  static const std::map<std::string, SegmentKind> kinds{
      {"memfd", SegmentKind::memfd},           {"named_file", SegmentKind::named_file},
      {"cuda_vmm", SegmentKind::cuda_vmm},     {"cuda_ipc", SegmentKind::cuda_ipc},
      {"ascend_key", SegmentKind::ascend_key}, {"ascend_vmm", SegmentKind::ascend_vmm}};
  return kinds.at(name);
}

DeviceType device_named(const std::string& text) {
  for (const DeviceType type : {DeviceType::cpu, DeviceType::cuda, DeviceType::npu})
    if (name(type) == text) return type;
  throw std::runtime_error("no such device type: " + text);
}

Layout layout_of(std::map<std::string, std::string>& pairs) {
  const DType dtype = parse_dtype(pairs.at("dtype")).value();
  return Layout(dtype, numbers(pairs["shape"]), numbers(pairs["strides"]));
}

void set_place(HandleFields& f, const std::string& key, const std::string& value) {
  if (key == "segment") f.segment = static_cast<std::uint32_t>(number(value));
  else if (key == "segment_size") f.segment_size = number(value);
  else if (key == "block") f.block = static_cast<std::uint32_t>(number(value));
  else if (key == "generation") f.generation = number(value);
  else if (key == "storage_size") f.storage_size = number(value);
  else if (key == "tensor_offset") f.tensor_offset = number(value);
  else if (key == "hold") f.hold = number(value);
  else if (key == "flags") f.flags = static_cast<std::uint32_t>(number(value));
  else if (key == "timeline_slot") f.timeline_slot = static_cast<std::uint32_t>(number(value));
  else if (key == "timeline_value") f.timeline_value = number(value);
  else if (key != "name" && key != "dtype" && key != "shape" && key != "strides")
    throw std::runtime_error("unknown key: " + key);
}

void set_field(HandleFields& f, const std::string& key, const std::string& value) {
  if (key == "boot") read_bytes(value, f.boot);
  else if (key == "owner") read_bytes(value, f.owner);
  else if (key == "maker") read_bytes(value, f.maker);
  else if (key == "device") read_bytes(value, f.device.bytes);
  else if (key == "device_type") f.device_type = device_named(value);
  else if (key == "kind") f.kind = kind_named(value);
  else set_place(f, key, value);
}

}  // namespace

const std::string& FormatVector::text(std::string_view kind) const {
  for (const VectorBlock& block : blocks)
    if (block.kind == kind) return block.text;
  throw std::runtime_error(fmt::format("vector '{}' has no {} block", title, kind));
}

std::vector<FormatVector> read_vectors(const std::string& page) {
  std::ifstream file(ONECOPY_SOURCE_DIR "/" + page);
  if (!file) throw std::runtime_error("cannot read " + page);
  std::vector<FormatVector> vectors;
  bool inside = false;
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("### ", 0) == 0) {
      vectors.push_back({line.substr(4), {}});
    } else if (line.rfind("```", 0) == 0) {
      inside = !inside;
      if (inside && !vectors.empty()) vectors.back().blocks.push_back({line.substr(3), ""});
    } else if (inside && !vectors.empty()) {
      vectors.back().blocks.back().text += line + "\n";
    }
  }
  return vectors;
}

HandleFields parse_fields(const std::string& text) {
  auto pairs = pairs_of(text);
  HandleFields f;
  for (const auto& [key, value] : pairs) set_field(f, key, value);
  f.layout = layout_of(pairs);
  return f;
}

std::string value_of(const std::string& text, std::string_view key) {
  return pairs_of(text).at(std::string(key));
}

Bytes from_hex(std::string_view text) {
  std::string digits;
  for (const char c : text)
    if (c != ' ' && c != '\n') digits.push_back(c);
  Bytes bytes;
  for (std::size_t i = 0; i + 2 <= digits.size(); i += 2) {
    unsigned value = 0;
    const auto [end, error] = std::from_chars(&digits[i], &digits[i] + 2, value, 16);
    if (error != std::errc{} || end != &digits[i] + 2)
      throw std::runtime_error("not hexadecimal: " + digits);
    bytes.push_back(static_cast<std::byte>(value));
  }
  return bytes;
}

std::string to_hex(ByteSpan bytes) {
  std::string text;
  for (std::size_t i = 0; i < bytes.size(); ++i)
    text += fmt::format("{:02x}{}", std::to_integer<unsigned>(bytes[i]),
                        i % 16 == 15 || i + 1 == bytes.size() ? "\n" : " ");
  return text;
}

void reseal_handle(Bytes& handle) {
  write_value(handle.data() + 12, std::uint32_t{0});
  write_value(handle.data() + 12, crc32c(handle));
}

void reseal_table(Bytes& table) {
  write_value(table.data() + 8, std::uint32_t{0});
  write_value(table.data() + 12, crc32c(ByteSpan(table).subspan(64)));
  write_value(table.data() + 8, crc32c(ByteSpan(table).first(64)));
}

HandleFields sample_fields() {
  HandleFields f;
  for (std::size_t i = 0; i < 16; ++i) {
    f.owner[i] = static_cast<std::uint8_t>(0x10 + i);
    f.maker[i] = static_cast<std::uint8_t>(0x30 + i);
  }
  f.boot = {1, 2, 3, 4, 5, 6, 7, 8};
  f.segment = 7;
  f.segment_size = 1 << 26;
  f.block = 4711;
  f.generation = 99;
  f.storage_size = 4096;
  f.tensor_offset = 128;
  const std::int64_t shape[] = {3, 5};
  const std::int64_t strides[] = {16, 2};
  f.layout = Layout(DType::f32, shape, strides);
  return f;
}

}  // namespace onecopy::test
