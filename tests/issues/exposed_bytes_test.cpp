// SPDX-License-Identifier: Apache-2.0
// pytorch#9447: to send a view shows the receiver the whole storage, silently. With Exact::refuse the bytes that
// others could see beside the tensor are counted, except for the rounding of frameworks' allocators.
#include <gtest/gtest.h>

#include <string>

#include "onecopy/share/share.h"
#include "support/child.h"
#include "support/cuda_streams.h"
#include "support/note.h"
#include "support/refusal.h"

namespace onecopy {
namespace {

using namespace testing;

constexpr ShareOptions kExact{.exact = Exact::refuse};
constexpr std::int64_t kBytes = 1000;

void expect_refused(const Tensor& tensor, std::int64_t seen) {
  expect_refusal(ErrorCode::unsupported, {"1000 bytes", std::to_string(seen).c_str()},
                 [&] { share(tensor, kExact); });
}

class ExposedBytes : public ::testing::TestWithParam<std::int64_t> {
 protected:
  const std::int64_t all = kBytes + GetParam();
};

TEST_P(ExposedBytes, OfAStorageOfOursAreRefused) {
  const Tensor whole = empty(Layout(DType::u8, {all}));
  EXPECT_NO_THROW(share(whole, kExact));
  expect_refused(whole.slice(0, 0, kBytes), all);
  expect_refused(whole.slice(0, all - kBytes, all), all);
}

TEST_P(ExposedBytes, OfABorrowedStorageAreRefused) {
  Shared<Note> note;
  JoinedChild owner([&] {
    const Tensor whole = empty(Layout(DType::u8, {all}));
    note->write(share(whole).to_text());
    note->reach(2);
  });
  {
    const Tensor whole = open(Handle::from_text(note->read()));
    EXPECT_NO_THROW(share(whole, kExact));
    expect_refused(whole.slice(0, 0, kBytes), all);
  }
  note->step = 2;
}

/// A framework's allocation may be rounded up behind the tensor that it is for, and never before it.
TEST_P(ExposedBytes, OfAnAllocationOfOthersAreRefusedBeforeTheTensorAndFrom512OnBehindIt) {
  if (cuda_devices() < 1) GTEST_SKIP() << "no CUDA device on this machine";
  in_child([&] {
    const CudaCalls cu(0);
    const auto adopted = [&](CUdeviceptr at) {
      return adopt({reinterpret_cast<void*>(at), Layout(DType::u8, {kBytes}), kCuda0, Access::read_write},
                   nullptr);
    };
    const auto at = cu.memory(static_cast<std::size_t>(all));
    expect_refused(adopted(at + static_cast<CUdeviceptr>(GetParam())), all);
    if (GetParam() >= 512) expect_refused(adopted(at), all);
    else EXPECT_NO_THROW(share(adopted(at), kExact));
  });
}

INSTANTIATE_TEST_SUITE_P(More, ExposedBytes, ::testing::Values(1, 511, 512),
                         [](const auto& more) { return std::to_string(more.param) + "Bytes"; });

}  // namespace
}  // namespace onecopy
