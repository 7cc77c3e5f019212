// SPDX-License-Identifier: Apache-2.0
#include "sample_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include <fmt/format.h>

#include "onecopy/core/bytes.h"
#include "onecopy/core/error.h"
#include "onecopy/os/file.h"
#include "safetensors_writer.h"

namespace onecopy::cli {
namespace {

using Row = std::pair<std::string, Layout>;

constexpr int kLayers = 8;
constexpr std::size_t kChunk = std::size_t{1} << 20;

std::vector<Row> sample_rows() {
  std::vector<Row> rows{{"embed.weight", Layout(DType::bf16, {32768, 1024})}};
  for (int i = 0; i < kLayers; ++i) {
    rows.emplace_back(fmt::format("layers.{}.attention.qkv.weight", i), Layout(DType::f16, {3072, 1024}));
    rows.emplace_back(fmt::format("layers.{}.mlp.up.weight", i), Layout(DType::bf16, {4096, 1024}));
    rows.emplace_back(fmt::format("layers.{}.mlp.down.weight", i), Layout(DType::f8_e4m3fn, {1024, 4096}));
    rows.emplace_back(fmt::format("layers.{}.norm.weight", i), Layout(DType::f32, {1024}));
  }
  rows.emplace_back("head.weight", Layout(DType::f32, {8192, 1024}));
  rows.emplace_back("rope.table", Layout(DType::f64, {4096, 256}));
  rows.emplace_back("token.counts", Layout(DType::i64, {1 << 19}));
  rows.emplace_back("token.is_special", Layout(DType::boolean, {1 << 22}));
  return rows;
}

bool is_floating(DType dtype) noexcept {
  return dtype == DType::f16 || dtype == DType::bf16 || dtype == DType::f32 || dtype == DType::f64 ||
         dtype == DType::f8_e4m3fn;
}

/// Splitmix64: the same file every time.
class Noise {
 public:
  std::uint64_t next() noexcept {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
  }

 private:
  std::uint64_t state_ = 1;
};

/// Bits that may be set in every 8 bytes of a type: without the exponent's highest bit a number is
/// below 2, booleans are 0 or 1, and counts are small.
std::uint64_t mask_of(DType dtype) noexcept {
  if (dtype == DType::boolean) return 0x0101010101010101u;
  if (dtype == DType::i64) return 0xffff;
  if (!is_floating(dtype)) return ~std::uint64_t{0};
  std::uint64_t mask = 0;
  const std::size_t bits = size_of(dtype) * 8;
  for (std::size_t at = 0; at < 64; at += bits) mask |= std::uint64_t{1} << (at + bits - 2);
  return ~mask;
}

}  // namespace

TemporaryDirectory::TemporaryDirectory() {
  const char* base = std::getenv("TMPDIR");
  path_ = fmt::format("{}/onecopy-demo-XXXXXX", base && *base ? base : "/tmp");
  if (::mkdtemp(path_.data()) == nullptr)
    throw_errno(
        fmt::format("cannot make a directory like {} (set TMPDIR to one that can be written)", path_),
        errno);
}

TemporaryDirectory::~TemporaryDirectory() { remove(); }

void TemporaryDirectory::remove() noexcept {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

void write_sample_file(const std::string& path, const LoadProgress& progress) {
  const std::vector<Row> rows = sample_rows();
  std::uint64_t total = 0;
  for (const auto& [tensor_name, layout] : rows) total += layout.nbytes();
  const Fd fd = open_file(path, O_WRONLY | O_CREAT | O_EXCL);
  const std::string header = safetensors_header(rows);
  write_all(fd, std::as_bytes(std::span(header)));
  Noise noise;
  Bytes chunk(kChunk);
  std::uint64_t done = 0;
  for (const auto& [tensor_name, layout] : rows) {
    const std::uint64_t mask = mask_of(layout.dtype());
    for (std::size_t left = layout.nbytes(); left > 0;) {
      const std::size_t bytes = std::min(left, kChunk);
      for (std::size_t at = 0; at < bytes; at += 8) store(chunk.data() + at, noise.next() & mask);
      write_all(fd, std::span(chunk).first(bytes));
      left -= bytes;
      done += bytes;
      if (progress) progress(done, total);
    }
  }
}

}  // namespace onecopy::cli
