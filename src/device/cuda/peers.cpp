// SPDX-License-Identifier: Apache-2.0
#include "peers.h"

#include <fmt/format.h>

#include "devices.h"
#include "onecopy/core/error.h"

namespace onecopy::cuda {

void check_path(int ordinal, int owner) {
  if (!has_path(ordinal, owner))
    throw Error(
        ErrorCode::unsupported,
        fmt::format("cuda:{} cannot reach memory of cuda:{}: there is no peer access between them (see "
                    "nvidia-smi topo -m); open it on cuda:{} and copy it",
                    ordinal, owner, owner));
}

bool has_path(int ordinal, int owner) {
  if (ordinal == owner) return true;
  Devices& devices = Devices::get();
  int can = 0;
  Driver::get().cuDeviceCanAccessPeer.must(&can, devices.at(ordinal).device, devices.at(owner).device);
  return can != 0;
}

void set_access(CUdeviceptr base, std::size_t bytes, int ordinal, Access access) {
  const CUmemAccessDesc wanted{
      {CU_MEM_LOCATION_TYPE_DEVICE, Devices::get().at(ordinal).device},
      access == Access::read_only ? CU_MEM_ACCESS_FLAGS_PROT_READ : CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  Driver::get().cuMemSetAccess.must(base, bytes, &wanted, 1);
}

void allow_mapping(CUdeviceptr base, std::size_t bytes, int ordinal, int owner) {
  check_path(ordinal, owner);
  const UseDevice use(ordinal);
  set_access(base, bytes, ordinal, Access::read_write);
}

void allow_allocations(int ordinal, int owner) {
  check_path(ordinal, owner);
  const UseDevice use(ordinal);
  const CUresult result = Driver::get().cuCtxEnablePeerAccess(Devices::get().context(owner), 0);
  if (result != CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED) check(result, "cuCtxEnablePeerAccess");
}

}  // namespace onecopy::cuda
