#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# RPC on the machine's own cards: the CUDA tutorial, torch's CUDA tests of rpc and of distributed autograd, and calls with
# tensors on cards, each beside torch. Prints one table last. Wants what tests/gpu/python.sh wants.
#
#   tests/gpu/rpc.sh [PYTHON]   BUILD and LOGS name other folders than build/gpu-python and build/gpu-rpc
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

PYTHON=$(command -v "${1:-python3}") || { echo "there is no ${1:-python3}" >&2; exit 1; }
BUILD=${BUILD:-build/gpu-python}
LOGS=${LOGS:-build/gpu-rpc}
ACCEPTANCE=${ONECOPY_ACCEPTANCE:-../shared/acceptance}
mkdir -p "$BUILD" "$LOGS"

build() {
  local options=(-S . -B "$BUILD" -DCMAKE_BUILD_TYPE=Release -DONECOPY_PYTHON=ON -DONECOPY_MERGE_SOURCES=ON -DONECOPY_TESTS=OFF
                 -DONECOPY_BENCH=OFF -DONECOPY_EXAMPLES=OFF -DONECOPY_CLI=OFF
                 -DPython_EXECUTABLE="$("$PYTHON" -c 'import sys; print(sys.executable)')")
  [ -d build/headers ] && options+=("-DONECOPY_HEADERS=$PWD/build/headers")
  command -v ninja >/dev/null && options+=(-G Ninja)
  cmake "${options[@]}" && cmake --build "$BUILD" -j "$(nproc)" --target onecopy_python
}

program() {  # program <name> <seconds> <command...>
  local name=$1 seconds=$2 begin=$EPOCHREALTIME
  shift 2
  MASTER_PORT=$((20000 + RANDOM % 20000)) timeout -k 5 "$seconds" "$@" >"$LOGS/$name.log" 2>&1 </dev/null
  local code=$?
  awk -v n="$name" -v c="$code" -v a="$begin" -v b="$EPOCHREALTIME" 'BEGIN { printf "%-28s %s %.1f s\n", n, c ? "FAILED(" c ")" : "passed", b - a }' \
    >>"$LOGS/rows"
}

timeout -k 5 150 bash -c "$(declare -f build); PYTHON='$PYTHON' BUILD='$BUILD' build" >"$LOGS/build.log" 2>&1 ||
  { tail -n 40 "$LOGS/build.log"; exit 1; }
export PYTHONPATH=$(cd "$BUILD/python" && pwd)${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1 OMP_NUM_THREADS=2
: >"$LOGS/rows"
PAIRS=("cuda:0 cuda:0")
[ "$(nvidia-smi -L 2>/dev/null | wc -l)" -ge 2 ] && PAIRS+=("cuda:0 cuda:1")
for pair in "${PAIRS[@]}"; do
  name=${pair//[: ]/}
  [ -f "$ACCEPTANCE/cuda_rpc.py" ] && for side in "" --torch; do
    program "tutorial-$name$side" 60 "$PYTHON" "$ACCEPTANCE/cuda_rpc.py" $side $pair
  done
  for side in "" --torch; do program "echo-$name$side" 60 "$PYTHON" tests/gpu/rpc_echo.py $side $pair; done
done
program cuda-rpc-tests 90 "$PYTHON" -m pytest -q -rfE -p no:cacheprovider python/tests/rpc/test_cuda_rpc.py
program torch-autograd-tests 60 "$PYTHON" python/tests/distributed/torch_rpc_suite.py run '^cuda.*grad' --seconds 25 --jobs 3 --each 2 --verbose --logs "$LOGS/failed"
program torch-cuda-tests "${CUDA_TESTS_SECONDS:-110}" "$PYTHON" python/tests/distributed/torch_rpc_suite.py run '^cuda\.' --seconds 25 --jobs 6 --each 6 --verbose --logs "$LOGS/failed"

tail -n 60 "$LOGS"/torch-*-tests.log
[ -d "$LOGS/failed" ] && for log in "$LOGS"/failed/*.log; do
  echo "--- $log"; grep -E "Error|error:" "$log" | grep -v "^ *File" | sed 's/^.*common_distributed.py:[0-9]*\] //' | sort | uniq -c | sort -rn | head -n 6
done
grep -hE "^(onecopy|torch) |RPC: |^ok" "$LOGS"/tutorial-*.log "$LOGS"/echo-*.log | sort | uniq
for name in $(awk '$2 != "passed" { print $1 }' "$LOGS/rows"); do echo "--- $name"; tail -n 25 "$LOGS/$name.log"; done
cat "$LOGS/rows"
! grep -q FAILED "$LOGS/rows"
