// SPDX-License-Identifier: Apache-2.0
#include "onecopy/memory/dlpack.h"

#include <array>
#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "core/throw_error.h"
#include "device/backend.h"
#include "dlpack_dtype.h"

namespace onecopy {

namespace {

constexpr DLPackVersion kVersion{1, 1};  // the version that brought the fp8 dtypes

struct CodeRow {
  DType dtype;
  std::uint8_t code;
};

// The codes of DLDataTypeCode; the number of bits follows from the dtype.
constexpr std::array kCodeRows{
    CodeRow{DType::boolean, 6},      CodeRow{DType::u8, 1},           CodeRow{DType::i8, 0},
    CodeRow{DType::u16, 1},          CodeRow{DType::i16, 0},          CodeRow{DType::u32, 1},
    CodeRow{DType::i32, 0},          CodeRow{DType::u64, 1},          CodeRow{DType::i64, 0},
    CodeRow{DType::f16, 2},          CodeRow{DType::bf16, 4},         CodeRow{DType::f32, 2},
    CodeRow{DType::f64, 2},          CodeRow{DType::c64, 5},          CodeRow{DType::c128, 5},
    CodeRow{DType::f8_e4m3fn, 10},   CodeRow{DType::f8_e4m3fnuz, 11}, CodeRow{DType::f8_e5m2, 12},
    CodeRow{DType::f8_e5m2fnuz, 13}, CodeRow{DType::f8_e8m0fnu, 14},
};

// ---- export

/// The arrays that an exported struct points into. The object owns itself until the struct's deleter is called.
template <class Managed>
struct TensorExport {
  Managed managed{};
  Tensor tensor;
  std::vector<std::int64_t> dims;  // shape, then strides

  static void destroy(Managed* self) {
    const std::unique_ptr<TensorExport> owner(static_cast<TensorExport*>(self->manager_ctx));
  }
};

template <class Managed>
Managed* export_tensor(const Tensor& tensor) {
  const DLDevice device = to_dl(tensor.device());
  auto exported = std::make_unique<TensorExport<Managed>>();
  exported->tensor = tensor;
  exported->dims.assign(tensor.shape().begin(), tensor.shape().end());
  exported->dims.insert(exported->dims.end(), tensor.strides().begin(), tensor.strides().end());
  const std::size_t ndim = tensor.layout().ndim();
  exported->dims.push_back(0);  // so that a 0-d tensor has pointers, too
  Managed& managed = exported->managed;
  managed.dl_tensor = {tensor.data(),
                       device,
                       static_cast<std::int32_t>(ndim),
                       to_dl(tensor.dtype()),
                       exported->dims.data(),
                       exported->dims.data() + ndim,
                       0};
  managed.manager_ctx = exported.get();
  managed.deleter = &TensorExport<Managed>::destroy;
  return &exported.release()->managed;
}

// ---- import

template <class Managed>
struct CallDeleter {
  void operator()(Managed* managed) const noexcept {
    if (managed->deleter) managed->deleter(managed);
  }
};
template <class Managed>
using Owned = std::unique_ptr<Managed, CallDeleter<Managed>>;

/// A counter of the references to one imported struct. The last reference calls the struct's deleter.
template <class Managed>
class ForeignBlock final : public BlockGroup {
 public:
  explicit ForeignBlock(Owned<Managed> managed) noexcept
      : BlockGroup(false), managed_(std::move(managed)) {}

  void add_reference(std::uint32_t) noexcept override {
    references_.fetch_add(1, std::memory_order_relaxed);
  }
  void release(std::uint32_t) noexcept override {
    if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1)
      const std::unique_ptr<ForeignBlock> last(this);
  }

 private:
  Owned<Managed> managed_;
  std::atomic<std::uint64_t> references_{1};
};

/// Returns strides as Layout wants them. A dimension with at most one element may have any stride in the struct.
std::vector<std::int64_t> walked_strides(const DLTensor& tensor, std::span<const std::int64_t> shape) {
  std::vector<std::int64_t> strides(tensor.strides, tensor.strides + shape.size());
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] == 1 && strides[i] < 0) strides[i] = 1;
    if (strides[i] < 0)
      throw_error(ErrorCode::unsupported,
                  "dimension {} has the negative stride {}; make a copy with positive strides first", i,
                  strides[i]);
  }
  return strides;
}

Layout layout_of(const DLTensor& tensor) {
  const DType dtype = from_dl(tensor.dtype);
  if (tensor.ndim < 0 || tensor.ndim > static_cast<std::int32_t>(kMaxDims))
    throw_error(ErrorCode::invalid_argument, "a DLPack tensor has {} dimensions, but 0 to {} are possible",
                tensor.ndim, kMaxDims);
  const auto ndim = static_cast<std::size_t>(tensor.ndim);
  if (ndim == 0) return Layout(dtype);
  if (!tensor.shape) throw Error(ErrorCode::invalid_argument, "the DLPack tensor has no shape");
  const std::span<const std::int64_t> shape(tensor.shape, ndim);
  Layout row_major(dtype, shape);
  if (!tensor.strides || row_major.numel() == 0) return row_major;
  return Layout(dtype, shape, walked_strides(tensor, shape));
}

