// SPDX-License-Identifier: Apache-2.0
#include "sample_file.h"

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "memory/safetensors.h"
#include "onecopy/core/bytes.h"
#include "onecopy/core/error.h"
#include "os/mapping.h"

namespace onecopy::cli {
namespace {

using Row = std::pair<std::string, Layout>;

constexpr int kLayers = 8;

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

/// Repeats the bits in each element of 8 bytes.
std::uint64_t repeated(std::uint64_t bits, std::size_t item) noexcept {
  for (std::size_t width = item; width < 8; width *= 2) bits |= bits << width * 8;
  return bits;
}

/// Turns noise into numbers of a type: between 0.5 and 1 or their negatives for floating-point types (random sign and
/// fraction, fixed exponent), small whole numbers otherwise.
std::uint64_t numbers_from(std::uint64_t noise, DType dtype) noexcept {
  const auto number = [&](std::uint64_t sign_and_fraction, std::uint64_t exponent) {
    return (noise & repeated(sign_and_fraction, size_of(dtype))) | repeated(exponent, size_of(dtype));
  };
  switch (dtype) {
    case DType::f8_e4m3fn: return number(0x87, 0x30);
    case DType::f16: return number(0x83ff, 0x3800);
    case DType::bf16: return number(0x807f, 0x3f00);
    case DType::f32: return number(0x807fffff, 0x3f000000);
    case DType::f64: return number(0x800fffffffffffff, 0x3fe0000000000000);
    case DType::boolean: return number(0x01, 0);
    default: return number(0xffff, 0);
  }
}

}  // namespace

TemporaryDirectory::TemporaryDirectory() {
  const char* base = std::getenv("TMPDIR");
  path_ = fmt::format("{}/onecopy-demo-XXXXXX", base && *base ? base : "/tmp");
  if (::mkdtemp(path_.data()) == nullptr)
    throw_errno(fmt::format("cannot create a directory like {} (set TMPDIR to a writable one)", path_),
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
  const Mapping memory = Mapping::anonymous(total);
  std::vector<std::pair<std::string, TensorView>> tensors;
  std::byte* at = memory.data();
  std::mt19937_64 noise;  // the same file every time
  for (const auto& [tensor_name, layout] : rows) {
    tensors.emplace_back(tensor_name, TensorView{at, layout, kCpu, Access::read_only});
    for (const std::byte* end = at + layout.nbytes(); at < end; at += 8)
      write_value(at, numbers_from(noise(), layout.dtype()));
    progress(static_cast<std::uint64_t>(at - memory.data()), total);
  }
  write_safetensors(path, tensors);
}

}  // namespace onecopy::cli
