// SPDX-License-Identifier: Apache-2.0 A process uses memory of another process from its own card (sglang#22662).
// Opening once created a context on the owner's card, which took hundreds of megabytes for each consumer. Parts of the
// simulator alone are marked; a run on two real cards is still wanted.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <thread>

#include "onecopy/core/error.h"
#include "onecopy/memory/copy.h"
#include "onecopy/share/bundle.h"
#include "onecopy/share/share.h"
#include "support/child.h"
#include "support/cuda_kernel.h"
#include "support/cuda_streams.h"
#include "support/note.h"
#include "support/numbers.h"
#include "support/refusal.h"

namespace onecopy {
namespace {

using namespace testing;

constexpr Device kCuda1{DeviceType::cuda, 1};
constexpr std::int64_t kCount = 1 << 16;

bool has_context(int ordinal) {
  const CudaCalls cu;
  unsigned flags = 0;
  int active = -1;
  EXPECT_EQ(cu.cuInit(0), CUDA_SUCCESS);
  EXPECT_EQ(cu.cuDevicePrimaryCtxGetState(ordinal, &flags, &active), CUDA_SUCCESS);
  return active != 0;
}

/// Reads by a kernel and by a copy of the card that it was opened for.
void expect_threes(const Tensor& tensor) {
  const CudaCalls cu;
  EXPECT_EQ(read_by_kernel(cu, tensor.device().index, tensor.as<std::byte>() + kCount - 1), 3);
  const Tensor mine = device_bytes(kCount, tensor.device());
  copy_into(tensor.view(), mine.view());
  EXPECT_EQ(element<unsigned char>(mine, kCount - 1), 3);
}

void expect_all(const Tensor& tensor, unsigned char value) {
  const Tensor copy = empty(tensor.layout());
  copy_into(tensor.view(), copy.view());
  const auto* const bytes = copy.as<unsigned char>();
  EXPECT_EQ(std::count(bytes, bytes + kCount, value), kCount);
}

/// Writes, too.
void use(const Tensor& tensor) {
  expect_threes(tensor);
  const Tensor mine = device_bytes(kCount, tensor.device());
  copy_into(tensor.view(), mine.view());
  copy_into(mine.view(), tensor.view());
}

/// The owner's memory is the first card's: of onecopy, or of cudaMalloc, which is opened by its legacy handle.
class ConsumerDevice : public ::testing::TestWithParam<SegmentKind> {
 protected:
  void SetUp() override {
    if (cuda_devices() < 2) GTEST_SKIP() << "needs two CUDA devices";
  }

  using Borrow = std::function<void(const Handle&)>;
  /// The tensor of `borrow` in a process of its own is lent by another, which ends after it.
  void lend(const std::function<Handle(const Tensor&)>& make_handle, const Borrow& borrow) {
    JoinedChild owner([&] { own(make_handle); });
    JoinedChild borrower([&] {
      borrow(Handle::from_text(note->read()));
      note->step = 2;
    });
  }
  void lend(const Borrow& borrow) { lend(share_in_order, borrow); }
  static Handle share_in_order(const Tensor& tensor) { return share(tensor, {.stream = Stream{}}); }
  /// Owns the tensor until step 2.
  void own(const std::function<Handle(const Tensor&)>& make_handle) {
    const CudaCalls cu(0);
    const Tensor tensor = make(cu);
    fill(cu, tensor, 3, nullptr);
    cu.cuCtxSynchronize();
    const Handle handle = make_handle(tensor);
    note->write(handle.to_text());
    note->reach(2);
  }

  static bool is_legacy() { return GetParam() == SegmentKind::cuda_ipc; }

  Shared<Note> note;

