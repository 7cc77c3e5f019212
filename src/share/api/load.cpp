// SPDX-License-Identifier: Apache-2.0
#include "onecopy/share/load.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <set>
#include <utility>

#include "core/throw_error.h"
#include "device/reserve_listener.h"
#include "memory/npy.h"
#include "onecopy/share/share.h"
#include "os/file.h"
#include "share/api/file_reader.h"

namespace onecopy {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kFile = ".safetensors";
constexpr std::string_view kIndex = ".safetensors.index.json";
constexpr const char* kUsualIndex = "model.safetensors.index.json";

/// Returns the names in a directory that have this ending, sorted.
std::vector<std::string> names_ending(const std::string& directory, std::string_view end) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator at(directory, error); !error && at != fs::directory_iterator();
       at.increment(error))
    if (std::string name = at->path().filename().string(); name.ends_with(end))
      names.push_back(std::move(name));
  if (error) throw_errno(fmt::format("cannot read the directory {}", directory), error.value());
  std::sort(names.begin(), names.end());
  return names;
}

std::string in(const std::string& directory, const std::string& name) {
  return (fs::path(directory) / name).string();
}

bool is_there(const std::string& path) {
  std::error_code unknown;
  return fs::exists(path, unknown);
}

OpenedSafetensors open_one(const std::string& path) {
  Fd fd = open_regular(path, "a .safetensors file");
  return about_file(path, [&]() -> OpenedSafetensors {
    SafetensorsHeader header = read_safetensors_header(fd);
    return {path, std::move(fd), std::move(header)};
  });
}

/// Returns the path of a directory's index, or nothing if it has none.
std::optional<std::string> find_index(const std::string& directory) {
  const std::vector<std::string> names = names_ending(directory, kIndex);
  if (names.empty()) return std::nullopt;
  if (names.size() == 1) return names.front();
  if (std::find(names.begin(), names.end(), kUsualIndex) != names.end()) return kUsualIndex;
  throw_error(ErrorCode::invalid_argument,
              "{} has {} indexes, such as {} and {}, and none is named {}: put the files of one into a "
              "directory of their own",
              directory, names.size(), names[0], names[1], kUsualIndex);
}

std::string only_file(const std::string& directory) {
  const std::vector<std::string> names = names_ending(directory, kFile);
  if (names.size() == 1) return in(directory, names.front());
  if (names.empty() && is_there(in(directory, ".metadata")))
    throw_error(ErrorCode::invalid_argument,
                "{} is a checkpoint of torch.distributed.checkpoint, whose metadata only torch "
                "reads; put it into the store: python -m onecopy.checkpoint put NAME {}",
                directory, directory);
  if (names.empty())
    throw_error(ErrorCode::invalid_argument,
                "{} is a directory without a .safetensors file; name a .safetensors or .npy file, or the "
                "directory that has them",
                directory);
  throw_error(ErrorCode::invalid_argument,
              "{} has {} .safetensors files, such as {} and {}, and no {}: name one of them", directory,
              names.size(), names[0], names[1], kUsualIndex);
}

/// Checks one directory's index and files against each other.
class Shards {
 public:
  explicit Shards(std::string directory, const std::string& index)
      : directory_(std::move(directory)), index_path_(in(directory_, index)) {
    const Fd fd = open_regular(index_path_, "an index");
    about_file(index_path_, [&] { file_of_ = read_safetensors_index(fd); });
  }

  std::vector<OpenedSafetensors> open_all() {
    std::set<std::string> names;
    for (const auto& [tensor, file] : file_of_) names.insert(file);
    for (const std::string& name : names) add(name);
    for (const auto& [tensor, file] : file_of_)
      if (!found_.contains(tensor))
        refuse(fmt::format("the tensor \"{}\" is in {}, which does not have it", tensor, file));
    return std::move(opened_);
  }

 private:
  [[noreturn]] void refuse(const std::string& why) const {
    throw_error(ErrorCode::bad_file,
                "{} and its files contradict each other: it says that {}; get all files of one version",
                index_path_, why);
  }
  void add(const std::string& name);
  void check(const std::string& tensor, const std::string& name);

  const std::string directory_;
  const std::string index_path_;
  std::map<std::string, std::string> file_of_;  ///< the file of each tensor, according to the index
  std::map<std::string, std::string> found_;    ///< the file of each tensor, according to the files
  std::vector<OpenedSafetensors> opened_;
};

void Shards::add(const std::string& name) {
  const std::string path = in(directory_, name);
  if (::access(path.c_str(), F_OK) != 0 && errno == ENOENT)
    throw_errno(fmt::format("{} is not there, and {} names it: get the missing file", path, index_path_),
                ENOENT);
  opened_.push_back(open_one(path));
  for (const SafetensorsEntry& entry : opened_.back().header.entries) check(entry.name, name);
}

void Shards::check(const std::string& tensor, const std::string& name) {
  const auto [before, is_new] = found_.emplace(tensor, name);
  const auto expected = file_of_.find(tensor);
  if (!is_new)
    refuse(fmt::format("the tensor \"{}\" is in one file, and {} and {} have it", tensor, before->second,
                       name));
  if (expected == file_of_.end())
    refuse(fmt::format("there is no tensor \"{}\", and {} has it", tensor, name));
  if (expected->second != name)
    refuse(fmt::format("the tensor \"{}\" is in {}, and {} has it", tensor, expected->second, name));
}

}  // namespace

