// SPDX-License-Identifier: Apache-2.0
#include "onecopy/share/load.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <set>
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "memory/safetensors.h"
#include "onecopy/core/error.h"
#include "onecopy/share/share.h"
#include "onecopy/share/stats.h"
#include "os/file.h"
#include "share/api/file_reader.h"
#include "support/eventually.h"

namespace onecopy {
namespace {

/// A directory that goes away with everything in it.
class Loading : public ::testing::Test {
 protected:
  Loading() { EXPECT_NE(::mkdtemp(path_.data()), nullptr); }
  ~Loading() override { std::filesystem::remove_all(path_); }

  std::string path(const std::string& name) const { return path_ + "/" + name; }
  std::string make(const std::string& name, const std::string& bytes) const {
    std::ofstream(path(name), std::ios::binary) << bytes;
    return path(name);
  }

 private:
  std::string path_ = ::testing::TempDir() + "/onecopy-load-XXXXXX";
};

/// Bytes that differ from place to place.
Bytes pattern(std::size_t size, unsigned seed) {
  Bytes bytes(size);
  for (std::size_t i = 0; i < size; ++i)
    bytes[i] = static_cast<std::byte>((i * 31 + seed * 7 + (i >> 8)) & 0xff);
  return bytes;
}

using Views = std::vector<std::pair<std::string, TensorView>>;

bool has_bytes(const Tensor& tensor, const Bytes& expected) {
  return std::equal(expected.begin(), expected.end(), tensor.as<std::byte>(),
                    tensor.as<std::byte>() + tensor.nbytes());
}

TEST_F(Loading, GivesEveryTensorItsOwnBytesAlignedTo64) {
  std::vector<Bytes> contents;
  for (unsigned i = 0; i < 700; ++i) contents.push_back(pattern(i * 13 % 97, i));
  Views views;
  for (std::size_t i = 0; i < contents.size(); ++i)
    views.emplace_back(
        fmt::format("t{}", i),
        TensorView{contents[i].data(), Layout(DType::u8, {static_cast<std::int64_t>(contents[i].size())}),
                   kCpu, Access::read_only});
  write_safetensors(path("many.safetensors"), views);
  const auto tensors = load_safetensors(path("many.safetensors"));
  ASSERT_EQ(tensors.size(), contents.size());
  for (const auto& [name, tensor] : tensors) {
    EXPECT_TRUE(has_bytes(tensor, contents[std::stoul(name.substr(1))])) << name;
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(tensor.data()) % 64, 0u) << name;
  }
}

TEST_F(Loading, ReadsLargeTensorsInPartsByManyThreads) {
  const Bytes large = pattern((std::size_t{40} << 20) + 12345, 1);
  const Bytes small = pattern(17, 2);
  const auto view = [](const Bytes& bytes) {
    return TensorView{const_cast<std::byte*>(bytes.data()),
                      Layout(DType::u8, {static_cast<std::int64_t>(bytes.size())}), kCpu,
                      Access::read_only};
  };
  write_safetensors(path("large.safetensors"), Views{{"small", view(small)}, {"large", view(large)}});
  std::uint64_t last = 0;
  std::set<std::uint64_t> totals;
  const auto tensors =
      load_safetensors(path("large.safetensors"), [&](std::uint64_t done, std::uint64_t total) {
        EXPECT_LE(last, done);
        last = done;
        totals.insert(total);
      });
  for (const auto& [name, tensor] : tensors)
    EXPECT_TRUE(has_bytes(tensor, name == "small" ? small : large)) << name;
  EXPECT_EQ(last, large.size() + small.size());
  EXPECT_EQ(totals, std::set{last});
}

TEST_F(Loading, AllTensorsOfAFileShareOneBlock) {
  const Bytes bytes = pattern(64, 0);
  const TensorView view{const_cast<std::byte*>(bytes.data()), Layout(DType::f32, {16}), kCpu,
                        Access::read_only};
  write_safetensors(path("two.safetensors"), Views{{"a", view}, {"b", view}});
  const std::uint64_t before = stats().live_blocks;
  const auto tensors = load_safetensors(path("two.safetensors"));
  EXPECT_EQ(stats().live_blocks, before + 1);
  EXPECT_EQ(share(tensors[0].second).fields().block, share(tensors[1].second).fields().block);
}

TEST_F(Loading, WhatProgressThrowsEndsTheLoadingAndGivesTheMemoryBack) {
  const Bytes bytes = pattern(std::size_t{24} << 20, 0);
  write_safetensors(path("x.safetensors"),
                    Views{{"x", TensorView{const_cast<std::byte*>(bytes.data()),
                                           Layout(DType::u8, {static_cast<std::int64_t>(bytes.size())}),
                                           kCpu, Access::read_only}}});
  const std::uint64_t before = stats().live_blocks;
  const auto refuse = [](std::uint64_t, std::uint64_t) { throw std::runtime_error("enough"); };
  EXPECT_THROW(load_safetensors(path("x.safetensors"), refuse), std::runtime_error);
  EXPECT_EQ(stats().live_blocks, before);
}

/// A load whose file becomes unreadable once the memory is reserved.
class Reserving : public Loading {
 protected:
  static constexpr std::uint64_t kBytes = std::uint64_t{192} << 20;

  Reserving() {
    const std::string json =
        fmt::format(R"({{"x":{{"dtype":"U8","shape":[{}],"data_offsets":[0,{}]}}}})", kBytes, kBytes);
    const std::uint64_t size = json.size();
    header_ = std::string(reinterpret_cast<const char*>(&size), sizeof size) + json;
    collect();  // warm pages need not be reserved
    std::filesystem::resize_file(make("sparse.safetensors", header_), header_.size() + kBytes);
  }

