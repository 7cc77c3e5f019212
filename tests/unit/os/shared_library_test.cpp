// SPDX-License-Identifier: Apache-2.0
#include "os/shared_library.h"

#include <gtest/gtest.h>

#include "expect_error.h"

namespace onecopy {
namespace {

TEST(SharedLibrary, OpensTheFirstNameThatLoads) {
  const auto library = SharedLibrary::open({"libnothing-of-this-name.so", "libm.so.6"});
  ASSERT_TRUE(library);
  EXPECT_EQ(library->name(), "libm.so.6");
  const auto cosine = reinterpret_cast<double (*)(double)>(library->symbol("cos"));
  ASSERT_NE(cosine, nullptr);
  EXPECT_EQ(cosine(0.0), 1.0);
}

TEST(SharedLibrary, MissingSymbolsAreNull) {
  const auto library = SharedLibrary::open({"libm.so.6"});
  ASSERT_TRUE(library);
  EXPECT_EQ(library->symbol("no_such_symbol"), nullptr);
}

TEST(SharedLibrary, WhatIsLoadedIsKnownByAnyOfItsNames) {
  EXPECT_FALSE(SharedLibrary::is_loaded({"libnothing-of-this-name.so", "libanl.so.1"}));
  EXPECT_TRUE(SharedLibrary::is_loaded({"libnothing-of-this-name.so", "libc.so.6"}));
  EXPECT_FALSE(SharedLibrary::is_loaded({}));
}

TEST(SharedLibrary, AnAbsentOneIsNoErrorAndTellsWhyForEveryName) {
  std::string why;
  EXPECT_FALSE(SharedLibrary::open({"libabsent-one.so", "libabsent-two.so"}, &why));
  EXPECT_PRED2(contains, why, "libabsent-one.so");
  EXPECT_PRED2(contains, why, "libabsent-two.so");
  EXPECT_FALSE(SharedLibrary::open({}));
}

}  // namespace
}  // namespace onecopy