template <class Managed>
Tensor import_tensor(Owned<Managed> managed, Access access) {
  const DLTensor& source = managed->dl_tensor;
  const Device device = from_dl(source.device);
  Layout layout = layout_of(source);
  if (!source.data && layout.numel() > 0)
    throw_error(ErrorCode::invalid_argument, "the DLPack tensor {} has no memory", layout.str());
  void* data = source.data ? static_cast<std::byte*>(source.data) + source.byte_offset : nullptr;
  auto group = std::make_unique<ForeignBlock<Managed>>(std::move(managed));
  return Tensor(BlockRef(group.release(), 0), data, std::move(layout), device, access);
}

template <class Managed>
Owned<Managed> take_over(Managed* managed) {
  if (!managed) throw Error(ErrorCode::invalid_argument, "the pointer to the DLPack tensor is null");
  return Owned<Managed>(managed);
}

/// Returns an Ascend device. Any library's own device has this number, but other devices do not occur if Ascend's
/// runtime is loaded.
Device from_extension(DLDevice device) {
  if (!backend(DeviceType::npu).is_in_process())
    throw_error(ErrorCode::unsupported,
                "the DLPack device ({}, {}) belongs to an extension; it is taken for an Ascend device "
                "where the ACL runtime is loaded, which it is not in this process: copy the tensor "
                "to the cpu first",
                device.device_type, device.device_id);
  return {DeviceType::npu, static_cast<std::int16_t>(device.device_id)};
}

}  // namespace

DLDataType to_dl(DType dtype) noexcept {
  for (const CodeRow& row : kCodeRows)
    if (row.dtype == dtype) return {row.code, static_cast<std::uint8_t>(8 * size_of(dtype)), 1};
  return {1, 8, 1};
}

DType from_dl(DLDataType dtype) {
  if (dtype.lanes != 1)
    throw_error(ErrorCode::unsupported,
                "DLPack elements of {} lanes are not supported; view them as scalars with one "
                "more dimension",
                dtype.lanes);
  for (const CodeRow& row : kCodeRows)
    if (row.code == dtype.code && 8 * size_of(row.dtype) == dtype.bits) return row.dtype;
  throw_error(ErrorCode::unsupported, "no dtype of onecopy matches DLPack code {} with {} bits", dtype.code,
              dtype.bits);
}

DLDevice to_dl(Device device) {
  switch (device.type) {
    case DeviceType::cpu: return {kDLCpu, 0};
    case DeviceType::cuda: return {kDLCuda, device.index};
    case DeviceType::npu: return {kDLExtDev, device.index};
  }
  throw_error(ErrorCode::unsupported, "DLPack has no number for {}; copy the tensor to the cpu first",
              device.str());
}

Device from_dl(DLDevice device) {
  if (device.device_type == kDLCpu || device.device_type == kDLCudaHost) return kCpu;
  if (device.device_type == kDLCuda && device.device_id >= 0 && device.device_id <= INT16_MAX)
    return {DeviceType::cuda, static_cast<std::int16_t>(device.device_id)};
  if (device.device_type == kDLExtDev && device.device_id >= 0 && device.device_id <= INT16_MAX)
    return from_extension(device);
  const bool is_managed = device.device_type == kDLCudaManaged;
  throw_error(ErrorCode::unsupported,
              "{}memory of the DLPack device ({}, {}) cannot be opened; only the cpu's (type {}), CUDA "
              "devices' (type {}) and Ascend devices' (type {}) can: copy the tensor to the cpu first",
              is_managed ? "managed " : "", device.device_type, device.device_id, kDLCpu, kDLCuda,
              kDLExtDev);
}

DLManagedTensorVersioned* to_dlpack_versioned(const Tensor& tensor) {
  auto* managed = export_tensor<DLManagedTensorVersioned>(tensor);
  managed->version = kVersion;
  managed->flags = tensor.access() == Access::read_only ? kDLReadOnly : 0;
  return managed;
}

DLManagedTensor* to_dlpack(const Tensor& tensor) {
  if (tensor.access() == Access::read_only)
    throw Error(ErrorCode::read_only,
                "the old form of DLPack cannot mark a tensor as read-only; ask for version 1 "
                "(max_version=(1, 0)), or open the tensor for writing");
  return export_tensor<DLManagedTensor>(tensor);
}

Tensor from_dlpack(DLManagedTensorVersioned* managed) {
  auto owned = take_over(managed);
  if (managed->version.major != kVersion.major)
    throw_error(ErrorCode::version_mismatch,
                "the DLPack tensor has version {}.{}; onecopy reads version {}", managed->version.major,
                managed->version.minor, kVersion.major);
  const Access access = (managed->flags & kDLReadOnly) != 0 ? Access::read_only : Access::read_write;
  return import_tensor(std::move(owned), access);
}

Tensor from_dlpack(DLManagedTensor* managed) {
  return import_tensor(take_over(managed), Access::read_write);
}

}  // namespace onecopy
