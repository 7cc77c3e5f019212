// SPDX-License-Identifier: Apache-2.0
#include "share/api/checkpoint_files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <set>
#include <utility>

#include "onecopy/core/error.h"
#include "os/file.h"
#include "share/api/file_reader.h"

namespace onecopy {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kFile = ".safetensors";
constexpr std::string_view kIndex = ".safetensors.index.json";
constexpr const char* kUsualIndex = "model.safetensors.index.json";

/// Names in a directory with this ending, in order.
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

OpenedSafetensors open_one(const std::string& path) {
  Fd fd = open_regular(path, "a .safetensors file");
  return about_file(path, [&]() -> OpenedSafetensors {
    SafetensorsHeader header = read_safetensors_header(fd);
    return {path, std::move(fd), std::move(header)};
  });
}

/// The index of a directory; empty if it has none.
std::optional<std::string> find_index(const std::string& directory) {
  const std::vector<std::string> names = names_ending(directory, kIndex);
  if (names.empty()) return std::nullopt;
  if (names.size() == 1) return names.front();
  if (std::find(names.begin(), names.end(), kUsualIndex) != names.end()) return kUsualIndex;
  throw Error(
      ErrorCode::invalid_argument,
      fmt::format("{} has {} indexes, such as {} and {}, and none is named {}: put the files of one "
                  "into a directory of their own",
                  directory, names.size(), names[0], names[1], kUsualIndex));
}

std::string only_file(const std::string& directory) {
  const std::vector<std::string> names = names_ending(directory, kFile);
  if (names.size() == 1) return in(directory, names.front());
  if (names.empty())
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("{} is a directory without a .safetensors file; name a .safetensors or .npy file, "
                    "or the directory that has them",
                    directory));
  throw Error(ErrorCode::invalid_argument,
              fmt::format("{} has {} .safetensors files, such as {} and {}, and no {}: name one of them",
                          directory, names.size(), names[0], names[1], kUsualIndex));
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
    throw Error(ErrorCode::bad_file, fmt::format("{} and its files contradict each other: it says that {}; "
                                                 "get all files of one version",
                                                 index_path_, why));
  }
  void add(const std::string& name);
  void check(const std::string& tensor, const std::string& name);

  const std::string directory_;
  const std::string index_path_;
  std::map<std::string, std::string> file_of_;  ///< by tensor, as the index has it
  std::map<std::string, std::string> found_;    ///< by tensor, as the files have it
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
  throw Error(
      ErrorCode::invalid_argument,
      fmt::format("{} is a pipe, a socket or a device; write what comes from it to a file first", path));
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

}  // namespace onecopy
