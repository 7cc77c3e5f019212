// SPDX-License-Identifier: Apache-2.0
#include "safetensors_writer.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "numbers.h"
#include "onecopy/core/bytes.h"
#include "onecopy/core/error.h"
#include "onecopy/os/file.h"
#include "onecopy/os/process.h"

namespace onecopy::cli {
namespace {

const char* format_name(DType dtype) {
  switch (dtype) {
    case DType::boolean: return "BOOL";
    case DType::u8: return "U8";
    case DType::i8: return "I8";
    case DType::u16: return "U16";
    case DType::i16: return "I16";
    case DType::u32: return "U32";
    case DType::i32: return "I32";
    case DType::u64: return "U64";
    case DType::i64: return "I64";
    case DType::f16: return "F16";
    case DType::bf16: return "BF16";
    case DType::f32: return "F32";
    case DType::f64: return "F64";
    case DType::c64: return "C64";
    case DType::f8_e4m3fn: return "F8_E4M3";
    case DType::f8_e5m2: return "F8_E5M2";
    case DType::f8_e8m0fnu: return "F8_E8M0";
    default: break;
  }
  throw Error(ErrorCode::unsupported,
              fmt::format("the safetensors format has no name for elements of type {}", name(dtype)));
}

/// A file that disappears unless it is kept.
class UnfinishedFile {
 public:
  explicit UnfinishedFile(const std::string& final_path)
      : final_path_(final_path),
        path_(fmt::format("{}.part-{}", final_path, current_pid())),
        fd_(open_file(path_, O_WRONLY | O_CREAT | O_EXCL, 0666)) {}
  ~UnfinishedFile() {
    if (fd_) ::unlink(path_.c_str());
  }
  UnfinishedFile(const UnfinishedFile&) = delete;
  UnfinishedFile& operator=(const UnfinishedFile&) = delete;

  const Fd& fd() const noexcept { return fd_; }
  void keep() {
    if (std::rename(path_.c_str(), final_path_.c_str()) != 0)
      throw_errno(fmt::format("cannot rename {} to {}", path_, final_path_), errno);
    fd_.reset();
  }

 private:
  std::string final_path_;
  std::string path_;
  Fd fd_;
};

}  // namespace

std::string safetensors_header(std::span<const std::pair<std::string, Layout>> tensors) {
  auto header = nlohmann::ordered_json::object();
  std::uint64_t at = 0;
  for (const auto& [tensor_name, layout] : tensors) {
    if (header.contains(tensor_name))
      throw Error(
          ErrorCode::invalid_argument,
          fmt::format("two tensors are called \"{}\": a safetensors file cannot hold both", tensor_name));
    const std::uint64_t end = at + layout.nbytes();
    const auto shape = layout.shape();
    header[tensor_name] = {{"dtype", format_name(layout.dtype())},
                           {"shape", std::vector<std::int64_t>(shape.begin(), shape.end())},
                           {"data_offsets", {at, end}}};
    at = end;
  }
  std::string text = header.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  std::string bytes(8, '\0');
  store(reinterpret_cast<std::byte*>(bytes.data()), static_cast<std::uint64_t>(text.size()));
  return bytes + text;
}

void write_safetensors(const std::string& path, std::span<const NamedTensor> tensors) {
  std::vector<std::pair<std::string, Layout>> rows;
  for (const auto& [tensor_name, tensor] : tensors) rows.emplace_back(tensor_name, tensor.layout());
  const std::string header = safetensors_header(rows);
  UnfinishedFile file(path);
  write_all(file.fd(), std::as_bytes(std::span(header)));
  for (const auto& [tensor_name, tensor] : tensors)
    for_each_run(tensor, [&](ByteSpan run) { write_all(file.fd(), run); });
  file.keep();
}

}  // namespace onecopy::cli
