#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds from this checkout without a network, runs the device tests on the machine's own GPUs, then measures, and
# prints a table of each. This is what ./dev gpu does.
#
#   tests/gpu/run.sh headers   copies the headers of fmt, nlohmann-json and CLI11 to build/headers, for a
#                              machine that does not have them: take that folder along with the checkout
#   tests/gpu/run.sh [REGEX]   builds in build/gpu and runs the device tests (those that match), then, without a
#                              REGEX, the benchmarks, whose results go to bench/results
#
# ONECOPY_CUDA_DRIVER names another driver than libcuda.so.1, ONECOPY_GPU_BUILD another folder than build/gpu,
# ONECOPY_GPU_RESULTS another than bench/results.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
BUILD=${ONECOPY_GPU_BUILD:-build/gpu}
RESULTS=${ONECOPY_GPU_RESULTS:-bench/results}

collect_headers() {
  local name
  mkdir -p build/headers
  for name in fmt nlohmann CLI; do
    [ -d "/usr/include/$name" ] || { echo "no /usr/include/$name here" >&2; return 1; }
    cp -r "/usr/include/$name" build/headers/
  done
}

has_header() { echo "#include <$1>" | "${CXX:-g++}" -std=c++20 -E -x c++ - >/dev/null 2>&1; }

describe_machine() {
  nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv,noheader 2>/dev/null ||
    echo "nvidia-smi does not answer"
  echo "$(uname -sr), $(nproc) CPUs, $("${CXX:-g++}" --version | head -n 1), $(cmake --version | head -n 1)"
}

configure_and_build() {
  local options=(-S . -B "$BUILD" -DCMAKE_BUILD_TYPE=Release -DONECOPY_EXAMPLES=OFF -DONECOPY_PRECOMPILE=ON
                 -DONECOPY_MERGE_SOURCES=ON)
  [ -e "$BUILD/Makefile" ] || ! command -v ninja >/dev/null || options+=(-G Ninja)
  if ! has_header fmt/format.h || ! has_header nlohmann/json.hpp; then
    [ -d build/headers ] || { echo "run 'tests/gpu/run.sh headers' where the headers are, and bring build/headers"; return 1; }
    options+=("-DONECOPY_HEADERS=$PWD/build/headers")
  fi
  cmake "${options[@]}" && cmake --build "$BUILD" -j "$(nproc)" --target \
    conformance_tests memory_tests device_tests graph_tests multiprocess_tests issues_tests simulator_tests onecopy_command \
    onecopy_bench_gpu
}

# Names as ctest has them; what is about the simulator skips itself on a real driver.
GROUPS_TO_RUN=(
  "backend|^conformance_tests\.Cuda/"
  "pool|^memory_tests\.WholeSegmentPool"
  "copies, capture, pinned|^device_tests\.(Cuda\.|PinnedPages\.)"
  "captured graphs|^graph_tests\.CudaGraphs"
  "interface|^simulator_tests\.CudaAbi"
  "memory of others, order|^multiprocess_tests\.Cuda|^multiprocess_tests\.Of/CudaManyChunks|^issues_tests\.Of/ConsumerDevice"
  "pinned memory|^multiprocess_tests\.Pinned"
  "share and queues|^multiprocess_tests\.cuda\.[^K]"
  "200 kills|^multiprocess_tests\.cuda\.KillStorm"  # alone: it looks at the card's free memory
)

run_group() {  # run_group <name> <regex>: one row of the table
  local name=$1 regex=$2 log=$BUILD/gpu_${1//[^a-z]/_}.log begin=$EPOCHREALTIME
  ctest --test-dir "$BUILD" -j 8 -R "$regex" --output-on-failure --no-tests=error >"$log" 2>&1
  local passed failed skipped
  passed=$(grep -cE '^ *[0-9]+/[0-9]+ Test .* Passed ' "$log")
  skipped=$(grep -cE '^ *[0-9]+/[0-9]+ Test .*\*\*\*Skipped' "$log")
  failed=$(($(grep -cE '^ *[0-9]+/[0-9]+ Test ' "$log") - passed - skipped))
  awk -v n="$name" -v p="$passed" -v f="$failed" -v s="$skipped" -v a="$begin" -v b="$EPOCHREALTIME" \
    'BEGIN { printf "| %-24s | %6d | %6d | %7d | %8.1f s |\n", n, p, f, s, b - a }'
  [ "$failed" = 0 ] && [ "$passed" != 0 ]
}

print_failures() {
  local log
  for log in "$BUILD"/gpu_*.log; do
    grep -lqE 'Test .*(\*\*\*Failed|\*\*\*Timeout|\*\*\*Exception)' "$log" || continue
    echo "--- $log"
    grep -vE '^ *[0-9]+/[0-9]+ Test .*(Passed|Skipped)|^ *Start |^\[ *(RUN|OK|-+|=+|PASSED) ' "$log" | head -n 60
  done
}

measure() {
  mkdir -p "$RESULTS"
  printf '\n'
  "$BUILD/bin/onecopy" doctor | awk '/^[a-z]/ {shown = tolower($0) ~ /cuda/} shown'
  printf '\n'
  timeout 120 "$BUILD/bin/onecopy_bench_gpu" --out "$RESULTS"
}

main() {
  local status=0 entry
  describe_machine
  mkdir -p "$BUILD"
  configure_and_build >"$BUILD/build.log" 2>&1 || { tail -n 60 "$BUILD/build.log"; return 1; }
  export ONECOPY_CUDA_DRIVER=${ONECOPY_CUDA_DRIVER:-libcuda.so.1}
  echo "| what                     | passed | failed | skipped |     took   |"
  echo "|--------------------------|--------|--------|---------|------------|"
  for entry in "${GROUPS_TO_RUN[@]}"; do
    [[ $entry =~ ${1:-.} ]] || continue
    run_group "${entry%%|*}" "${entry#*|}" || status=1
  done
  [ "$status" = 0 ] || print_failures
  [ $# -gt 0 ] || measure || status=1
  return "$status"
}

case ${1:-} in
  headers) collect_headers ;;
  *) main "$@" ;;
esac
