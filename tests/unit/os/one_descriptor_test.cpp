// SPDX-License-Identifier: Apache-2.0
#include "os/one_descriptor.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <utility>
#include <vector>

#include "onecopy/core/error.h"
#include "os/memfd.h"

namespace onecopy {
namespace {

bool is_descriptor(int number) { return ::fcntl(number, F_GETFD) != -1; }

TEST(OneDescriptor, IsOwnedByAllThatHaveTheFileOpenAndClosedWithTheLast) {
  const Fd file = create_memfd("test", 4096);
  Fd first = one_descriptor_of(file.duplicate());
  Fd second = one_descriptor_of(file.duplicate());
  const Fd moved = std::move(second);
  const int number = first.get();
  EXPECT_EQ(moved.get(), number);
  EXPECT_NE(number, file.get());
  first.reset();
  EXPECT_TRUE(is_descriptor(number));
  first = one_descriptor_of(file.duplicate());
  EXPECT_EQ(first.get(), number);
}

TEST(OneDescriptor, IsClosedWithItsLastOwner) {
  const Fd file = create_memfd("test", 4096);
  std::vector<Fd> owners;
  for (int i = 0; i < 3; ++i) owners.push_back(one_descriptor_of(file.duplicate()));
  const int number = owners.front().get();
  owners.resize(1);
  EXPECT_TRUE(is_descriptor(number));
  owners.clear();
  EXPECT_FALSE(is_descriptor(number));
}

TEST(OneDescriptor, IsAnotherForAnotherFileAndForAnotherAccess) {
  const Fd file = create_memfd("test", 4096);
  const Fd writable = one_descriptor_of(file.duplicate());
  const Fd readable = one_descriptor_of(reopen_read_only(file));
  const Fd other = one_descriptor_of(create_memfd("test", 4096));
  EXPECT_NE(readable.get(), writable.get());
  EXPECT_NE(other.get(), writable.get());
  EXPECT_EQ(::write(readable.get(), "x", 1), -1);
  EXPECT_EQ(::write(writable.get(), "x", 1), 1);
}

/// As a program that becomes a daemon does, which closes all descriptors and then opens files of its own.
TEST(OneDescriptor, IsNotOneWhoseNumberWasGivenToAnotherFile) {
  const Fd file = create_memfd("test", 4096);
  const Fd lost = one_descriptor_of(file.duplicate());
  ASSERT_EQ(::dup2(STDERR_FILENO, lost.get()), lost.get());
  const Fd again = one_descriptor_of(file.duplicate());
  EXPECT_NE(again.get(), lost.get());
  EXPECT_EQ(file_size(again), 4096u);
}

TEST(OneDescriptor, OfManyFilesThatWereClosedIsFoundAsBefore) {
  const Fd file = create_memfd("test", 4096);
  const Fd kept = one_descriptor_of(file.duplicate());
  for (int i = 0; i < 500; ++i) one_descriptor_of(create_memfd("test", 4096));
  EXPECT_EQ(one_descriptor_of(file.duplicate()).get(), kept.get());
}

TEST(OneDescriptor, OfAClosedDescriptorIsAnError) { EXPECT_THROW(one_descriptor_of(Fd()), Error); }

}  // namespace
}  // namespace onecopy
