// SPDX-License-Identifier: Apache-2.0
#include "memory/npy.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <fstream>

#include "conformance/scratch_directory.h"
#include "onecopy/core/error.h"
#include "os/file.h"

namespace onecopy {
namespace {

std::string npy(const std::string& literal, int major = 1) {
  std::string text = "\x93NUMPY";
  text += static_cast<char>(major);
  text += '\0';
  const std::size_t width = major == 1 ? 2 : 4;
  for (std::size_t i = 0; i < width; ++i) text += static_cast<char>(literal.size() >> (8 * i) & 0xff);
  return text + literal;
}

NpyHeader parse(const std::string& head, std::uint64_t data_bytes) {
  return parse_npy_header(std::as_bytes(std::span(head)), head.size() + data_bytes);
}

ErrorCode refusal(const std::string& head, std::uint64_t data_bytes = 1000) {
  try {
    parse(head, data_bytes);
  } catch (const Error& error) {
    return error.code();
  }
  ADD_FAILURE() << "accepted: " << head;
  return ErrorCode::system;
}

std::string dict(const std::string& descr, const std::string& shape, const char* fortran = "False") {
  return "{'descr': " + descr + ", 'fortran_order': " + fortran + ", 'shape': " + shape + ", }      \n";
}

TEST(Npy, ReadsWhatNumpyWrites) {
  for (const int version : {1, 2, 3}) {
    const std::string head = npy(dict("'<f4'", "(3, 4)"), version);
    const NpyHeader header = parse(head, 48);
    EXPECT_EQ(header.layout, Layout(DType::f32, {3, 4}));
    EXPECT_EQ(header.data_offset, head.size());
    EXPECT_EQ(header.file_size, head.size() + 48);
  }
}

TEST(Npy, ShapesOfAllKinds) {
  EXPECT_EQ(parse(npy(dict("'|b1'", "()")), 1).layout, Layout(DType::boolean));
  EXPECT_EQ(parse(npy(dict("'<i8'", "(5,)")), 40).layout, Layout(DType::i64, {5}));
  EXPECT_EQ(parse(npy(dict("'<c16'", "(0, 7)")), 0).layout, Layout(DType::c128, {0, 7}));
  EXPECT_EQ(parse(npy(dict("'<u2'", "(2L, 3L)")), 12).layout, Layout(DType::u16, {2, 3}));
  EXPECT_EQ(parse(npy("{\"shape\":(2,),\"fortran_order\":False,\"descr\":\"=f2\"}"), 4).layout,
            Layout(DType::f16, {2}));
}

TEST(Npy, FortranOrderBecomesStrides) {
  const NpyHeader header = parse(npy(dict("'<f8'", "(2, 3, 4)", "True")), 192);
  const std::int64_t shape[] = {2, 3, 4};
  const std::int64_t strides[] = {1, 2, 6};
  EXPECT_EQ(header.layout, Layout(DType::f64, shape, strides));
  EXPECT_EQ(header.layout.extent_bytes(), 192u);
  EXPECT_EQ(parse(npy(dict("'<f8'", "(2, 0)", "True")), 0).layout, Layout(DType::f64, {2, 0}));
}

TEST(Npy, RefusesElementsThatAreNotPlainNumbers) {
  EXPECT_EQ(refusal(npy(dict("'|O'", "(3,)"))), ErrorCode::unsupported);
  EXPECT_EQ(refusal(npy(dict("'>f4'", "(3,)"))), ErrorCode::unsupported);
  EXPECT_EQ(refusal(npy(dict("'<U8'", "(3,)"))), ErrorCode::unsupported);
  EXPECT_EQ(refusal(npy(dict("'<M8[ns]'", "(3,)"))), ErrorCode::unsupported);
  EXPECT_EQ(refusal(npy(dict("'|V2'", "(3,)"))), ErrorCode::unsupported);
  EXPECT_EQ(refusal(npy(dict("[('a', '<f4')]", "(3,)"))), ErrorCode::unsupported);
  EXPECT_EQ(refusal(npy(dict("''", "(3,)"))), ErrorCode::unsupported);
  EXPECT_EQ(parse(npy(dict("'>u1'", "(3,)")), 3).layout, Layout(DType::u8, {3}));
}

TEST(Npy, RefusesLies) {
  EXPECT_EQ(refusal(npy(dict("'<f4'", "(3, 4)")), 47), ErrorCode::bad_file);
  EXPECT_EQ(refusal(npy(dict("'<f4'", "(-3,)"))), ErrorCode::bad_file);
  EXPECT_EQ(refusal(npy(dict("'<f4'", "(9223372036854775808,)"))), ErrorCode::bad_file);
  EXPECT_EQ(refusal(npy(dict("'<f4'", "(9223372036854775807, 4)"))), ErrorCode::bad_file);
  EXPECT_EQ(refusal(npy(dict("'<f4'", "3"))), ErrorCode::bad_file);
  EXPECT_EQ(refusal(npy(dict("'<f4'", "(3 4)"))), ErrorCode::bad_file);
  EXPECT_EQ(refusal(npy(dict("7", "(3,)"))), ErrorCode::bad_file);
  EXPECT_EQ(refusal(npy(dict("'<f4'", "(3,)", "1"))), ErrorCode::bad_file);
  EXPECT_EQ(refusal(npy(dict("'<f4'", "(3,)") + "x")), ErrorCode::bad_file);
  EXPECT_EQ(refusal(npy("{'descr': '<f4', 'shape': (3,)}")), ErrorCode::bad_file);
  EXPECT_EQ(refusal(npy("{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (3,)}")),
            ErrorCode::bad_file);
  EXPECT_EQ(refusal(npy("{'x': '<f4', 'fortran_order': False, 'shape': (3,)}")), ErrorCode::bad_file);
  EXPECT_EQ(refusal(npy(dict("'<f4'", "(3,)"), 4)), ErrorCode::unsupported);
  EXPECT_EQ(refusal("PK\x03\x04 not an array"), ErrorCode::bad_file);
  EXPECT_EQ(refusal(""), ErrorCode::bad_file);
}

TEST(Npy, EveryTruncationIsRefused) {
  const std::string head = npy(dict("'<f4'", "(3, 4)"));
  for (std::size_t length = 0; length < head.size(); ++length) {
    const std::string part = head.substr(0, length);
    EXPECT_THROW(parse_npy_header(std::as_bytes(std::span(part)), head.size() + 48), Error) << length;
    EXPECT_THROW(parse_npy_header(std::as_bytes(std::span(part)), length), Error) << length;
  }
}

TEST(Npy, ReadsFiles) {
  const ScratchDirectory directory;
  const std::string path = directory.path() + "/x.npy";
  const std::string head = npy(dict("'<i4'", "(2,)"));
  std::ofstream(path, std::ios::binary) << head << std::string(8, 'x');
  EXPECT_EQ(read_npy_header(open_file(path, O_RDONLY)).layout, Layout(DType::i32, {2}));
  for (const std::uint64_t size :
       {std::uint64_t{0}, std::uint64_t{5}, std::uint64_t{11}, head.size() - 1, head.size() + 7}) {
    std::filesystem::resize_file(path, size);
    EXPECT_THROW(read_npy_header(open_file(path, O_RDONLY)), Error) << size;
    std::ofstream(path, std::ios::binary) << head << std::string(8, 'x');
  }
}

}  // namespace
}  // namespace onecopy