 private:
  static Tensor make(const CudaCalls& cu) {
    if (!is_legacy()) return device_bytes(kCount);
    void* const at = reinterpret_cast<void*>(cu.memory(kCount));
    return adopt({at, Layout(DType::u8, {kCount}), kCuda0, Access::read_write}, nullptr);
  }
};

TEST_P(ConsumerDevice, Sglang22662HasAContextAndTheOwnersCardHasNone) {
  lend([](const Handle& handle) {
    {
      const Tensor tensor = open(handle, {.device = kCuda1, .stream = Stream{}});
      EXPECT_EQ(tensor.device(), kCuda1);
      use(tensor);
      EXPECT_EQ(storage(tensor).data(), tensor.data());
      EXPECT_EQ(share(tensor, {.stream = Stream{}}).fields().device, handle.fields().device)
          << "it is the first card's";
      EXPECT_EQ(open(handle, {.device = kCuda1}).data(), tensor.data());
    }
    EXPECT_TRUE(has_context(1));
    EXPECT_FALSE(has_context(0));
  });
}

TEST_P(ConsumerDevice, Sglang22662NorForATensorOfABundle) {
  const auto bundle_of = [](const Tensor& tensor) {
    return share_bundle(std::vector<NamedTensor>{{"weight", tensor}}, {}, Stream{});
  };
  lend(bundle_of, [](const Handle& handle) {
    const Bundle bundle = Bundle::open(handle, {.device = kCuda1, .stream = Stream{}});
    use(bundle.tensor(0));
    EXPECT_FALSE(has_context(0));
  });
}

TEST_P(ConsumerDevice, Sglang22662NorForWhatAnotherHasFromAnOwnerThatIsGone) {
  if (is_legacy()) GTEST_SKIP() << "such memory ends with its owner";
  Child owner([&] { own(share_in_order); });
  JoinedChild holder([&] {
    const Tensor tensor = open(Handle::from_text(note->read()), {.device = kCuda1, .stream = Stream{}});
    const Handle handle = share_in_order(tensor);
    note->write(handle.to_text(), 2);
    note->serve_until(3);
    EXPECT_FALSE(has_context(0));
  });
  EXPECT_EQ(owner.join(), 0);
  in_child([&] {
    use(open(Handle::from_text(note->read(2)), {.device = kCuda1, .stream = Stream{}}));
    EXPECT_FALSE(has_context(0));
    note->step = 3;
  });
}

/// Its number may be any in the process that opens it.
TEST_P(ConsumerDevice, Sglang22662NorWhereTheCardsHaveOtherNumbers) {
  lend([](const Handle& handle) {
    ::setenv("CUDA_VISIBLE_DEVICES", "1,0", 1);
    const Tensor tensor = open(handle, {.device = kCuda0, .stream = Stream{}});
    use(tensor);
    EXPECT_TRUE(has_context(0));
    EXPECT_FALSE(has_context(1)) << "the owner's, by its number here";
    EXPECT_EQ(open(handle).device(), kCuda1);
  });
}

TEST_P(ConsumerDevice, MayWantTheOwnersCardLater) {
  lend([](const Handle& handle) {
    const Tensor there = open(handle, {.device = kCuda1, .stream = Stream{}});
    use(there);
    const Tensor home = open(handle, {.stream = Stream{}});
    EXPECT_EQ(home.device(), kCuda0);
    use(home);
    use(there);
    EXPECT_EQ(storage(home).data(), home.data());
    EXPECT_EQ(encode(share(home).fields()), encode(share(there).fields())) << "the same block";
    EXPECT_EQ(use_on(there, kCuda0).data(), home.data());
  });
}

TEST_P(ConsumerDevice, MayHaveWantedTheOwnersCardBefore) {
  lend([](const Handle& handle) {
    const Tensor home = open(handle, {.stream = Stream{}});
    use(home);
    const Tensor there = open(handle, {.device = kCuda1, .stream = Stream{}});
    EXPECT_EQ(there.device(), kCuda1);
    use(there);
    use(home);
    EXPECT_EQ(storage(there).data(), there.data());
    EXPECT_EQ(encode(share(there).fields()), encode(share(home).fields())) << "the same block";
    EXPECT_EQ(use_on(home, kCuda1).data(), there.data());
  });
}

/// The owner's card holds memory of the borrower, too, and knows of no tensor that was opened for it.
TEST_P(ConsumerDevice, MayCopyToTheOwnersCardAndBackBeforeAnythingWasOpenedForIt) {
  lend([](const Handle& handle) {
    const Tensor there = open(handle, {.device = kCuda1, .stream = Stream{}});
    const Tensor home = device_bytes(kCount, kCuda0);
    copy_into(there.view(), home.view());
    expect_all(home, 3);
    const CudaCalls cu(0);
    fill(cu, home, 5, nullptr);
    EXPECT_EQ(cu.cuCtxSynchronize(), CUDA_SUCCESS);
    copy_into(home.view(), there.view());
    expect_all(there, 5);
    EXPECT_EQ(read_by_kernel(cu, 1, there.data()), 5);
    EXPECT_EQ(element<unsigned char>(open(handle), kCount - 1), 5) << "it is the owner's memory";
  });
}

TEST_P(ConsumerDevice, MayWantBothAtOnce) {
  lend([](const Handle& handle) {
    const auto read = [&handle](Device device) {
      for (int i = 0; i < 10; ++i) expect_threes(open(handle, {.device = device, .stream = Stream{}}));
    };
    std::thread other([&] { read(kCuda1); });
    read(kCuda0);
    other.join();
  });
}

/// Of memory of cudaMalloc, reading only is a promise that the driver knows nothing of.
TEST_P(ConsumerDevice, ReadsAndDoesNotWriteWhatIsOpenedForReading) {
  const auto expect_readable_only = [](const Tensor& tensor) {
    const CudaCalls cu;
    EXPECT_EQ(read_by_kernel(cu, tensor.device().index, tensor.data()), 3);
    if (is_legacy()) return;
    const unsigned char nine = 9;
    EXPECT_EQ(cu.cuMemcpyHtoD(reinterpret_cast<CUdeviceptr>(tensor.data()), &nine, 1),
              CUDA_ERROR_INVALID_VALUE);
  };
  lend([&](const Handle& handle) {
    const Tensor there = open(handle, {.access = Access::read_only, .device = kCuda1, .stream = Stream{}});
    expect_readable_only(there);
    EXPECT_FALSE(has_context(0));
    const Tensor home = open(handle, {.access = Access::read_only, .stream = Stream{}});
    expect_readable_only(home);
    expect_readable_only(there);
    use(open(handle, {.device = kCuda1}));  // for writing: another mapping
  });
}

TEST_P(ConsumerDevice, HearsInWordsThatThereIsNoPathAndMayUseTheOwnersCard) {
  if (!is_simulated()) GTEST_SKIP() << "takes the simulator's peers away";
  lend([](const Handle& handle) {
    ::setenv("ONECOPY_SIM_CUDA_PEERS", "none", 1);
    const auto open_there = [&] { open(handle, {.device = kCuda1}); };
    const auto words = {"cuda:1 cannot reach memory of cuda:0", "no peer access", "open it on cuda:0"};
    expect_refusal(ErrorCode::unsupported, words, open_there);
    EXPECT_FALSE(has_context(0));
    use(open(handle, {.stream = Stream{}}));
    expect_refusal(ErrorCode::unsupported, words, open_there);
  });
}

TEST_P(ConsumerDevice, HearsThatACardIsNotThereAndMayUseOthers) {
  lend([](const Handle& handle) {
    const auto open_nowhere = [&] { open(handle, {.device = Device{DeviceType::cuda, 99}}); };
    expect_refusal(ErrorCode::invalid_argument, {"there is no cuda:99"}, open_nowhere);
    expect_refusal(ErrorCode::invalid_argument, {"copy it there"}, [&] { open(handle, {.device = kCpu}); });
    use(open(handle, {.device = kCuda1, .stream = Stream{}}));
    expect_refusal(ErrorCode::invalid_argument, {"there is no cuda:99"}, open_nowhere);
  });
}

TEST_P(ConsumerDevice, HearsThatTheOwnersCardIsHidden) {
  lend([](const Handle& handle) {
    ::setenv("CUDA_VISIBLE_DEVICES", "1", 1);
    expect_refusal(ErrorCode::unsupported, {"UUID", "CUDA_VISIBLE_DEVICES"},
                   [&] { open(handle, {.device = kCuda0}); });
  });
}

TEST_P(ConsumerDevice, OpensALegacyHandleOnceForEachCard) {
  if (!is_legacy()) GTEST_SKIP() << "the other kind is mapped once for all";
  if (!is_simulated()) GTEST_SKIP() << "counts calls of the simulator";
  lend([](const Handle& handle) {
    CudaCalls().sim_fail("cuIpcOpenMemHandle", CUDA_ERROR_UNKNOWN, 2, -1);
    const Tensor there = open(handle, {.device = kCuda1});
    const Tensor home = open(handle);
    EXPECT_EQ(open(handle, {.device = kCuda1}).data(), there.data());
    EXPECT_EQ(open(handle).data(), home.data());
    EXPECT_NE(home.data(), there.data());
  });
}

INSTANTIATE_TEST_SUITE_P(Of, ConsumerDevice,
                         ::testing::Values(SegmentKind::cuda_vmm, SegmentKind::cuda_ipc),
                         [](const auto& kind) {
                           return kind.param == SegmentKind::cuda_vmm ? "Onecopy" : "CudaMalloc";
                         });

}  // namespace
}  // namespace onecopy
