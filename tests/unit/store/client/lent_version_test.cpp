// SPDX-License-Identifier: Apache-2.0
// Tensors of versions that C++ programs share and put into queues.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <optional>

#include <fmt/format.h>

#include "onecopy/channel/queue.h"
#include "onecopy/core/error.h"
#include "onecopy/share/bundle.h"
#include "onecopy/share/pin.h"
#include "onecopy/share/share.h"
#include "onecopy/share/stats.h"
#include "onecopy/store/store.h"
#include "share/session.h"
#include "store/keeper/keeper.h"
#include "support/child.h"
#include "support/eventually.h"
#include "support/numbers.h"
#include "support/refusal.h"

namespace onecopy::store {
namespace {

using onecopy::testing::Child;
using onecopy::testing::element;
using onecopy::testing::eventually;
using onecopy::testing::expect_refusal;
using onecopy::testing::JoinedChild;
using onecopy::testing::set_element;
using onecopy::testing::Shared;

class LentVersionTest : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ = fmt::format("{}onecopy-lent-test-{}", ::testing::TempDir(), ::getpid());
    ::setenv("ONECOPY_STORE_DIR", directory_.c_str(), 1);
    keeper_.emplace([this] { serve(StoreDirectory(directory_), {}); });
    ASSERT_TRUE(eventually([&] {
      try {
        store_.emplace(Store::connect({.autostart = false}));
      } catch (const Error&) {  // the keeper begins
      }
      return store_.has_value();
    }));
  }
  void TearDown() override {
    if (store_) store_->stop();
    std::filesystem::remove_all(directory_);
  }
  /// Publishes a version of two tensors whose elements are all `value`.
  void publish(std::int64_t value, Device device = kCpu) {
    Draft draft = store_->draft("x", kRows, device, {.keep = 1});
    for (std::size_t row = 0; row < draft.size(); ++row)
      for (std::int64_t i = 0; i < draft.layout(row).numel(); ++i) set_element(draft.tensor(row), i, value);
    draft.publish();
  }
  std::vector<std::uint64_t> versions() {
    std::vector<std::uint64_t> numbers;
    const ObjectInfo object = store_->list().front();
    for (const VersionInfo& version : object.versions) numbers.push_back(version.number);
    return numbers;
  }

  const std::vector<TensorSpec> kRows{{"a", Layout(DType::i64, {1000})}, {"b", Layout(DType::i64, {2, 3})}};
  std::string directory_;
  std::optional<Child> keeper_;
  std::optional<Store> store_;
};

TEST_F(LentVersionTest, AnotherProcessOpensATensorOfAVersionAndWritesToItsOwnPages) {
  publish(7);
  const Version version = store_->open("x");
  const Handle handle = share(version.tensor(0));
  const std::string text = handle.to_text();
  JoinedChild child([&] {
    const Tensor opened = open(Handle::from_text(text));
    EXPECT_EQ(opened.access(), Access::read_write);
    EXPECT_EQ(element(opened, 999), 7);
    set_element<std::int64_t>(opened, 0, 8);
    EXPECT_EQ(element(opened, 0), 8);
    EXPECT_EQ(element(open(Handle::from_text(text), Access::read_only), 0), 7);
  });
  EXPECT_EQ(child.join(), 0);
  EXPECT_EQ(element(version.tensor(0), 0), 7);
}

TEST_F(LentVersionTest, TheSenderItselfOpensACopyForWritingAndTheMemoryForReading) {
  publish(7);
  const Version version = store_->open("x");
  const Handle handle = share(version.tensor(1));
  const Tensor opened = open(handle);
  set_element<std::int64_t>(opened, 0, 8);
  EXPECT_EQ(element(version.tensor(1), 0), 7);
  EXPECT_EQ(element(open(handle, Access::read_only), 0), 7);
  EXPECT_EQ(element(open(share(opened)), 0), 8);
}

TEST_F(LentVersionTest, AQueueABundleAndAMessageLend) {
  publish(7);
  const Version version = store_->open("x");
  Queue queue = Queue::create({});
  queue.put(version.tensor(0));
  queue.put(Message{.tag = 3, .tensors = {version.tensor(1), version.tensor(0)}});
  const NamedTensor named[] = {{"one", version.tensor(0)}, {"two", version.tensor(1)}};
  const Handle bundle = share_bundle(named);
  const Handle to_queue = queue.handle();
  JoinedChild child([&] {
    Queue of_child = Queue::connect(to_queue);
    const Tensor tensor = of_child.get_tensor();
    EXPECT_EQ(element(tensor, 999), 7);
    const Message message = of_child.get();
    EXPECT_EQ(element(message.tensors.at(0), 5), 7);
    EXPECT_EQ(element(message.tensors.at(1), 999), 7);
    EXPECT_EQ(element(Bundle::open(bundle).tensor(1), 0), 7);
  });
  EXPECT_EQ(child.join(), 0);
}

TEST_F(LentVersionTest, WhatAReceiverMayHaveWrittenIsSentOnAsACopyAndNotPinned) {
  publish(7);
  const Version version = store_->open("x");
  Queue there = Queue::create({}), back = Queue::create({});
  there.put(version.tensor(0));
  const Handle to_there = there.handle(), to_back = back.handle();
  JoinedChild child([&] {
    const Tensor received = Queue::connect(to_there).get_tensor();
    set_element<std::int64_t>(received, 3, 9);
    EXPECT_FALSE(is_sendable(received));
    expect_refusal(ErrorCode::unsupported, {"pin a copy"}, [&] { pin(received); });
    Queue of_child = Queue::connect(to_back);
    of_child.put(received);
    of_child.put(Message{.tensors = {received}});
  });
  EXPECT_EQ(child.join(), 0);
  EXPECT_EQ(element(back.get_tensor(), 3), 9);
  EXPECT_EQ(element(back.get().tensors.at(0), 3), 9);
  EXPECT_EQ(element(version.tensor(0), 3), 7);
}

