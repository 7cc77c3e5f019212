// SPDX-License-Identifier: Apache-2.0
// Memory of one card used on another of the same process, the memory that a handle lets others see, and bundles in
// order.
#include <gtest/gtest.h>

#include "onecopy/channel/queue.h"
#include "onecopy/core/error.h"
#include "onecopy/memory/copy.h"
#include "onecopy/share/bundle.h"
#include "onecopy/share/share.h"
#include "onecopy/share/stats.h"
#include "support/cuda_kernel.h"
#include "support/cuda_streams.h"
#include "support/numbers.h"
#include "support/refusal.h"

namespace onecopy {
namespace {

using testing::close_with;
using testing::CudaCalls;
using testing::device_bytes;
using testing::element;
using testing::expect_refusal;
using testing::fill;
using testing::JoinedChild;
using testing::kCuda0;
using testing::set_element;

constexpr Device kCuda1{DeviceType::cuda, 1};
constexpr std::int64_t kCount = 1 << 16;

TensorView view_of(testing::CUdeviceptr at, std::int64_t count) {
  return {reinterpret_cast<void*>(at), Layout(DType::u8, {count}), kCuda0, Access::read_write};
}

class CudaOtherCard : public testing::OnCuda {
 protected:
  CudaOtherCard() : OnCuda(2) {}
};

/// Reads and writes it by work of the second card, a kernel and copies.
void use_on_second(const Tensor& tensor) {
  EXPECT_EQ(tensor.device(), kCuda1);
  EXPECT_EQ(testing::read_by_kernel(CudaCalls(), 1, tensor.as<std::byte>() + kCount - 1), 3);
  const Tensor mine = device_bytes(kCount, kCuda1);
  copy_into(tensor.view(), mine.view());
  EXPECT_EQ(element<unsigned char>(mine, kCount - 1), 3);
  set_element<unsigned char>(mine, 0, 4);
  copy_into(mine.view(), tensor.view());
}

TEST_F(CudaOtherCard, UsesTheMemoryWhereItIs) {
  JoinedChild owner([&] {
    const CudaCalls cu(0);
    const Tensor tensor = device_bytes(kCount);
    fill(cu, tensor, 3, nullptr);
    cu.cuCtxSynchronize();
    note->write(share(tensor).to_text());
    note->reach(2);
    EXPECT_EQ(element<unsigned char>(tensor, 0), 4);
  });
  JoinedChild borrower([&] {
    const Handle handle = Handle::from_text(note->read());
    const Tensor tensor = open(handle, {.device = kCuda1});
    use_on_second(tensor);
    EXPECT_EQ(share(tensor).fields().device, handle.fields().device) << "it still is the first card's";
    EXPECT_EQ(stats().foreign_segments, 1u);
    EXPECT_EQ(open(handle).data(), tensor.data()) << "the same mapping for both";
    note->step = 2;
  });
}

/// Asking makes none.
bool has_context(const CudaCalls& cu, int ordinal) {
  unsigned flags = 0;
  int active = 0;
  EXPECT_EQ(cu.cuDevicePrimaryCtxGetState(ordinal, &flags, &active), testing::CUDA_SUCCESS);
  return active != 0;
}

/// So rpc sends: a card writes into memory of the receiver's card, in the order of its own stream.
TEST_F(CudaOtherCard, IsWrittenFromHereAndFoundByItsGetterOnItsOwn) {
  JoinedChild putter([&] {
    const CudaCalls cu(0);
    const auto stream = cu.stream();
    Queue queue = Queue::create();
    note->write(queue.handle().to_text());
    const Tensor mine = device_bytes(kCount);
    close_with(cu, stream, *gate);
    fill(cu, mine, 3, stream);
    const Tensor theirs = use_on(empty(mine.layout(), kCuda1), kCuda0);
    copy_into(mine.view(), theirs.view(), Stream{stream});
    queue.put(theirs, Stream{stream});
    EXPECT_EQ(cu.cuStreamQuery(stream), testing::CUDA_ERROR_NOT_READY) << "putting has not waited";
    EXPECT_FALSE(has_context(cu, 1)) << "memory alone needs none";
    note->reach(2);
  });
  JoinedChild getter([&] {
    const CudaCalls cu;
    cu.use(1);
    const auto stream = cu.stream();
    Queue queue = Queue::connect(Handle::from_text(note->read()));
    const Tensor mine = device_bytes(kCount, kCuda1);
    {
      const Tensor tensor = queue.get_tensor(Stream{stream});
      EXPECT_EQ(tensor.device(), kCuda1);
      copy_into(tensor.view(), mine.view(), Stream{stream});
    }
    EXPECT_EQ(cu.cuStreamQuery(stream), testing::CUDA_ERROR_NOT_READY) << "getting has not waited";
    gate->open = true;
    EXPECT_EQ(cu.cuStreamSynchronize(stream), testing::CUDA_SUCCESS);
    EXPECT_EQ(element<unsigned char>(mine, kCount - 1), 3);
    EXPECT_FALSE(has_context(cu, 0));
    note->step = 2;
  });
}

/// A context costs each process 0.15 s and half a GiB of the other card.
TEST_F(CudaOtherCard, IsOpenedWithoutAContextThere) {
  JoinedChild owner([&] {
    const CudaCalls cu;
    cu.use(1);
    const Tensor tensor = device_bytes(kCount, kCuda1);
    fill(cu, tensor, 3, nullptr);
    cu.cuCtxSynchronize();
    note->write(share(tensor).to_text());
    note->reach(2);
  });
  JoinedChild borrower([&] {
    const CudaCalls cu(0);
    const Tensor tensor = open(Handle::from_text(note->read()), {.device = kCuda0});
    EXPECT_EQ(testing::read_by_kernel(cu, 0, tensor.as<std::byte>() + kCount - 1), 3);
    EXPECT_FALSE(has_context(cu, 1));
    note->step = 2;
  });
}

HandleFields open_and_share(const Handle& handle) { return share(open(handle)).fields(); }

/// Kernels of the second card do not find it where it was opened for the first, even with peer access: the handle is
/// opened for each.
TEST_F(CudaOtherCard, UsesWhatCudaMallocGave) {
  JoinedChild owner([&] {
    const CudaCalls cu(0);
    const Tensor tensor = adopt(view_of(cu.memory(kCount), kCount), nullptr);
    fill(cu, tensor, 3, nullptr);
    cu.cuCtxSynchronize();
    use_on_second(use_on(tensor, kCuda1));
    set_element<unsigned char>(tensor, 0, 3);
    note->write(share(tensor).to_text());
    note->reach(2);
    EXPECT_EQ(element<unsigned char>(tensor, 0), 4);
  });
  JoinedChild borrower([&] {
    const Handle handle = Handle::from_text(note->read());
    const Tensor tensor = open(handle, {.device = kCuda1});
    use_on_second(tensor);
    EXPECT_EQ(storage(tensor).data(), tensor.data());
    EXPECT_EQ(encode(share(tensor).fields()), encode(open_and_share(handle)))
        << "the same block, wherever it is";
    EXPECT_EQ(use_on(open(handle), kCuda1).data(), tensor.data());
    EXPECT_EQ(use_on(tensor, kCuda0).data(), open(handle).data());
    EXPECT_EQ(stats().foreign_segments, 1u);
    note->step = 2;
  });
}

TEST_F(CudaOtherCard, IsAllowedOnceForEachSegment) {
  if (!testing::is_simulated()) GTEST_SKIP() << "counts calls of the simulator";
  testing::in_child([] {
    const CudaCalls cu;
    const Tensor first = device_bytes(kCount);
    const Tensor second = device_bytes(kCount);
    EXPECT_EQ(use_on(first, kCuda1).device(), kCuda1);
    cu.sim_fail("cuMemSetAccess", testing::CUDA_ERROR_UNKNOWN, 0, 1);
    EXPECT_EQ(use_on(first, kCuda1).device(), kCuda1);
    EXPECT_EQ(use_on(second, kCuda1).device(), kCuda1) << "in the same segment";
    EXPECT_EQ(use_on(first, kCuda0).device(), kCuda0);
  });
}

TEST_F(CudaOtherCard, MayReadAndNotWriteWhatIsLentForReading) {
  JoinedChild owner([&] {
    const CudaCalls cu(0);
    const Tensor tensor = device_bytes(kCount);
    fill(cu, tensor, 3, nullptr);
    cu.cuCtxSynchronize();
    note->write(share(tensor).to_text());
    note->reach(2);
    EXPECT_EQ(element<unsigned char>(tensor, 0), 3);
  });
  JoinedChild borrower([&] {
    const Tensor tensor =
        open(Handle::from_text(note->read()), {.access = Access::read_only, .device = kCuda1});
    EXPECT_EQ(element<unsigned char>(tensor, 0), 3);
    expect_refusal(ErrorCode::invalid_argument, {"reading only"},
                   [&] { set_element<unsigned char>(tensor, 0, 9); });
    note->step = 2;
  });
}

TEST_F(CudaOtherCard, IsRefusedInWordsWhereThereIsNoPath) {
  if (!testing::is_simulated()) GTEST_SKIP() << "takes the simulator's peers away";
  testing::in_child_with({{"ONECOPY_SIM_CUDA_PEERS", "none"}}, [] {
    const CudaCalls cu(0);
    const Tensor tensor = device_bytes(kCount);
    expect_refusal(ErrorCode::unsupported, {"cuda:1 cannot reach", "no peer access", "copy"},
                   [&] { use_on(tensor, kCuda1); });
    const Tensor adopted = adopt(view_of(cu.memory(kCount), kCount), nullptr);
    expect_refusal(ErrorCode::unsupported, {"cuda:1 cannot reach"}, [&] { use_on(adopted, kCuda1); });
    copy_into(tensor.view(), device_bytes(kCount, kCuda1).view());  // which the driver does by some way
  });
}

TEST_F(CudaOtherCard, IsRefusedForWhatIsNotThere) {
  testing::in_child([] {
    const Tensor tensor = device_bytes(kCount);
    expect_refusal(ErrorCode::invalid_argument, {"there is no cuda:99"}, [&] {
      use_on(tensor, {DeviceType::cuda, 99});
    });
    expect_refusal(ErrorCode::invalid_argument, {"copy it there"}, [&] { use_on(tensor, kCpu); });
    expect_refusal(ErrorCode::invalid_argument, {"copy it there"},
                   [&] { use_on(testing::numbers(3), kCuda0); });
  });
}

// ---- what a handle lets others see

using CudaExact = testing::OnCuda;

TEST_F(CudaExact, APartOfAnAllocationIsRefusedWithTheNumbers) {
  testing::in_child([] {
    const CudaCalls cu(0);
    const auto at = cu.memory(1 << 20);
    const Tensor part = adopt(view_of(at + 4096, 1000), nullptr);
    expect_refusal(ErrorCode::unsupported, {"1000 bytes", "1048576", "allocation"},
                   [&] { share(part, {.exact = Exact::refuse}); });
    const Tensor whole = adopt(view_of(at, 1 << 20), nullptr);
    EXPECT_EQ(share(whole, {.exact = Exact::refuse}).fields().segment_size, std::uint64_t{1} << 20);
    const Tensor mapped = adopt(view_of(cu.mapped(2 << 20, 0), 1000), nullptr);
    expect_refusal(ErrorCode::unsupported, {"1000 bytes", "2097152"},
                   [&] { share(mapped, {.exact = Exact::refuse}); });
  });
}

TEST_F(CudaExact, OurOwnTensorIsSharedAndAViewOfItIsNot) {
  testing::in_child([] {
    const Tensor tensor = device_bytes(kCount);
    EXPECT_EQ(share(tensor, {.exact = Exact::refuse}).layout(), tensor.layout());
    expect_refusal(ErrorCode::unsupported, {"1000 bytes", "65536", "storage"},
                   [&] { share(tensor.slice(0, 0, 1000), {.exact = Exact::refuse}); });
  });
}

TEST_F(CudaExact, ACopyHasNothingElseInItAndLivesAsLongAsItsHandle) {
  testing::in_child([&] {
    const CudaCalls cu(0);
    const auto stream = cu.stream();
    const auto at = cu.memory(1 << 20);
    const Tensor part = adopt(view_of(at + 4096, 1000), nullptr);
    close_with(cu, stream, *gate);
    fill(cu, part, 8, stream);
    const Handle handle = share(part, {.exact = Exact::copy, .stream = Stream{stream}});
    EXPECT_EQ(cu.cuStreamQuery(stream), testing::CUDA_ERROR_NOT_READY) << "the host has not waited";
    EXPECT_EQ(handle.fields().storage_size, 1000u);
    gate->open = true;
    const Tensor copied = open(handle, {.stream = Stream{}});
    EXPECT_NE(copied.data(), part.data());
    EXPECT_EQ(element<unsigned char>(copied, 999), 8);
  });
}

// ---- bundles

TEST_F(CudaExact, ABundleIsWrittenBeforeItIsReadAndNoHostWaits) {
  JoinedChild owner([&] {
    const CudaCalls cu(0);
    const auto stream = cu.stream();
    std::vector<NamedTensor> tensors{{"a", device_bytes(kCount)}, {"host", testing::numbers(3)}};
    tensors.emplace_back("b", device_bytes(kCount));
    close_with(cu, stream, *gate);
    fill(cu, tensors[2].second, 6, stream);
    const Handle handle = share_bundle(tensors, {}, Stream{stream});
    EXPECT_EQ(cu.cuStreamQuery(stream), testing::CUDA_ERROR_NOT_READY);
    note->write(handle.to_text());
    note->reach(2);
  });
  JoinedChild borrower([&] {
    const CudaCalls cu(0);
    const auto stream = cu.stream();
    const Bundle bundle = Bundle::open(Handle::from_text(note->read()), {.stream = Stream{stream}});
    const Tensor tensor = bundle.tensor(2);
    EXPECT_EQ(testing::last_of(bundle.tensor(1)), 2);
    const Tensor mine = device_bytes(kCount);
    copy_into(tensor.view(), mine.view(), Stream{stream});
    EXPECT_EQ(cu.cuStreamQuery(stream), testing::CUDA_ERROR_NOT_READY);
    gate->open = true;
    EXPECT_EQ(cu.cuStreamSynchronize(stream), testing::CUDA_SUCCESS);
    EXPECT_EQ(element<unsigned char>(mine, kCount - 1), 6);
    note->step = 2;
  });
}

TEST_F(CudaOtherCard, ABundleOfTwoCardsIsInOrderOnBoth) {
  testing::in_child([&] {
    const CudaCalls cu;
    cu.use(1);
    std::vector<NamedTensor> tensors{{"a", device_bytes(kCount)}, {"b", device_bytes(kCount, kCuda1)}};
    expect_refusal(ErrorCode::invalid_argument, {"2 devices"},
                   [&] { share_bundle(tensors, {}, Stream{cu.stream()}); });
    close_with(cu, nullptr, *gate);
    fill(cu, tensors[1].second, 6, nullptr);
    const Handle handle = share_bundle(tensors, {}, Stream{});
    cu.use(0);
    const auto stream = cu.stream();
    const Tensor first = Bundle::open(handle, {.device = kCuda0, .stream = Stream{stream}}).tensor(0);
    EXPECT_EQ(cu.cuStreamQuery(stream), testing::CUDA_ERROR_NOT_READY) << "the point covers both cards";
    gate->open = true;
    EXPECT_EQ(cu.cuStreamSynchronize(stream), testing::CUDA_SUCCESS);
  });
}

}  // namespace
}  // namespace onecopy
