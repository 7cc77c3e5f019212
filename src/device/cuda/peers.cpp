// SPDX-License-Identifier: Apache-2.0
#include "peers.h"

#include "core/throw_error.h"
#include "devices.h"
#include "mappings.h"

namespace onecopy::cuda {

void check_path(int ordinal, int owner) {
  if (!has_path(ordinal, owner))
    throw_error(ErrorCode::unsupported,
                "cuda:{} cannot reach memory of cuda:{}: there is no peer access between them (see "
                "nvidia-smi topo -m); open it on cuda:{} and copy it",
                ordinal, owner, owner);
}

bool has_path(int ordinal, int owner) {
  if (ordinal == owner) return true;
  Devices& devices = Devices::get();
  int can = 0;
  Driver::get().cuDeviceCanAccessPeer.must(&can, devices.at(ordinal).device, devices.at(owner).device);
  return can != 0;
}

namespace {

CUmemAccessDesc access_of(int ordinal, Access access) {
  return {{CU_MEM_LOCATION_TYPE_DEVICE, Devices::get().at(ordinal).device},
          access == Access::read_only ? CU_MEM_ACCESS_FLAGS_PROT_READ : CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
}

/// Returns whether the memory comes from cudaMalloc, and not from a pool or a mapping.
bool is_plain_allocation(const Driver& driver, CUdeviceptr at) {
  int wanted = CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE;
  unsigned is_plain = 0;
  void* value = &is_plain;
  return driver.cuPointerGetAttributes(1, &wanted, &value, at) == CUDA_SUCCESS && is_plain != 0;
}

}  // namespace

void set_access(CUdeviceptr base, std::size_t bytes, int ordinal, Access access) {
  const CUmemAccessDesc wanted = access_of(ordinal, access);
  Driver::get().cuMemSetAccess.must(base, bytes, &wanted, 1);
}

bool try_set_access(CUdeviceptr base, std::size_t bytes, int ordinal, Access access) {
  const CUmemAccessDesc wanted = access_of(ordinal, access);
  return Driver::get().cuMemSetAccess(base, bytes, &wanted, 1) == CUDA_SUCCESS;
}

void allow_mapping(CUdeviceptr base, std::size_t bytes, int ordinal, int owner) {
  check_path(ordinal, owner);
  const RelaxedCapture relaxed(Driver::get());
  set_access(base, bytes, ordinal, Access::read_write);
}

void allow_allocations(int ordinal, int owner) {
  check_path(ordinal, owner);
  const UseDevice use(ordinal);
  const CUresult result = Driver::get().cuCtxEnablePeerAccess(Devices::get().context(owner), 0);
  if (result != CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED) check(result, "cuCtxEnablePeerAccess");
}

bool let_read(int ordinal, int owner, CUdeviceptr at, std::size_t bytes) {
  const Mappings::Reach reach = Mappings::get().let_read(ordinal, at, bytes);
  if (reach != Mappings::Reach::unknown) return reach == Mappings::Reach::direct;
  if (!has_path(ordinal, owner) || !is_plain_allocation(Driver::get(), at)) return false;
  allow_allocations(ordinal, owner);
  return true;
}

}  // namespace onecopy::cuda
