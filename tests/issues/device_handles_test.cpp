// SPDX-License-Identifier: Apache-2.0
// Wounds of handles of device memory: addresses reserved beyond need (pytorch#186213), a probe that promises a way that
// does not work (pytorch#179220, #173606), handles opened once a tensor (rapidsmpf#206) and exported once a tensor
// (sglang#8079), and the wrong card for want of its name (pytorch#149196, sglang#12664).
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "onecopy/core/error.h"
#include "onecopy/share/bundle.h"
#include "onecopy/share/share.h"
#include "support/child.h"
#include "support/cuda_streams.h"
#include "support/note.h"
#include "support/numbers.h"

namespace onecopy {
namespace {

using namespace testing;

constexpr int kTensors = 300;

class DeviceHandles : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda_devices() < 1) GTEST_SKIP() << "no CUDA device on this machine";
    if (!is_simulated()) GTEST_SKIP() << "counts calls of the simulator";
  }
  Shared<Note> note;
};

/// Every call from now on but the first `good` fails.
void allow_calls(const CudaCalls& cu, const char* call, int good) {
  cu.sim_fail(call, CUDA_ERROR_UNKNOWN, good, -1);
}

/// 9/8 of the card for each import used up the addresses.
TEST_F(DeviceHandles, Pytorch186213ReservesExactlyTheSegmentsAddresses) {
  JoinedChild owner([&] {
    const CudaCalls cu;
    const Tensor tensor = device_bytes(3 << 20);
    const Handle handle = share(tensor);
    EXPECT_EQ(cu.sim_reserved(), handle.fields().segment_size);
    note->write(handle.to_text());
    note->reach(2);
  });
  JoinedChild borrower([&] {
    const CudaCalls cu;
    const Handle handle = Handle::from_text(note->read());
    const Tensor tensor = open(handle);
    EXPECT_EQ(cu.sim_reserved(), handle.fields().segment_size);
    const Tensor again = open(handle);
    EXPECT_EQ(cu.sim_reserved(), handle.fields().segment_size);
    note->step = 2;
  });
}

/// The device's attributes said that it exports descriptors. The owner's memory stays usable, and the opener gets the
/// reason.
TEST_F(DeviceHandles, Pytorch179220AnExportThatFailsInSpiteOfTheAttributesIsAnErrorOfItsOpener) {
  JoinedChild owner([&] {
    const CudaCalls cu;
    allow_calls(cu, "cuMemExportToShareableHandle", 0);
    const Tensor tensor = device_bytes(1000);
    note->write(share(tensor).to_text());
    note->reach(2);
    set_element<unsigned char>(tensor, 0, 7);
    EXPECT_EQ(element<unsigned char>(tensor, 0), 7);
    cu.sim_fail("cuMemExportToShareableHandle", 0, 0, 0);
    note->step = 3;
    note->reach(4);
  });
  JoinedChild borrower([&] {
    const Handle handle = Handle::from_text(note->read());
    EXPECT_THROW(open(handle), Error);
    note->step = 2;
    note->reach(3);
    EXPECT_EQ(element<unsigned char>(open(handle), 0), 7);
    note->step = 4;
  });
}

/// Opening is so slow with large pools that all-to-all took 112 s instead of 7.
TEST_F(DeviceHandles, Rapidsmpf206OneOpenOfALegacyHandleServesAllTensorsOfItsAllocation) {
  JoinedChild owner([&] {
    const CudaCalls cu(0);
    const auto at = cu.memory(kTensors * 1000);
    std::vector<NamedTensor> tensors;
    for (int i = 0; i < kTensors; ++i) {
      const auto begin = at + static_cast<CUdeviceptr>(i) * 1000;
      tensors.emplace_back(std::to_string(i), adopt({reinterpret_cast<void*>(begin),
                                                     Layout(DType::u8, {1000}), kCuda0, Access::read_write},
                                                    nullptr));
      cu.write(begin, static_cast<unsigned char>(i));
    }
    const Handle all = share_bundle(tensors);
    note->write(all.to_text() + "\n" + share(tensors[7].second).to_text());
    note->reach(2);
  });
  JoinedChild borrower([&] {
    allow_calls(CudaCalls(), "cuIpcOpenMemHandle", 1);
    const std::string both = note->read();
    const auto line = both.find('\n');
    const Bundle bundle = Bundle::open(Handle::from_text(both.substr(0, line)));
    std::vector<Tensor> held;
    for (std::size_t i = 0; i < bundle.size(); ++i) held.push_back(bundle.tensor(i));
    ASSERT_EQ(held.size(), std::size_t{kTensors});
    EXPECT_EQ(element<unsigned char>(held.back(), 0), (kTensors - 1) % 256);
    EXPECT_EQ(open(Handle::from_text(both.substr(line + 1))).data(), held[7].data());
    note->step = 2;
  });
}

/// Weights of a model went to the engine as a handle, an export and an import for each tensor.
TEST_F(DeviceHandles, Sglang8079AModelIsExportedOnceAndImportedOnce) {
  JoinedChild owner([&] {
    allow_calls(CudaCalls(), "cuMemExportToShareableHandle", 1);
    std::vector<NamedTensor> tensors;
    for (int i = 0; i < kTensors; ++i) tensors.emplace_back(std::to_string(i), device_bytes(1000));
    set_element<unsigned char>(tensors.back().second, 999, 7);
    const Handle all = share_bundle(tensors);
    note->write(all.to_text());
    note->reach(3);
  });
  for (int step = 2; step <= 3; ++step)
    in_child([&] {
      allow_calls(CudaCalls(), "cuMemImportFromShareableHandle", 1);
      const Bundle bundle = Bundle::open(Handle::from_text(note->read()));
      std::vector<Tensor> held;
      for (std::size_t i = 0; i < bundle.size(); ++i) held.push_back(bundle.tensor(i));
      EXPECT_EQ(element<unsigned char>(held.back(), 999), 7);
      note->step = step;
    });
}

/// "cuda:0" of the sender was another card for the receiver: illegal accesses, or silently wrong numbers.
TEST_F(DeviceHandles, Pytorch149196Sglang12664TheCardIsNamedByItsUuidWhateverItsNumber) {
  if (cuda_devices() < 2) GTEST_SKIP() << "needs two CUDA devices";
  JoinedChild owner([&] {
    const Tensor tensor = device_bytes(1000);
    set_element<unsigned char>(tensor, 0, 7);
    note->write(share(tensor).to_text());
    note->reach(2);
    EXPECT_EQ(element<unsigned char>(tensor, 0), 8);
  });
  in_child_with({{"CUDA_VISIBLE_DEVICES", "1,0"}}, [&] {
    const Tensor tensor = open(Handle::from_text(note->read()));
    EXPECT_EQ(tensor.device(), (Device{DeviceType::cuda, 1}));
    EXPECT_EQ(element<unsigned char>(tensor, 0), 7);
    set_element<unsigned char>(tensor, 0, 8);
    note->step = 2;
  });
}

}  // namespace
}  // namespace onecopy
