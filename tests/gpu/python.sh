#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the Python package from this checkout without a network, runs its CUDA tests and the acceptance scripts
# on the machine's own GPUs, and prints one table last. Wants a Python with torch, nanobind and pytest, CMake and
# a compiler; headers as tests/gpu/run.sh has them. Seven minutes at most on 16 processors.
#
#   tests/gpu/python.sh [PYTHON]   with this interpreter (default: python3); logs are in build/gpu-python/logs
#
# Afterwards, captured graphs beside torch's own:
#   PYTHONPATH=build/gpu-python/python python3 bench/python/run.py --device cuda:0 cuda-graphs-calls cuda-graphs-memory
#
# ONECOPY_ACCEPTANCE names the folder of the acceptance scripts, where it is not ../shared/acceptance.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

PYTHON=$(command -v "${1:-python3}") || { echo "there is no ${1:-python3}" >&2; exit 1; }
BUILD=build/gpu-python
LOGS=$BUILD/logs
ROWS=()
FAILURES=0

has_module() { "$PYTHON" -c "import importlib.util as u, sys; sys.exit(u.find_spec('$1') is None)"; }
has_header() { echo "#include <$1>" | "${CXX:-g++}" -std=c++20 -E -x c++ - >/dev/null 2>&1; }

describe_machine() {
  nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv,noheader 2>/dev/null ||
    echo "nvidia-smi does not answer"
  "$PYTHON" -c 'import sys, torch; print("Python", sys.version.split()[0], "torch", torch.__version__)'
  echo "$(uname -sr), $(nproc) CPUs, $("${CXX:-g++}" --version | head -n 1)"
}

build() {
  local options=(-S . -B "$BUILD" -DCMAKE_BUILD_TYPE=Release -DONECOPY_PYTHON=ON -DONECOPY_MERGE_SOURCES=ON
                 -DONECOPY_TESTS=OFF -DONECOPY_BENCH=OFF -DONECOPY_EXAMPLES=OFF -DONECOPY_CLI=ON
                 -DPython_EXECUTABLE="$("$PYTHON" -c 'import sys; print(sys.executable)')")
  command -v ninja >/dev/null && options+=(-G Ninja)
  if ! has_header fmt/format.h || ! has_header nlohmann/json.hpp; then
    [ -d build/headers ] || { echo "run 'tests/gpu/run.sh headers' where the headers are, and bring build/headers"; return 1; }
    options+=("-DONECOPY_HEADERS=$PWD/build/headers")
  fi
  cmake "${options[@]}" && cmake --build "$BUILD" -j "$(nproc)" --target onecopy_python onecopy_command && name_entry_points
}

# Lets torch find the backend by its name, as in an installed package.
name_entry_points() {
  local info=$BUILD/python/onecopy-0.dist-info
  mkdir -p "$info"
  printf 'Metadata-Version: 2.1\nName: onecopy\nVersion: 0\n' >"$info/METADATA"
  "$PYTHON" - "$info" <<'PYTHON'
import pathlib, sys, tomllib
groups = tomllib.loads(pathlib.Path("pyproject.toml").read_text())["project"]["entry-points"]
lines = [f"[{group}]\n" + "".join(f"{name} = {place}\n" for name, place in names.items()) for group, names in groups.items()]
pathlib.Path(sys.argv[1], "entry_points.txt").write_text("\n".join(lines))
PYTHON
}

# start <name> <seconds at most> <command...>: in the background; finish() makes its row.
start() {
  local name=$1 limit=$2
  shift 2
  mkdir -p "$LOGS"
  (
    begin=$EPOCHREALTIME
    timeout -k 5 "$limit" "$@" >"$LOGS/$name.log" 2>&1 </dev/null
    echo "$? $begin $EPOCHREALTIME" >"$LOGS/$name.status"
  ) &
}

# What a log says for itself: the line that begins with "ok", or pytest's last one.
last_word() { grep -E '^ok|^[0-9]+ (passed|failed|skipped)|^=*.* (passed|failed|error|skipped).* in ' "$1" | tail -n 1 | tr -d '='; }

finish() {  # finish <name>
  local name=$1 code begin end
  read -r code begin end <"$LOGS/$name.status"
  local result=passed
  case $code in
    0) ;;
    124 | 137) result="TIMEOUT" ;;
    *) result="FAILED ($code)" ;;
  esac
  [ "$code" = 0 ] || FAILURES=$((FAILURES + 1))
  ROWS+=("$(awk -v n="$name" -v r="$result" -v a="$begin" -v b="$end" -v l="$(last_word "$LOGS/$name.log")" \
    'BEGIN { printf "| %-22s | %-12s | %6.1f s | %s |", n, r, b - a, l }')")
}

