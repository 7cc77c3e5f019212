// SPDX-License-Identifier: Apache-2.0
#include "onecopy/memory/dlpack.h"

#include <gtest/gtest.h>

#include <vector>

#include "counting_keeper.h"
#include "onecopy/core/error.h"
#include "support/ascend_calls.h"
#include "support/refusal.h"

namespace onecopy {
namespace {

/// A producer of DLPack tensors that counts how often its deleter was called.
struct Producer {
  Producer() {
    managed.version = {1, 1};
    managed.manager_ctx = this;
    managed.deleter = [](DLManagedTensorVersioned* self) {
      ++static_cast<Producer*>(self->manager_ctx)->deleted;
    };
    managed.flags = 0;
    managed.dl_tensor = {memory.data(), {kDLCpu, 0}, 2, {2, 32, 1}, shape.data(), strides.data(), 0};
    old.manager_ctx = this;
    old.deleter = [](DLManagedTensor* self) { ++static_cast<Producer*>(self->manager_ctx)->deleted; };
  }
  DLTensor& tensor() { return managed.dl_tensor; }
  DLManagedTensor* as_old() {
    old.dl_tensor = managed.dl_tensor;
    return &old;
  }

  std::vector<float> memory = std::vector<float>(64);
  std::vector<std::int64_t> shape{2, 3};
  std::vector<std::int64_t> strides{3, 1};
  DLManagedTensorVersioned managed{};
  DLManagedTensor old{};
  int deleted = 0;
};

ErrorCode refusal(Producer& producer) {
  try {
    from_dlpack(&producer.managed);
  } catch (const Error& error) {
    EXPECT_EQ(producer.deleted, 1) << "a refused tensor must be given back";
    return error.code();
  }
  ADD_FAILURE() << "nothing was thrown";
  return ErrorCode::system;
}

struct DlpackExport : ::testing::Test {
  Tensor make(Layout layout, Access access = Access::read_write) {
    return Tensor(keeper.make(), memory.data(), std::move(layout), kCpu, access);
  }
  CountingKeeper keeper;
  std::vector<std::byte> memory = std::vector<std::byte>(4096);
};

TEST_F(DlpackExport, SaysWhatTheTensorIs) {
  const std::int64_t shape[] = {3, 4};
  const std::int64_t strides[] = {8, 2};
  DLManagedTensorVersioned* managed = to_dlpack_versioned(make(Layout(DType::bf16, shape, strides)));
  EXPECT_EQ(managed->version.major, 1u);
  EXPECT_EQ(managed->flags, 0u);
  const DLTensor& out = managed->dl_tensor;
  EXPECT_EQ(out.data, memory.data());
  EXPECT_EQ(out.byte_offset, 0u);
  EXPECT_EQ(out.device.device_type, kDLCpu);
  ASSERT_EQ(out.ndim, 2);
  EXPECT_EQ(out.shape[0], 3);
  EXPECT_EQ(out.shape[1], 4);
  EXPECT_EQ(out.strides[0], 8);
  EXPECT_EQ(out.strides[1], 2);
  EXPECT_EQ(out.dtype.code, 4);
  EXPECT_EQ(out.dtype.bits, 16);
  EXPECT_EQ(out.dtype.lanes, 1);
  managed->deleter(managed);
}

TEST_F(DlpackExport, KeepsTheBlockUntilTheDeleterIsCalled) {
  DLManagedTensorVersioned* managed = to_dlpack_versioned(make(Layout(DType::f32, {3})));
  DLManagedTensor* old = to_dlpack(make(Layout(DType::f32, {3})));
  EXPECT_EQ(keeper.references, 2);
  managed->deleter(managed);
  EXPECT_EQ(keeper.references, 1);
  old->deleter(old);
  EXPECT_EQ(keeper.references, 0);
}

TEST_F(DlpackExport, ReadOnlyIsAFlagWhichTheOldFormDoesNotHave) {
  const Tensor tensor = make(Layout(DType::f32, {3}), Access::read_only);
  DLManagedTensorVersioned* managed = to_dlpack_versioned(tensor);
  EXPECT_EQ(managed->flags, kDLReadOnly);
  managed->deleter(managed);
  EXPECT_THROW(to_dlpack(tensor), Error);
  EXPECT_EQ(keeper.references, 1);
}

TEST_F(DlpackExport, MemoryOfACudaDeviceKeepsItsDevice) {
  const Device device{DeviceType::cuda, 3};
  const Tensor tensor(keeper.make(), memory.data(), Layout(DType::f32, {3}), device, Access::read_write);
  DLManagedTensorVersioned* managed = to_dlpack_versioned(tensor);
  EXPECT_EQ(managed->dl_tensor.device.device_type, kDLCuda);
  EXPECT_EQ(managed->dl_tensor.device.device_id, 3);
  EXPECT_EQ(from_dlpack(managed).device(), device);
  EXPECT_EQ(from_dlpack(to_dlpack(tensor)).device(), device);
}

/// torch_npu takes the old form only, calls its devices ExtDev, and does not look at byte_offset.
TEST_F(DlpackExport, MemoryOfAnAscendDeviceIsWhatTorchNpuWants) {
  const Device device{DeviceType::npu, 1};
  const Tensor whole(keeper.make(), memory.data(), Layout(DType::f32, {8}), device, Access::read_write);
  const Tensor part = whole.slice(0, 2, 6);
  DLManagedTensor* managed = to_dlpack(part);
  EXPECT_EQ(managed->dl_tensor.device.device_type, kDLExtDev);
  EXPECT_EQ(managed->dl_tensor.device.device_id, 1);
  EXPECT_EQ(managed->dl_tensor.data, part.data());
  EXPECT_NE(managed->dl_tensor.data, whole.data());
  EXPECT_EQ(managed->dl_tensor.byte_offset, 0u);
  managed->deleter(managed);
}

TEST_F(DlpackExport, EveryDtypeSurvivesTheRoundTrip) {
  for (int number = static_cast<int>(kFirstDType); number <= static_cast<int>(kLastDType); ++number) {
    const auto dtype = static_cast<DType>(number);
    for (const Layout& layout :
         {Layout(dtype), Layout(dtype, {0}), Layout(dtype, {2, 0, 3}), Layout(dtype, {2, 3})}) {
      const Tensor tensor = make(layout);
      EXPECT_EQ(from_dlpack(to_dlpack_versioned(tensor)).layout(), layout);
      const Tensor old = from_dlpack(to_dlpack(tensor));
      EXPECT_EQ(old.layout(), layout);
      EXPECT_EQ(old.data(), tensor.data());
    }
  }
  EXPECT_EQ(keeper.references, 0);
}

TEST(DlpackImport, TheMemoryIsGivenBackWithTheLastCopy) {
  Producer producer;
  {
    Tensor tensor = from_dlpack(&producer.managed);
    EXPECT_FALSE(tensor.block().group()->shareable());
    const Tensor part = tensor.slice(0, 1, 2);
    EXPECT_EQ(part.data(), producer.memory.data() + 3);
    tensor.release();
    EXPECT_EQ(producer.deleted, 0);
  }
  EXPECT_EQ(producer.deleted, 1);
}

TEST(DlpackImport, AMissingDeleterIsAllowed) {
  Producer producer;
  producer.managed.deleter = nullptr;
  EXPECT_EQ(from_dlpack(&producer.managed).data(), producer.memory.data());
  EXPECT_EQ(producer.deleted, 0);
}

TEST(DlpackImport, TheOldFormWorksToo) {
  Producer producer;
  EXPECT_EQ(from_dlpack(producer.as_old()).layout(), Layout(DType::f32, {2, 3}));
  EXPECT_EQ(producer.deleted, 1);
}

TEST(DlpackImport, HonoursTheByteOffset) {
  Producer producer;
  producer.tensor().byte_offset = 8;
  EXPECT_EQ(from_dlpack(&producer.managed).data(), producer.memory.data() + 2);
}

TEST(DlpackImport, NullStridesMeanRowMajor) {
  Producer producer;
  producer.tensor().strides = nullptr;
  EXPECT_EQ(from_dlpack(&producer.managed).layout(), Layout(DType::f32, {2, 3}));
}

TEST(DlpackImport, TheReadOnlyFlagIsKept) {
  Producer producer;
  producer.managed.flags = kDLReadOnly | 2;
  EXPECT_EQ(from_dlpack(&producer.managed).access(), Access::read_only);
}

TEST(DlpackImport, StridesOfDimensionsNobodyWalksAreIgnored) {
  Producer one;
  one.shape = {1, 3};
  one.strides = {-7, 1};
  EXPECT_EQ(from_dlpack(&one.managed).layout().extent_bytes(), 12u);
  Producer none;
  none.shape = {0, 3};
  none.strides = {-7, -1};
  none.tensor().data = nullptr;
  EXPECT_EQ(from_dlpack(&none.managed).layout().numel(), 0);
}

TEST(DlpackImport, ZeroDimensionsNeedNoShape) {
  Producer producer;
  producer.tensor().ndim = 0;
  producer.tensor().shape = nullptr;
  producer.tensor().strides = nullptr;
  EXPECT_EQ(from_dlpack(&producer.managed).layout(), Layout(DType::f32));
}

TEST(DlpackImport, RefusesWhatItCannotHoldAndGivesItBack) {
  const auto refused = [](auto change) {
    Producer producer;
    change(producer);
    return refusal(producer);
  };
  EXPECT_EQ(refused([](Producer& p) { p.managed.version.major = 2; }), ErrorCode::version_mismatch);
  EXPECT_EQ(refused([](Producer& p) { p.managed.version.major = 0; }), ErrorCode::version_mismatch);
  EXPECT_EQ(refused([](Producer& p) { p.tensor().device.device_type = 4; }), ErrorCode::unsupported);
  EXPECT_EQ(refused([](Producer& p) { p.tensor().dtype.lanes = 4; }), ErrorCode::unsupported);
  EXPECT_EQ(refused([](Producer& p) { p.tensor().dtype = {2, 128, 1}; }), ErrorCode::unsupported);
  EXPECT_EQ(refused([](Producer& p) { p.tensor().dtype = {17, 4, 1}; }), ErrorCode::unsupported);
  EXPECT_EQ(refused([](Producer& p) { p.tensor().dtype = {3, 64, 1}; }), ErrorCode::unsupported);
  EXPECT_EQ(refused([](Producer& p) { p.strides = {-3, 1}; }), ErrorCode::unsupported);
  EXPECT_EQ(refused([](Producer& p) { p.shape = {-1, 3}; }), ErrorCode::invalid_argument);
  EXPECT_EQ(refused([](Producer& p) { p.shape = {1ll << 40, 1ll << 40}; }), ErrorCode::invalid_argument);
  EXPECT_EQ(refused([](Producer& p) { p.tensor().ndim = -1; }), ErrorCode::invalid_argument);
  EXPECT_EQ(refused([](Producer& p) { p.tensor().ndim = 65; }), ErrorCode::invalid_argument);
  EXPECT_EQ(refused([](Producer& p) { p.tensor().shape = nullptr; }), ErrorCode::invalid_argument);
  EXPECT_EQ(refused([](Producer& p) { p.tensor().data = nullptr; }), ErrorCode::invalid_argument);
}

/// Every library's own device has that number.
TEST(DlpackImport, AnExtensionsMemoryIsAscendsWhereItsRuntimeIsLoaded) {
  testing::in_npu_child({}, [] {
    Producer stranger;
    stranger.tensor().device = {kDLExtDev, 1};
    testing::expect_refusal(ErrorCode::unsupported, {"(12, 1)", "ACL runtime", "to the cpu"},
                            [&] { from_dlpack(&stranger.managed); });
    EXPECT_EQ(stranger.deleted, 1);
    const testing::AclCalls loaded;  // as torch_npu does
    Producer torch_npu;
    torch_npu.tensor().device = {kDLExtDev, 1};
    EXPECT_EQ(from_dlpack(&torch_npu.managed).device(), (Device{DeviceType::npu, 1}));
  });
}

TEST(DlpackImport, NothingIsRefusedPolitely) {
  EXPECT_THROW(from_dlpack(static_cast<DLManagedTensorVersioned*>(nullptr)), Error);
  EXPECT_THROW(from_dlpack(static_cast<DLManagedTensor*>(nullptr)), Error);
}

TEST(DlpackAbi, StructsHaveTheSizesOfTheStandard) {
  static_assert(sizeof(DLDataType) == 4);
  static_assert(sizeof(DLTensor) == 48);
  static_assert(sizeof(DLManagedTensor) == 64);
  static_assert(sizeof(DLManagedTensorVersioned) == 80);
  static_assert(offsetof(DLManagedTensorVersioned, dl_tensor) == 32);
  static_assert(offsetof(DLTensor, byte_offset) == 40);
}

}  // namespace
}  // namespace onecopy
