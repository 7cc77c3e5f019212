// SPDX-License-Identifier: Apache-2.0
#include "copy_kernel.h"

#include <algorithm>

#include "core/throw_error.h"

namespace onecopy::cuda {

namespace {

constexpr char kName[] = "onecopy_copy_ranges";
constexpr unsigned kThreads = 256;
constexpr std::uint64_t kBytesOfABlock = std::uint64_t{16} * kThreads * 2;
constexpr std::uint64_t kMaxBlocks = 1056;  // the number that a large card runs at once

/// The kernel: the blocks of row y copy range %ctaid.y, in words as large as both addresses allow.
constexpr char kImage[] = R"(.version 6.0
.target sm_60
.address_size 64
.visible .entry onecopy_copy_ranges(.param .align 8 .b8 table[1544])
{
  .reg .pred %p;
  .reg .b16 %byte;
  .reg .b32 %r<8>;
  .reg .b64 %row, %to, %from, %bytes, %first, %step, %i, %end, %both, %a, %b;

  mov.b64 %row, table;
  mov.u32 %r0, %ctaid.y;
  mul.wide.u32 %a, %r0, 24;
  add.s64 %row, %row, %a;
  ld.param.u64 %to, [%row+8];
  ld.param.u64 %from, [%row+16];
  ld.param.u64 %bytes, [%row+24];
  mov.u32 %r1, %ntid.x;
  mov.u32 %r2, %nctaid.x;
  mul.wide.u32 %step, %r1, %r2;
  mov.u32 %r3, %ctaid.x;
  mul.wide.u32 %first, %r3, %r1;
  mov.u32 %r4, %tid.x;
  cvt.u64.u32 %a, %r4;
  add.s64 %first, %first, %a;
  or.b64 %both, %to, %from;
  and.b64 %a, %both, 15;
  setp.eq.s64 %p, %a, 0;
  @%p bra SIXTEEN;
  and.b64 %a, %both, 3;
  setp.eq.s64 %p, %a, 0;
  @%p bra FOUR;
  mov.b64 %i, %first;
  bra BYTES;

SIXTEEN:
  shr.u64 %end, %bytes, 4;
  mov.b64 %i, %first;
NEXT_SIXTEEN:
  setp.ge.u64 %p, %i, %end;
  @%p bra REST_OF_SIXTEEN;
  shl.b64 %a, %i, 4;
  add.s64 %b, %a, %to;
  add.s64 %a, %a, %from;
  ld.global.v4.u32 {%r4, %r5, %r6, %r7}, [%a];
  st.global.v4.u32 [%b], {%r4, %r5, %r6, %r7};
  add.s64 %i, %i, %step;
  bra NEXT_SIXTEEN;
REST_OF_SIXTEEN:
  and.b64 %i, %bytes, -16;
  add.s64 %i, %i, %first;
  bra BYTES;

FOUR:
  shr.u64 %end, %bytes, 2;
  mov.b64 %i, %first;
NEXT_FOUR:
  setp.ge.u64 %p, %i, %end;
  @%p bra REST_OF_FOUR;
  shl.b64 %a, %i, 2;
  add.s64 %b, %a, %to;
  add.s64 %a, %a, %from;
  ld.global.u32 %r4, [%a];
  st.global.u32 [%b], %r4;
  add.s64 %i, %i, %step;
  bra NEXT_FOUR;
REST_OF_FOUR:
  and.b64 %i, %bytes, -4;
  add.s64 %i, %i, %first;

BYTES:
  setp.ge.u64 %p, %i, %bytes;
  @%p bra DONE;
  add.s64 %a, %from, %i;
  add.s64 %b, %to, %i;
  ld.global.u8 %byte, [%a];
  st.global.u8 [%b], %byte;
  add.s64 %i, %i, %step;
  bra BYTES;
DONE:
  ret;
}
)";

}  // namespace

CopyKernel::CopyKernel(const Driver& driver) {
  void* module = nullptr;  // lives as long as the context
  driver.cuModuleLoadData.must(&module, kImage);
  driver.cuModuleGetFunction.must(&function_, module, kName);
}

CopyLaunch::CopyLaunch(const CopyKernel& kernel, std::span<const CopyRange> ranges) {
  if (ranges.empty() || ranges.size() > table_.rows.size())
    throw_error(ErrorCode::invalid_argument, "one launch copies 1 to {} ranges, not {}", table_.rows.size(),
                ranges.size());
  table_.count = ranges.size();
  std::uint64_t most = 1;
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    table_.rows[i] = {reinterpret_cast<std::uint64_t>(ranges[i].to),
                      reinterpret_cast<std::uint64_t>(ranges[i].from), ranges[i].bytes};
    most = std::max<std::uint64_t>(most, ranges[i].bytes);
  }
  const std::uint64_t wanted = (most + kBytesOfABlock - 1) / kBytesOfABlock;
  parameters_.func = kernel.function();
  parameters_.gridDimX = static_cast<unsigned>(std::min(wanted, kMaxBlocks / ranges.size() + 1));
  parameters_.gridDimY = static_cast<unsigned>(ranges.size());
  parameters_.blockDimX = kThreads;
  parameters_.gridDimZ = parameters_.blockDimY = parameters_.blockDimZ = 1;
  parameters_.kernelParams = arguments_;
}

}  // namespace onecopy::cuda
