// SPDX-License-Identifier: Apache-2.0
#include "memory/safetensors.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <set>

#include "onecopy/core/error.h"
#include "os/file.h"
#include "os/memfd.h"
#include "safetensors_json.h"

namespace onecopy {
namespace {

using Json = nlohmann::json;

constexpr const char* kMap = "weight_map";

[[noreturn]] void refuse_index(const std::string& why) {
  throw Error(ErrorCode::bad_file, "this is not a valid safetensors index: " + why);
}

std::string read_text(const Fd& file) {
  const std::uint64_t size = file_size(file);
  if (size > kMaxSafetensorsHeader)
    refuse_index(fmt::format("it has {} bytes; at most {} are allowed", size, kMaxSafetensorsHeader));
  std::string text(size, '\0');
  read_exactly(file, std::as_writable_bytes(std::span(text)), 0);
  return text;
}

/// A check that refuses equal keys and deep nesting. The parser itself keeps the last of two equal keys, and nests as
/// deep as memory allows.
class KeyCheck {
 public:
  bool operator()(int depth, Json::parse_event_t event, Json& value) {
    if (depth > kMaxDeep) refuse_index(fmt::format("it is nested more than {} deep", kMaxDeep));
    if (event != Json::parse_event_t::key) return true;
    const auto& key = value.get_ref<const std::string&>();
    if (depth == 1) is_in_map_ = key == kMap;
    if (depth == 2 && is_in_map_ && !names_.insert(key).second)
      refuse_index(fmt::format("the tensor \"{}\" comes twice", printable(key)));
    return true;
  }

 private:
  static constexpr int kMaxDeep = 32;

  bool is_in_map_ = false;
  std::set<std::string> names_;
};

Json parse(const std::string& text) {
  KeyCheck check;
  try {
    return Json::parse(text, [&](int depth, Json::parse_event_t event, Json& value) {
      return check(depth, event, value);
    });
  } catch (const Json::exception& error) {
    refuse_index("it is not JSON: " + printable(error.what()));
  }
}

/// Returns the name after checking that it does not lead to another directory.
const std::string& checked_file(const std::string& tensor, const Json& file) {
  if (!file.is_string())
    refuse_index(fmt::format("the file of the tensor \"{}\" is {}, which is not a string",
                             printable(tensor), file.type_name()));
  const auto& name = file.get_ref<const std::string&>();
  if (name.empty() || name == "." || name == ".." ||
      name.find_first_of(std::string_view("/\0", 2)) != name.npos)
    refuse_index(
        fmt::format("the file of the tensor \"{}\" is \"{}\", which is not a file in the index's directory",
                    printable(tensor), printable(name)));
  return name;
}

}  // namespace

std::map<std::string, std::string> read_safetensors_index(const Fd& file) {
  const Json index = parse(read_text(file));
  if (!index.is_object() || !index.contains(kMap) || !index[kMap].is_object())
    refuse_index(fmt::format("it has no object \"{}\"", kMap));
  std::map<std::string, std::string> files;
  for (const auto& [tensor, name] : index[kMap].items()) files.emplace(tensor, checked_file(tensor, name));
  return files;
}

}  // namespace onecopy