Fd open_regular(const std::string& path, const char* instead) {
  Fd fd = open_file(path, O_RDONLY | O_NONBLOCK);  // opening a pipe without a writer would wait
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) throw_errno(fmt::format("cannot examine {}", path), errno);
  if (S_ISREG(info.st_mode)) return fd;
  if (S_ISDIR(info.st_mode))
    throw_errno(fmt::format("cannot read {}; name {} in it", path, instead), EISDIR);
  throw_error(ErrorCode::invalid_argument,
              "{} is a pipe, a socket or a device; write what comes from it to a file first", path);
}

std::vector<OpenedSafetensors> open_checkpoint(const std::string& path) {
  std::error_code absent;
  std::vector<OpenedSafetensors> one;
  if (!fs::is_directory(path, absent)) {
    one.push_back(open_one(path));
    return one;
  }
  if (const auto index = find_index(path)) return Shards(path, *index).open_all();
  one.push_back(open_one(only_file(path)));
  return one;
}

namespace {

constexpr std::uint64_t kAlignment = 64;

std::uint64_t aligned(std::uint64_t offset) noexcept {
  return (offset + kAlignment - 1) / kAlignment * kAlignment;
}

/// Computes the progress of a load from that of its halves: reserving memory for `total` bytes, and reading into it. A
/// byte counts half once it has memory, and whole once it is read.
class Halves {
 public:
  Halves(const LoadProgress& progress, std::uint64_t total) : progress_(progress), total_(total) {
    if (progress_) progress_(0, total_);
  }

  /// Allocates shared memory for `bytes` bytes of a file.
  Tensor allocate(std::uint64_t bytes) const {
    ReserveListener::Function report;
    if (progress_)
      report = [this](std::size_t done, std::size_t total) {
        progress_(part(total_ / 2, done, total), total_);
      };
    const ReserveListener listener(std::move(report));
    return empty(Layout(DType::u8, {static_cast<std::int64_t>(bytes)}));
  }
  void read(FileReader& reader) const {
    if (!progress_) return reader.run({});
    reader.run([this](std::uint64_t done, std::uint64_t total) {
      progress_(total_ / 2 + part(total_ - total_ / 2, done, total), total_);
    });
  }

 private:
  /// Returns `of` * `done` / `total` without overflow.
  static std::uint64_t part(std::uint64_t of, std::uint64_t done, std::uint64_t total) noexcept {
    if (done >= total) return of;
    return static_cast<std::uint64_t>(static_cast<double>(of) * static_cast<double>(done) /
                                      static_cast<double>(total));
  }

  const LoadProgress& progress_;
  std::uint64_t total_;
};

/// Returns the offset of each entry in the block, and then the size of the block.
std::vector<std::uint64_t> place(const SafetensorsHeader& header) {
  std::vector<std::uint64_t> offsets;
  offsets.reserve(header.entries.size() + 1);
  std::uint64_t at = 0;
  for (const SafetensorsEntry& entry : header.entries) {
    offsets.push_back(at);
    at = aligned(at + (entry.end - entry.begin));
  }
  offsets.push_back(at);
  return offsets;
}

std::uint64_t data_bytes(const OpenedSafetensors& file) {
  return file.header.file_size - file.header.data_offset;
}

/// Reads the tensors of one file. `progress` counts the bytes of this file only.
void read_tensors(const OpenedSafetensors& file, const LoadProgress& progress,
                  std::vector<NamedTensor>& tensors) {
  const SafetensorsHeader& header = file.header;
  const std::vector<std::uint64_t> offsets = place(header);
  const Halves halves(progress, data_bytes(file));
  const Tensor block = halves.allocate(offsets.back());
  std::vector<FilePiece> pieces;
  pieces.reserve(header.entries.size());
  for (std::size_t i = 0; i < header.entries.size(); ++i) {
    const SafetensorsEntry& entry = header.entries[i];
    tensors.emplace_back(entry.name, block.with_layout(Layout(entry.dtype, entry.shape), offsets[i]));
    pieces.push_back(
        {header.data_offset + entry.begin, entry.end - entry.begin, block.as<std::byte>() + offsets[i]});
  }
  about_file(file.path, [&] {
    FileReader reader(file.fd, file.path, pieces);
    halves.read(reader);
  });
}

}  // namespace

std::vector<NamedTensor> load_safetensors(const std::string& path, const LoadProgress& progress) {
  const std::vector<OpenedSafetensors> files = open_checkpoint(path);
  std::uint64_t before = 0, total = 0;
  for (const OpenedSafetensors& file : files) total += data_bytes(file);
  LoadProgress of_all;
  if (progress) of_all = [&](std::uint64_t done, std::uint64_t) { progress(before + done, total); };
  std::vector<NamedTensor> tensors;
  for (const OpenedSafetensors& file : files) {
    read_tensors(file, of_all, tensors);
    before += data_bytes(file);
  }
  return tensors;
}

Tensor load_npy(const std::string& path, const LoadProgress& progress) {
  const Fd fd = open_regular(path, "an .npy file");
  return about_file(path, [&] {
    const NpyHeader header = read_npy_header(fd);
    const std::uint64_t bytes = header.layout.extent_bytes();
    const Halves halves(progress, bytes);
    const Tensor block = halves.allocate(bytes);
    const std::array pieces{FilePiece{header.data_offset, bytes, block.as<std::byte>()}};
    FileReader reader(fd, path, pieces);
    halves.read(reader);
    return block.with_layout(header.layout);
  });
}

}  // namespace onecopy