pytest_on() { "$PYTHON" -m pytest -q -rfE -p no:cacheprovider -p no:randomly python/tests/*/"$1" "${@:2}"; }

two_programs() {
  local script=$1/two_programs.py port=$((20000 + $$ % 20000)) receiver status=0
  "$PYTHON" "$script" --mode receiver --port "$port" &
  receiver=$!
  for _ in $(seq 300); do  # until it listens; to try the port would take it from the receiver
    grep -q "$(printf ':%04X 00000000:0000 0A' "$port")" /proc/net/tcp && break
    sleep 0.1
  done
  "$PYTHON" "$script" --mode sender --port "$port" --device cuda:0 || status=1
  wait "$receiver" || status=1
  return "$status"
}

acceptance_folder() {
  local folder
  for folder in "${ONECOPY_ACCEPTANCE:-}" ../shared/acceptance shared/acceptance build/acceptance; do
    [ -n "$folder" ] && [ -f "$folder/ipc_guide.py" ] && { echo "$folder"; return; }
  done
}

run_all() {
  local names=() name folder
  rm -rf "$LOGS"
  mkdir -p "$LOGS"
  export -f pytest_on two_programs
  export PYTHON
  if has_module pytest; then
    start tests 80 bash -c 'pytest_on test_cuda.py'
    start tests-devices 80 bash -c 'pytest_on test_devices.py -k cuda'
    start tests-stored 80 bash -c 'pytest_on test_stored.py'
    start tests-torch 150 bash -c 'pytest_on test_cuda_torch.py'
    start tests-graphs 300 bash -c 'pytest_on test_cuda_graphs.py python/tests/graphs/test_graphs.py python/tests/graphs/test_graphs_faults.py'
    for name in cpu cuda; do
      start "tests-graphs-fuzz-$name" 400 env ONECOPY_TEST_PATIENCE=300 ONECOPY_GRAPH_PROGRAMS="${ONECOPY_GRAPH_PROGRAMS:-200}" \
        bash -c "pytest_on test_graphs_fuzz.py -k $name"
    done
    names+=(tests tests-devices tests-stored tests-torch tests-graphs tests-graphs-fuzz-cpu tests-graphs-fuzz-cuda)
  else
    ROWS+=("| tests                  | NOT RUN      |          | pytest is not installed for $PYTHON |")
    FAILURES=$((FAILURES + 1))
  fi
  folder=$(acceptance_folder)
  if [ -n "$folder" ]; then
    start ipc_guide 60 "$PYTHON" "$folder/ipc_guide.py" cuda:0
    start queue_and_explicit 60 "$PYTHON" "$folder/queue_and_explicit.py" cuda:0
    start two_programs 60 bash -c "two_programs '$folder'"
    start hogwild 80 "$PYTHON" "$folder/hogwild.py"
    start aclgraph_reuse 100 "$PYTHON" "$folder/aclgraph_reuse.py" cuda:0
    names+=(ipc_guide queue_and_explicit two_programs hogwild aclgraph_reuse)
    if [ -f "$folder/failover.py" ]; then
      start failover 200 env ONECOPY_STORE_DIR="$PWD/$BUILD/store" "$PYTHON" "$folder/failover.py" cuda:0
      names+=(failover)
    fi
    if [ "$(nvidia-smi -L 2>/dev/null | wc -l)" -ge 2 ]; then
      start ipc_guide_two_cards 60 "$PYTHON" "$folder/ipc_guide.py" cuda:0 1
      start aclgraph_other_card 100 "$PYTHON" "$folder/aclgraph_reuse.py" cuda:1
      names+=(ipc_guide_two_cards aclgraph_other_card)
    fi
  else
    ROWS+=("| acceptance scripts     | NOT RUN      |          | ONECOPY_ACCEPTANCE names no folder of them |")
  fi
  wait
  for name in "${names[@]}"; do finish "$name"; done
}

print_failures() {
  local status
  for status in "$LOGS"/*.status; do
    read -r code _ <"$status"
    [ "$code" = 0 ] || { echo "--- ${status%.status}.log"; grep -v '^$' "${status%.status}.log" | tail -n 70; }
  done
}

main() {
  describe_machine
  mkdir -p "$BUILD"
  timeout -k 5 90 bash -c "$(declare -f build has_header name_entry_points); PYTHON='$PYTHON' BUILD='$BUILD' build" >"$BUILD/build.log" 2>&1 ||
    { tail -n 60 "$BUILD/build.log"; echo "the build failed: $BUILD/build.log"; return 1; }
  export PYTHONPATH=$PWD/$BUILD/python${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
  export PATH=$PWD/$BUILD/bin:$PATH  # the store's keeper is the command
  export ONECOPY_CUDA_DRIVER=${ONECOPY_CUDA_DRIVER:-libcuda.so.1} ONECOPY_TEST_PATIENCE=60
  run_all
  print_failures
  echo "| what                   | result       |   took   | last word |"
  echo "|------------------------|--------------|----------|-----------|"
  printf '%s\n' "${ROWS[@]}"
  [ "$FAILURES" = 0 ]
}

main