  /// Loads it; the file is cut after the first report.
  void load(const LoadProgress& progress) const {
    load_safetensors(path("sparse.safetensors"), [&](std::uint64_t done, std::uint64_t total) {
      std::filesystem::resize_file(path("sparse.safetensors"), header_.size());
      progress(done, total);
    });
  }

 private:
  std::string header_;
};

TEST_F(Reserving, CountsAsProgressUpToAHalf) {
  std::vector<std::uint64_t> seen;
  const auto note = [&](std::uint64_t done, std::uint64_t total) {
    EXPECT_EQ(total, kBytes);
    seen.push_back(done);
  };
  EXPECT_THROW(load(note), Error) << "the file was cut";
  ASSERT_GE(seen.size(), 3u);
  EXPECT_TRUE(std::is_sorted(seen.begin(), seen.end()));
  EXPECT_EQ(std::adjacent_find(seen.begin(), seen.end()), seen.end()) << "each says something new";
  EXPECT_EQ(seen.front(), 0u);
  EXPECT_EQ(seen.back(), kBytes / 2);
}

TEST_F(Reserving, EndsWhereProgressThrowsAndGivesTheMemoryBack) {
  struct Enough {};
  const Stats before = stats();
  const auto stop = [](std::uint64_t done, std::uint64_t) {
    if (done != 0) throw Enough{};
  };
  EXPECT_THROW(load(stop), Enough);
  EXPECT_EQ(stats().live_blocks, before.live_blocks);
  EXPECT_TRUE(testing::eventually([&] { return stats().bytes_shared == before.bytes_shared; }));
}

TEST_F(Reserving, MayItselfMakeMemory) {
  std::uint64_t last = 0;
  const auto note = [&](std::uint64_t done, std::uint64_t) {
    EXPECT_GE(done, last) << "told of memory that it made itself";
    last = done;
    (void)empty(Layout(DType::u8, {std::int64_t{70} << 20}));
  };
  EXPECT_THROW(load(note), Error) << "the file was cut";
  EXPECT_EQ(last, kBytes / 2);
}

TEST_F(Loading, ErrorsNameTheFile) {
  for (const std::string& name : {make("short.safetensors", "1234567"), path("missing.safetensors")}) {
    try {
      load_safetensors(name);
      ADD_FAILURE() << name << " was loaded";
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(name), std::string::npos) << error.what();
    }
  }
}

TEST_F(Loading, APipeIsRefusedAndNotWaitedFor) {
  const std::string pipe = path("pipe");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  for (const auto& load : {+[](const std::string& file) { load_safetensors(file); },
                           +[](const std::string& file) { load_npy(file); }}) {
    try {
      load(pipe);
      ADD_FAILURE() << "a pipe was loaded";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument) << error.what();
    }
  }
}

TEST_F(Loading, ADirectoryIsNotAFile) { EXPECT_THROW(load_safetensors(path("")), Error); }

TEST_F(Loading, AFileWithoutTensorsIsAnEmptyList) {
  EXPECT_TRUE(load_safetensors(make("none.safetensors", std::string("\x02\0\0\0\0\0\0\0{}", 10))).empty());
}

std::string npy(const std::string& order, const std::string& data) {
  std::string header = "{'descr': '<i2', 'fortran_order': " + order + ", 'shape': (2, 3), }";
  header.append(117 - header.size(), ' ').push_back('\n');
  return std::string("\x93NUMPY\x01\x00\x76\x00", 10).append(header).append(data);
}

TEST_F(Loading, NpyArraysKeepTheirOrder) {
  std::string data(12, '\0');
  for (int i = 0; i < 6; ++i) data[static_cast<std::size_t>(2 * i)] = static_cast<char>(i);
  const Tensor rows = load_npy(make("rows.npy", npy("False", data)));
  EXPECT_EQ(rows.layout(), Layout(DType::i16, {2, 3}));
  EXPECT_EQ(rows.as<std::int16_t>()[5], 5);
  const Tensor columns = load_npy(make("columns.npy", npy("True", data)));
  EXPECT_EQ(columns.strides()[0], 1);
  EXPECT_EQ(columns.strides()[1], 2);
}

TEST_F(Loading, AnNpyFileThatEndsEarlyIsRefused) {
  EXPECT_THROW(load_npy(make("short.npy", npy("False", "123"))), Error);
}

TEST_F(Loading, AFileThatShrinksMeanwhileIsAnErrorNotZeros) {
  const Fd fd = open_file(make("f", "0123456789"), O_RDONLY);
  Bytes memory(20);
  const FilePiece pieces[] = {{0, 4, memory.data()}, {4, 16, memory.data() + 4}};
  try {
    FileReader(fd, "f", pieces).run({});
    ADD_FAILURE() << "ten bytes were read twenty times";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::bad_file);
  }
}

TEST_F(Loading, PiecesMayLeaveOutPartsOfTheFile) {
  const Fd fd = open_file(make("f", "0123456789"), O_RDONLY);
  std::string memory(5, '.');
  auto* at = reinterpret_cast<std::byte*>(memory.data());
  const FilePiece pieces[] = {{1, 2, at}, {3, 0, at}, {7, 3, at + 2}};
  FileReader(fd, "f", pieces).run({});
  EXPECT_EQ(memory, "12789");
}

}  // namespace
}  // namespace onecopy
