// SPDX-License-Identifier: Apache-2.0
// A keeper that is started by hand within a container ends with the control group of the container.
#include <gtest/gtest.h>

#include <cstdlib>
#include <optional>
#include <vector>

#include "onecopy/core/error.h"
#include "onecopy/store/store.h"
#include "store/keeper/keeper.h"
#include "support/child.h"
#include "support/eventually.h"
#include "support/memory_group.h"
#include "support/numbers.h"
#include "support/refusal.h"
#include "support/temporary_directory.h"

namespace onecopy::store {
namespace {

using onecopy::testing::Child;
using onecopy::testing::element;
using onecopy::testing::eventually;
using onecopy::testing::expect_refusal;
using onecopy::testing::MemoryGroup;
using onecopy::testing::set_element;

Store connect_to_keeper() {
  std::optional<Store> store;
  EXPECT_TRUE(eventually([&] {
    try {
      store.emplace(Store::connect({.autostart = false}));
    } catch (const Error&) {  // the keeper begins
    }
    return store.has_value();
  }));
  return std::move(store).value();
}

std::uint64_t publish_number(Store& store, const std::string& name, std::int64_t value) {
  const std::vector<TensorSpec> rows{{"a", Layout(DType::i64, {1000})}};
  Draft draft = store.draft(name, rows);
  for (std::int64_t i = 0; i < 1000; ++i) set_element(draft.tensor(0), i, value);
  return draft.publish();
}

TEST(KilledGroup, TakesBothHalvesOfTheKeeperAndNoVersionThatAProcessReads) {
  const MemoryGroup group(std::uint64_t{64} << 20);
  if (!group) GTEST_SKIP() << MemoryGroup::kObstacle;
  const TemporaryDirectory directory;
  ::setenv("ONECOPY_STORE_DIR", directory.path().c_str(), 1);
  Child first([&] {
    group.join();
    serve(StoreDirectory(directory.path()), {});
  });
  Store store = connect_to_keeper();
  EXPECT_EQ(publish_number(store, "read", 7), 1u);
  EXPECT_EQ(publish_number(store, "unread", 8), 1u);
  const Version version = store.open("read");
  group.kill();
  EXPECT_EQ(first.join(), -SIGKILL);
  EXPECT_EQ(element(version.tensor(0), 999), 7);
  Child second([&] { serve(StoreDirectory(directory.path()), {}); });
  Store other = connect_to_keeper();
  store.list();  // this client connects again, and gives back what it reads
  EXPECT_EQ(element(other.open("read").tensor(0), 999), 7);
  expect_refusal(ErrorCode::stale_handle, {"unread"}, [&] { other.open("unread"); });
  EXPECT_EQ(publish_number(other, "read", 9), 2u);
  EXPECT_EQ(publish_number(other, "unread", 9), 2u);
  EXPECT_EQ(element(version.tensor(0), 0), 7);
  store.stop();
  EXPECT_EQ(second.join(), 0);
}

}  // namespace
}  // namespace onecopy::store
