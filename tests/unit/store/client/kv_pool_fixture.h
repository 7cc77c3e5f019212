// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "onecopy/core/error.h"
#include "store/client/kv_pool_blocks.h"
#include "support/child.h"

namespace onecopy::store {

using Numbers = std::vector<std::uint32_t>;
using Keys = std::vector<std::string>;
using Found = std::vector<std::optional<std::uint32_t>>;

inline constexpr std::uint32_t kRecords = 8, kBlocks = 2 * kRecords;
inline constexpr std::uint64_t kBudget = kBlocks * 8;

/// A KV pool of two extents of eight blocks of eight bytes.
class KvPoolTest : public ::testing::Test {
 protected:
  KvPoolTest() : control_(KvPoolBlocks::make({2, kRecords, kBudget / 2})) {
    pool_.emplace(control_, KvPoolOptions{.block_bytes = 8}, [this](std::uint64_t, std::uint64_t) {
      populated_ += has_memory_;
      return has_memory_;
    });
  }

  std::optional<std::uint32_t> find(const std::string& key) {
    const auto found = pool_->find(std::span(&key, 1), true);
    return found.front();
  }
  Numbers put_some(const Keys& keys) {
    const Numbers numbers = pool_->allocate(static_cast<std::uint32_t>(keys.size()));
    for (std::size_t i = 0; i < keys.size(); ++i) EXPECT_TRUE(pool_->put(keys[i], numbers[i]));
    pool_->release(numbers);
    return numbers;
  }
  template <class Call>
  void expect_refused(Call&& call, ErrorCode code = ErrorCode::invalid_argument) {
    try {
      call();
      FAIL() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code) << error.what();
    }
  }

  std::uint32_t populated_ = 0;
  bool has_memory_ = true;
  Fd control_;
  std::optional<KvPoolBlocks> pool_;
};

}  // namespace onecopy::store