TEST_F(LentVersionTest, TheVersionStaysUntilTheLastReceiverHasGone) {
  publish(7);
  std::optional<Version> version = store_->open("x");
  std::optional<Handle> handle = share(version->tensor(0));
  Shared<std::atomic<bool>> is_open;
  Child child([&] {
    const Tensor opened = open(*handle);
    is_open->store(true);
    ::pause();
  });
  EXPECT_TRUE(eventually([&] { return is_open->load(); }));
  version.reset();
  handle.reset();
  publish(8);
  EXPECT_EQ(versions(), (std::vector<std::uint64_t>{1, 2}));
  child.kill();
  child.join();
  EXPECT_TRUE(eventually([&] { return versions() == std::vector<std::uint64_t>{2}; }));
}

// The rest is about a card. The children begin first: a driver works in the process that has loaded it.

constexpr Device kCard{DeviceType::cuda, 0};

TEST_F(LentVersionTest, AReceiverOfACardsVersionReadsItsMemory) {
  Queue queue = Queue::create({});
  JoinedChild child([to_queue = queue.handle()] {
    Queue of_child = Queue::connect(to_queue);
    const Tensor received = of_child.get_tensor();
    EXPECT_EQ(received.device(), kCard);
    EXPECT_EQ(received.access(), Access::read_only);
    EXPECT_EQ(element(received, 999), 7);
    const Message message = of_child.get();
    EXPECT_EQ(element(message.tensors.at(0), 5), 7);
  });
  publish(7, kCard);
  const Version version = store_->open("x");
  queue.put(version.tensor(0));
  queue.put(Message{.tensors = {version.tensor(1)}});
  EXPECT_EQ(stats().device_segments, 1U) << "the version";
  EXPECT_EQ(stats().device_bytes, 0U) << "memory was made for a copy";
  EXPECT_EQ(child.join(), 0);
}

TEST_F(LentVersionTest, ACardsVersionIsSentOnAndOutlivesEverybodyElse) {
  Queue first = Queue::create({}), second = Queue::create({});
  Child sender([&, to_first = first.handle()] {
    publish(7, kCard);
    Queue::connect(to_first).put(Store::connect({.autostart = false}).open("x").tensor(0));
    ::pause();
  });
  Child between([to_first = first.handle(), to_second = second.handle()] {
    Queue::connect(to_second).put(Queue::connect(to_first).get_tensor());
    ::pause();
  });
  ASSERT_TRUE(eventually([&] { return second.size() == 1; }));
  for (Child* dies : {&sender, &between}) {
    dies->kill();
    dies->join();
  }
  store_->remove("x");
  const Tensor received = second.get_tensor();
  EXPECT_EQ(element(received, 999), 7);
}

TEST_F(LentVersionTest, ACardsVersionStaysUntilTheLastReceiverHasGone) {
  Queue queue = Queue::create({});
  Shared<std::atomic<bool>> is_open;
  Child child([&, to_queue = queue.handle()] {
    const Tensor received = Queue::connect(to_queue).get_tensor();
    is_open->store(true);
    ::pause();
  });
  publish(7, kCard);
  queue.put(store_->open("x").tensor(0));
  EXPECT_TRUE(eventually([&] { return is_open->load(); }));
  publish(8, kCard);
  EXPECT_EQ(versions(), (std::vector<std::uint64_t>{1, 2}));
  child.kill();
  child.join();
  EXPECT_TRUE(eventually([&] { return versions() == std::vector<std::uint64_t>{2}; }));
}

TEST_F(LentVersionTest, ACardsVersionIsOpenedForReadingAlsoByTheProcessThatSharesIt) {
  publish(7, kCard);
  const Version version = store_->open("x");
  const Handle handle = share(version.tensor(0));
  expect_refusal(ErrorCode::read_only, {"for reading only"}, [&] { open(handle); });
  EXPECT_EQ(element(open(handle, Access::read_only), 999), 7);
}

TEST_F(LentVersionTest, WhatCannotBeLentIsSentAsACopy) {
  const Tensor own = onecopy::testing::numbers(1000);
  const std::vector<NamedTensor> named{{"a", own}, {"none", empty(Layout(DType::u8, {0}))}};
  store_->publish("x", named, {.place = Placement::as_is});
  const Version version = store_->open("x");
  Queue queue = Queue::create({});
  for (std::size_t row = 0; row < 2; ++row) {
    queue.put(version.tensor(row));
    const Tensor received = queue.get_tensor();
    EXPECT_EQ(received.nbytes(), version.tensor(row).nbytes());
    EXPECT_NE(received.data(), own.data());
  }
  const Tensor opened = open(share(version.tensor(0)));
  set_element<std::int64_t>(opened, 999, 5);
  EXPECT_EQ(element(version.tensor(0), 999), 999);
}

TEST_F(LentVersionTest, ADraftIsNotLent) {
  const Draft draft = store_->draft("x", kRows, kCpu, {});
  expect_refusal(ErrorCode::invalid_argument, {"share onecopy::copy(tensor.view()) instead"},
                 [&] { share(draft.tensor(0)); });
}

}  // namespace
}  // namespace onecopy::store
