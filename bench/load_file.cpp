// SPDX-License-Identifier: Apache-2.0
// Measures loading a safetensors file that is in the page cache.
#include <fmt/format.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <vector>

#include "memory/safetensors.h"
#include "onecopy/share/load.h"
#include "onecopy/share/share.h"
#include "onecopy/share/stats.h"
#include "os/file.h"
#include "rows.h"
#include "support/memory.h"
#include "support/samples.h"

namespace onecopy::bench {
namespace {

constexpr int kLoadRounds = 9;
constexpr std::int64_t kTensors = 64;
constexpr std::int64_t kTensorBytes = std::int64_t{16} << 20;

/// A file of 1 GiB that the destructor deletes.
class SampleFile {
 public:
  SampleFile()
      : path_(std::filesystem::temp_directory_path() /
              fmt::format("onecopy-bench-{}.safetensors", ::getpid())) {
    const Tensor tensor = empty(Layout(DType::u8, {kTensorBytes}));
    std::memset(tensor.data(), 1, tensor.nbytes());
    std::vector<std::pair<std::string, TensorView>> all;
    for (std::int64_t i = 0; i < kTensors; ++i) all.emplace_back(fmt::format("t{}", i), tensor.view());
    write_safetensors(path_.string(), all);
  }
  ~SampleFile() {
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
  }
  SampleFile(const SampleFile&) = delete;
  SampleFile& operator=(const SampleFile&) = delete;
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

double time_read(const std::string& path) {
  const Fd file = open_file(path, 0);
  const auto size = static_cast<std::size_t>(std::filesystem::file_size(path));
  std::unique_ptr<FreshMemory> memory;
  return time_ns([&] {
    memory = std::make_unique<FreshMemory>(size);
    for (std::size_t done = 0; done < size;) {
      const ssize_t got = ::read(file.get(), static_cast<char*>(memory->data()) + done, size - done);
      if (got <= 0) throw std::runtime_error("cannot read the sample file");
      done += static_cast<std::size_t>(got);
    }
  });
}

double time_load(const std::string& path) {
  std::vector<NamedTensor> tensors;
  const double ns = time_ns([&] { tensors = load_safetensors(path); });
  tensors.clear();
  collect();  // so that the next load uses new memory
  return ns;
}

}  // namespace

Row load_file(const Effort& effort) {
  Row row("Load a safetensors file",
          "from the page cache at 80 % of the speed of plain read() into fresh memory");
  const SampleFile file;
  collect();
  Samples plain;
  Samples loaded;
  time_read(file.path());
  time_load(file.path());
  for (int i = 0; i < effort.rounds(kLoadRounds); ++i) {
    plain.add(time_read(file.path()));
    loaded.add(time_load(file.path()));
  }
  const double speed = 1 / loaded.ratio_to(plain);
  const double gib = static_cast<double>(kTensors * kTensorBytes) / (1 << 30);
  row.add("read() of 1 GiB into fresh memory", gib / plain.median() * 1e9, "GiB/s");
  Figure figure{"load_safetensors()", gib / loaded.median() * 1e9, "GiB/s", speed, "read()",
                at_least(speed, 0.8)};
  row.figures.push_back(figure);
  return row;
}

}  // namespace onecopy::bench
