// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/throw_error.h"
#include "memory/safetensors.h"
#include "os/file.h"
#include "os/replacing_file.h"
#include "safetensors_dtype.h"
#include "safetensors_json.h"

namespace onecopy {

namespace {

using Named = std::pair<std::string, TensorView>;
constexpr std::size_t kBuffer = std::size_t{1} << 20;

void check_writable(std::span<const Named* const> tensors) {
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto& [tensor_name, view] = *tensors[i];
    if (i > 0 && tensors[i - 1]->first == tensor_name)
      throw_error(ErrorCode::invalid_argument, "two tensors are called \"{}\": give each its own name",
                  printable(tensor_name));
    if (tensor_name == "__metadata__")
      throw Error(ErrorCode::invalid_argument,
                  "no tensor can be called __metadata__ in a safetensors file");
    if (view.device.type != DeviceType::cpu)
      throw_error(ErrorCode::unsupported, "tensor \"{}\" is on {}: copy it to the cpu first",
                  printable(tensor_name), view.device.str());
    if (safetensors_name(view.layout.dtype()).empty())
      throw_error(ErrorCode::unsupported,
                  "the safetensors format has no elements of type {} (tensor \"{}\")",
                  name(view.layout.dtype()), printable(tensor_name));
  }
}

/// Sorts by name to find duplicates, then puts large elements first so that all elements are aligned.
std::vector<const Named*> in_file_order(std::span<const Named> tensors) {
  std::vector<const Named*> order;
  for (const Named& tensor : tensors) order.push_back(&tensor);
  std::sort(order.begin(), order.end(), [](auto* a, auto* b) { return a->first < b->first; });
  check_writable(order);
  std::stable_sort(order.begin(), order.end(), [](auto* a, auto* b) {
    return size_of(a->second.layout.dtype()) > size_of(b->second.layout.dtype());
  });
  return order;
}

std::string header_json(std::span<const Named* const> tensors,
                        const std::map<std::string, std::string>& metadata) {
  auto json = nlohmann::ordered_json::object();
  if (!metadata.empty()) json["__metadata__"] = metadata;
  std::uint64_t at = 0;
  for (const Named* tensor : tensors) {
    const Layout& layout = tensor->second.layout;
    auto& row = json[tensor->first];
    row["dtype"] = safetensors_name(layout.dtype());
    row["shape"] = std::vector<std::int64_t>(layout.shape().begin(), layout.shape().end());
    row["data_offsets"] = {at, at + layout.nbytes()};
    at += layout.nbytes();
  }
  std::string text = json.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  return text;
}

/// A writer of the elements in row-major order, through a buffer if they are not contiguous.
class PackedWriter {
 public:
  explicit PackedWriter(const Fd& fd) : fd_(fd) {}

  void write(const TensorView& view) {
    const auto* data = static_cast<const std::byte*>(view.data);
    if (view.layout.numel() == 0) return;
    if (view.layout.is_contiguous()) return write_all(fd_, {data, view.layout.nbytes()});
    walk(view.layout, data, 0);
    flush();
  }

 private:
  void walk(const Layout& layout, const std::byte* at, std::size_t dim) {
    const std::size_t element = size_of(layout.dtype());
    if (dim == layout.ndim()) return put(at, element);
    const auto step = static_cast<std::size_t>(layout.strides()[dim]) * element;
    for (std::int64_t i = 0; i < layout.shape()[dim]; ++i)
      walk(layout, at + static_cast<std::size_t>(i) * step, dim + 1);
  }
  void put(const std::byte* at, std::size_t bytes) {
    buffer_.insert(buffer_.end(), at, at + bytes);
    if (buffer_.size() >= kBuffer) flush();
  }
  void flush() {
    write_all(fd_, buffer_);
    buffer_.clear();
  }

  const Fd& fd_;
  Bytes buffer_;
};

}  // namespace

void write_safetensors(const std::string& path, std::span<const Named> tensors,
                       const std::map<std::string, std::string>& metadata) {
  const auto order = in_file_order(tensors);
  std::string json;
  try {
    json = header_json(order, metadata);
  } catch (const nlohmann::json::exception& error) {
    throw_error(ErrorCode::invalid_argument, "a name or metadata is not UTF-8: {}",
                printable(error.what()));
  }
  Bytes length(8);
  write_value<std::uint64_t>(length.data(), json.size());
  ReplacingFile file(path, 0644);
  write_all(file.fd(), length);
  write_all(file.fd(), std::as_bytes(std::span(json)));
  PackedWriter writer(file.fd());
  for (const Named* tensor : order) writer.write(tensor->second);
  file.finish();
}

}  // namespace onecopy
