// SPDX-License-Identifier: Apache-2.0
// Headers of safetensors files: refused, or every byte of the data belongs to exactly one tensor.
// The first two bytes of an input say how many bytes of data the file has; the rest is the JSON.
#include <nlohmann/json.hpp>
#include <set>

#include "core/utf8.h"
#include "fuzz_input.h"
#include "memory/safetensors.h"

namespace onecopy::fuzz {
namespace {

std::optional<SafetensorsHeader> parse(ByteSpan json, std::uint64_t file_size) {
  return accepted({ErrorCode::bad_file, ErrorCode::unsupported},
                  [&] { return parse_safetensors_header(json, file_size); });
}

void check_entry(const SafetensorsEntry& entry, std::uint64_t expected_begin) {
  require(entry.begin == expected_begin, "tensors follow each other without gaps");
  require(entry.end >= entry.begin, "no tensor ends before it begins");
  require(Layout(entry.dtype, entry.shape).nbytes() == entry.end - entry.begin,
          "a tensor has the bytes its shape needs");
  require(is_utf8(entry.name), "names are UTF-8");
}

/// Returns a header with the same names and sizes. All tensors are U8, because the entries do not contain the names of
/// their element types.
std::string written_again(const SafetensorsHeader& header) {
  auto json = nlohmann::ordered_json::object();
  if (!header.metadata.empty()) json["__metadata__"] = header.metadata;
  for (const SafetensorsEntry& entry : header.entries)
    json[entry.name] = {
        {"dtype", "U8"}, {"shape", {entry.end - entry.begin}}, {"data_offsets", {entry.begin, entry.end}}};
  return json.dump();
}

void check_again(const SafetensorsHeader& header, std::uint64_t data_bytes) {
  const std::string json = written_again(header);
  const auto again = parse(std::as_bytes(std::span(json)), 8 + json.size() + data_bytes);
  require(again.has_value(), "what was accepted is accepted again");
  require(again->metadata == header.metadata, "metadata survives");
  require(again->entries.size() == header.entries.size(), "all tensors survive");
  for (std::size_t i = 0; i < header.entries.size(); ++i)
    require(again->entries[i].name == header.entries[i].name, "names survive in their order");
}

void check_header(ByteSpan json, std::uint64_t data_bytes) {
  const auto header = parse(json, 8 + json.size() + data_bytes);
  if (!header) return;
  std::set<std::string> names;
  std::uint64_t at = 0;
  for (const SafetensorsEntry& entry : header->entries) {
    check_entry(entry, at);
    at = entry.end;
    require(names.insert(entry.name).second, "no name comes twice");
  }
  require(at == data_bytes, "every byte belongs to a tensor");
  require(header->data_offset == 8 + json.size(), "the data follows the header");
  check_again(*header, data_bytes);
}

}  // namespace
}  // namespace onecopy::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace onecopy;
  const ByteSpan input = fuzz::span_of(data, size);
  if (size < 2) return 0;
  const ByteSpan json = input.subspan(2);
  fuzz::check_header(json, load<std::uint16_t>(input.data()));
  (void)fuzz::parse(json, load<std::uint16_t>(input.data()));
  (void)fuzz::parse(json, ~std::uint64_t{0});
  return 0;
}
