# SPDX-License-Identifier: Apache-2.0
# The steps of `./dev test`, which reads this.
# shellcheck shell=bash

# --- one step of ./dev test -------------------------------------------------------------------------

PASSED=0 FAILED=0 SKIPPED=0
LOGS=build/logs

seconds_since() { awk -v a="$1" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f", b - a }'; }

# Of a command, with all the processes that it waited for: time on the clock says little while steps run beside each other.
with_times() {  # with_times <file> <command>...
  (trap 'times >"'"$1"'"' EXIT
    "${@:2}")
}

processor_seconds() { awk -F '[ms ]+' 'NR == 2 { printf "%.1f", $1 * 60 + $2 + $3 * 60 + $4 }' "$1"; }

skip() {  # skip <name> <reason>
  SKIPPED=$((SKIPPED + 1))
  printf 'skip  %-34s %s\n' "$1" "$2"
}

step() {  # step <name> <command>...: one line when it passes, its output when it does not
  local name=$1 begin=$EPOCHREALTIME log=$LOGS/${1//[^a-z0-9]/_}.log
  shift
  if with_times "$log.times" "$@" >"$log" 2>&1 </dev/null; then
    PASSED=$((PASSED + 1))
    printf 'ok    %-34s %6s s  (processor %6s s)\n' "$name" "$(seconds_since "$begin")" "$(processor_seconds "$log.times")"
  else
    FAILED=$((FAILED + 1))
    printf 'FAIL  %-34s %6s s   (whole output: %s)\n' "$name" "$(seconds_since "$begin")" "$log"
    grep -vE '^\[[0-9]+/[0-9]+\] (Building|Linking|Creating)' "$log" | tail -n 150 | sed 's/^/      /'
    return 1
  fi
}

count_cases() {  # count_cases <name> <status> <seconds>: those of the report that ctest or pytest left
  local name=$1 status=$2 seconds=$3 all failures skipped word=ok
  local log=$LOGS/${name//[^a-z0-9]/_}.log xml=$LOGS/${name//[^a-z0-9]/_}.xml
  if [ ! -f "$xml" ]; then  # the runner itself did not get to its end
    FAILED=$((FAILED + 1))
    printf 'FAIL  %-34s ended with %s before its report\n' "$name" "$status"
    tail -n 100 "$log" | sed 's/^/      /'
    return
  fi
  read -r all failures skipped < <(python3 tests/report.py --count "$xml") || { all=1 failures=1 skipped=0; }
  if [ "$status" != 0 ] && [ "$failures" = 0 ]; then failures=1 all=$((all + 1)); fi
  PASSED=$((PASSED + all - failures - skipped)) FAILED=$((FAILED + failures)) SKIPPED=$((SKIPPED + skipped))
  [ "$failures" = 0 ] || word=FAIL
  printf '%-5s %-34s %6s s  (processor %6s s)   %d cases, %d failed, %d skipped\n' \
    "$word" "$name" "$seconds" "$(processor_seconds "$log.times")" "$all" "$failures" "$skipped"
  [ "$failures" = 0 ] || grep -vE '^ *[0-9]+/[0-9]+ Test .* (Passed|Skipped)|^ *Start +[0-9]+:' "$log" | tail -n 400 | sed 's/^/      /'
}

ctest_step() {  # ctest_step <name> <test preset> [ctest argument...]: counts every case
  local name=$1 preset=$2 begin=$EPOCHREALTIME
  shift 2
  local log=$LOGS/${name//[^a-z0-9]/_}.log xml=$PWD/$LOGS/${name//[^a-z0-9]/_}.xml status=0
  rm -f "$xml"
  # Tests wait more than they compute.
  with_times "$log.times" "$CTEST" --preset "$preset" -j $((2 * JOBS)) --no-tests=error \
    --output-junit "$xml" "$@" >"$log" 2>&1 </dev/null || status=$?
  count_cases "$name" "$status" "$(seconds_since "$begin")"
}

# --- the steps --------------------------------------------------------------------------------------

sources() {
  { git ls-files -co --exclude-standard -- include src python tests fuzz bench examples 2>/dev/null ||
    find include src python tests fuzz bench examples -type f; } | grep -E '\.(h|cpp)$'
}

check_format() { sources | xargs -r "$(llvm_tool clang-format)" --dry-run -Werror; }

check_tidy() {  # check_tidy [--all | COMMIT]: sources that differ from the commit before, or from COMMIT
  CMAKE=$CMAKE CLANG_TIDY=$(llvm_tool clang-tidy) PYTHON=$VENV/bin/python ONECOPY_JOBS=$JOBS tests/headers/run_tidy.sh "$@"
}

tidy_step() {  # tidy_step [--all]
  if llvm_tool clang-tidy >/dev/null; then step "lint: clang-tidy" check_tidy "$@" || true
  else skip "lint: clang-tidy" "clang-tidy is not installed"; fi
}

lint_steps() {
  step "lint: includes point down" tests/headers/check_arrows.sh . || true
  step "lint: sizes of files" tests/headers/check_sizes.sh || true
  step "lint: words" python3 tests/words/check_words.py || true
  if llvm_tool clang-format >/dev/null; then
    step "lint: clang-format" check_format || true
  else
    skip "lint: clang-format" "clang-format is not installed"
  fi
  python_packages_present || { skip "lint: ruff" "python3 with its headers and venv is not installed"; return 0; }
  step "lint: tools for Python" setup_venv_tools || return 0
  step "lint: ruff format" "$VENV/bin/ruff" format --check . || true
  step "lint: ruff" "$VENV/bin/ruff" check . || true
}

# Compiled before the Python package, which is made of it: what ccache has by then is not compiled twice.
library_step() {
  step "release: library" build release onecopy_rpc onecopy_graph onecopy_command || true
  touch "$LOGS/library"
}

wait_for_library() {  # only where library_step is to come and ccache keeps what it makes
  [ "$COMPILES_LIBRARY" = yes ] && command -v ccache >/dev/null || return 0
  while [ ! -e "$LOGS/library" ] && kill -0 $$; do sleep 1; done
}

release_steps() {
  library_step
  step "release: build" build release || return 0
  step "release: layers link downwards" build release onecopy_arrows || true
  step "release: headers are self-contained" build release onecopy_headers || true
  ctest_step "release: tests" release
}

# For people: in a few minutes what most mistakes break. What it leaves out, `./dev test all` does.
quick_steps() {
  local WITHOUT_PLUGS=yes
  start_python_steps --editable -m "not slow"
  library_step
  if step "release: unit tests" build release onecopy_unit_tests; then ctest_step "unit tests" unit; fi
  finish_python_steps
}

run_pytest() {  # run_pytest <name> [argument...]: its status and times beside its log, for pytest_step
  local name=$1 begin=$EPOCHREALTIME status=0 shared
  shift
  local log=$LOGS/${name//[^a-z0-9]/_}.log xml=$PWD/$LOGS/${name//[^a-z0-9]/_}.xml
  rm -f "$xml" "$log.status"
  shared=$(mktemp -d /dev/shm/tests-XXXXXX)  # two runs at once do not take each other's files for left behind
  ONECOPY_SHM_DIR=$shared with_times "$log.times" "$VENV/bin/python" -X dev -W error -m pytest --junitxml="$xml" -o junit_logging=no "$@" \
    >"$log" 2>&1 </dev/null || status=$?
  rm -rf "$shared"
  echo "$status $(seconds_since "$begin")" >"$log.status"
}

pytest_step() {  # pytest_step <name>: counts every case of a run_pytest
  local status seconds
  read -r status seconds <"$LOGS/${1//[^a-z0-9]/_}.log.status"
  count_cases "$1" "$status" "$seconds"
}

# Tests of Python beside C++ programs of the release preset run last, when those are built.
WITH_CPP=(python/tests/test_rpc_programs_cpp.py)

python_steps() {  # python_steps [--editable] [pytest argument...]
  local editable=()
  [ "${1:-}" != --editable ] || { editable=(--editable) && shift; }
  python_packages_present || { skip "python" "python3 with its headers and venv is not installed"; return 0; }
  step "python: packages" setup_venv || return 0
  wait_for_library
  step "python: install" install_package "${editable[@]}" || return 0
  step "lint: mypy" "$VENV/bin/mypy" || true  # reads the stub that the installation made
  # In parts at once: most of the time goes by in programs that import torch, one after another.
  local multiprocessing=(python/tests/test_{mp_*,patches,spawn,hogwild,interpreter,context}.py)
  local rpc=(python/tests/test_{rpc,dist_,torch_rpc_}*.py)
  local programs=(python/tests/test_{acceptance,dataloader,huggingface,joblib,ray,checkpoint_engine,load_into,item_holders,site}.py)
  local apart=("${multiprocessing[@]}" "${rpc[@]}" "${programs[@]}" "${WITH_CPP[@]}")
  run_pytest "python: tests" python/tests "${apart[@]/#/--ignore=}" "$@" &
  run_pytest "python: multiprocessing tests" "${multiprocessing[@]}" "$@" &
  run_pytest "python: rpc tests" "${rpc[@]}" "${WITH_CPP[@]/#/--deselect=}" "$@" &
  [ $# -gt 0 ] || run_pytest "python: tests of programs" "${programs[@]}" &
  wait
  pytest_step "python: tests"
  pytest_step "python: multiprocessing tests"
  pytest_step "python: rpc tests"
  [ $# -gt 0 ] || pytest_step "python: tests of programs"
}

# What touches torch's names: a part that takes a minute.
SHORT=(python/tests/test_{patches,torch_rebuild,reductions,mp_torch_semantics,queue,dataloader}.py
  -k "not killed and not spawned and not fresh_interpreter and not threads and not hypothesis")

oldest_torch_steps() {  # only where the small build is to be had, or somebody has installed one: CUDA's libraries are 3 GB
  local VENV=$PWD/.venv-torch-$OLDEST_TORCH TORCH_VERSION=$OLDEST_TORCH
  if ! venv_has torch; then
    [ -x "$VENV/bin/python" ] || python3 -m venv "$VENV" || return 0
    if ! install_cpu_torch >/dev/null 2>&1; then
      skip "python: torch $OLDEST_TORCH" "its build for the CPU is not to be had; ./dev test torch=$OLDEST_TORCH takes another"
      return 0
    fi
  fi
  torch_steps "$OLDEST_TORCH" "${SHORT[@]}"
}

torch_steps() {  # torch_steps <version> [pytest argument...]: all Python tests without arguments
  local VENV=$PWD/.venv-torch-$1 TORCH_VERSION=$1
  shift
  [ $# -gt 0 ] || set -- python/tests
  python_packages_present || { skip "torch $TORCH_VERSION" "python3 with its headers and venv is not installed"; return 0; }
  step "torch $TORCH_VERSION: install" install_package || return 0
  step "torch $TORCH_VERSION: is there" venv_has torch || return 0
  run_pytest "torch $TORCH_VERSION: tests" "$@"
  pytest_step "torch $TORCH_VERSION: tests"
}

install_steps() {
  step "release: build" build release || return 0
  local kind
  for kind in find_package pkg_config add_subdirectory headers command preset missing; do
    if [ $kind = pkg_config ] && ! command -v pkg-config >/dev/null; then
      skip "install: $kind" "pkg-config is not installed"
      continue
    fi
    step "install: $kind" tests/install/run.sh "$kind" build/release || true
  done
}

asan_steps() {
  step "asan: build" build asan || return 0
  ctest_step "asan: tests" asan
}

tsan_runs() { [ "$(printf 'int main() {}' | "$@" -x c++ - -fsanitize=thread -o "$LOGS/tsan_probe" 2>&1; \
  "${WITHOUT_ASLR[@]}" "$LOGS/tsan_probe" 2>&1 && echo yes)" = yes ]; }

tsan_steps() {
  local clang
  clang=$(llvm_tool clang++) || { skip "tsan" "clang++ is not installed"; return 0; }
  # Older runtimes cannot map their shadow where vm.mmap_rnd_bits is 32: run without randomised addresses.
  WITHOUT_ASLR=()
  setarch -R true 2>/dev/null && WITHOUT_ASLR=(setarch -R)
  tsan_runs "$clang" || { skip "tsan" "a program under ThreadSanitizer does not start here"; return 0; }
  step "tsan: build" build tsan || return 0
  ctest_step "tsan: tests" tsan
}

fuzz_steps() {  # new inputs go to build/fuzzing, the corpus stays as it is
  clang_runtime_present || { skip "fuzz" "clang++ with libFuzzer is not installed"; return 0; }
  step "fuzz: build" build asan onecopy_fuzzers || return 0
  ONECOPY_FUZZ_SECONDS=$1 ctest_step "fuzz" fuzz -j "$JOBS"
}

model_steps() {
  command -v spin >/dev/null || { skip "model" "spin is not installed"; return 0; }
  command -v python3 >/dev/null || { skip "model" "python3 is not installed"; return 0; }
  step "model: spin" tests/model/run || true
}

skips_are_expected() {
  local xml=("$LOGS"/*tests*.xml) python=python3
  [ ! -x "$VENV/bin/python" ] || python=$VENV/bin/python  # which packages it lacks is asked of the one that ran the tests
  "$python" tests/report.py "${xml[@]}"
}

# What a whole run says of its cases; a part of it has run only some.
report_cases() {
  command -v python3 >/dev/null || { skip "skips" "python3 is not installed"; return 0; }
  step "skips are expected" skips_are_expected || return 0
  cat "$LOGS/skips_are_expected.log"
}

summary() {
  echo "$PASSED passed, $FAILED failed, $SKIPPED skipped"
  [ "$FAILED" = 0 ]
}

# All but those that docs/reference/rpc-compatibility.md lists must pass.
rpc_torch_steps() {
  step "rpc-torch: install" install_package || return 0
  step "rpc-torch: PyTorch's own tests" "$VENV/bin/python" python/tests/torch_rpc_suite.py run --known docs/reference/rpc-compatibility.md || true
}

# Ray's daemons take minutes of the processor to start, so only this step has it.
ray_steps() {
  step "ray: install" install_package || return 0
  venv_has ray || step "ray: Ray itself" install_beside_torch ray || return 0
  run_pytest "ray: tests" python/tests/test_ray.py python/tests/test_mp_docs.py -k "ray"
  pytest_step "ray: tests"
}

# Its tests mostly wait for processes, so they run beside the builds.
start_python_steps() {  # start_python_steps [argument of python_steps...]
  (PASSED=0 FAILED=0 SKIPPED=0
    python_steps "$@" >"$LOGS/python.out" 2>&1 || true
    echo "$PASSED $FAILED $SKIPPED" >"$LOGS/python.counts") &
  PYTHON_STEPS=$!
}

finish_python_steps() {
  local passed=0 failed=1 skipped=0
  [ -n "${PYTHON_STEPS:-}" ] || return 0
  wait "$PYTHON_STEPS" || true
  cat "$LOGS/python.out"
  read -r passed failed skipped <"$LOGS/python.counts" || echo "FAIL  python   ended before its end"
  PASSED=$((PASSED + passed)) FAILED=$((FAILED + failed)) SKIPPED=$((SKIPPED + skipped))
  PYTHON_STEPS=
  [ "$RUNS_ALL" = yes ] && [ -e "$LOGS/python__tests.xml" ] || return 0
  step "release: programs for Python tests" build release example_rpc || return 0
  run_pytest "python: tests with programs in C++" "${WITH_CPP[@]}"
  pytest_step "python: tests with programs in C++"
}

# What CI runs, and what it has no time for.
CI_STEPS=(lint python release install model tidy-changed asan tsan fuzz)
NIGHTLY_STEPS=(old-torch rpc-torch rpc-far ray plugs soak tidy)

run_step() {  # run_step <word of ./dev test>
  case " ${CI_STEPS[*]} " in *" $1 "*) ;; *) finish_python_steps ;; esac  # others install into the same .venv
  case $1 in
    python) start_python_steps ;;
    fuzz) fuzz_steps "${ONECOPY_FUZZ_SECONDS:-2}" ;;
    old-torch) oldest_torch_steps ;;
    rpc-torch) rpc_torch_steps ;;
    rpc-far) . tests/install/rpc_far.sh && rpc_far_steps ;;
    plugs | vllm) . tests/install/plugs.sh && "$1_steps" ;;
    soak)
      step "soak" soak 10 || true
      step "soak: user namespaces" soak 2 --user-namespaces || true ;;
    tidy) tidy_step --all ;;
    tidy-changed) tidy_step ;;
    lint | release | install | asan | tsan | model | ray) "$1_steps" ;;
    torch=*) torch_steps "${1#torch=}" ;;
    *) echo "no such step: $1" >&2; FAILED=$((FAILED + 1)) ;;
  esac
}

run_steps() {  # run_steps <word>...
  local word
  case " $* " in *" python "*"release "*) COMPILES_LIBRARY=yes ;; esac
  for word in "$@"; do run_step "$word"; done
  finish_python_steps
}

run_tests() {  # run_tests [all|nightly|STEP...]; without a word, the steps for people
  RUNS_ALL=yes COMPILES_LIBRARY=no
  mkdir -p "$LOGS"
  rm -f "$LOGS/python.counts" "$LOGS/library"
  if ! step "setup" setup; then summary; return 1; fi
  case ${1:-} in
    "") RUNS_ALL=no COMPILES_LIBRARY=yes && quick_steps ;;
    all | nightly)
      rm -f "$LOGS"/*.xml
      [ "$1" = all ] || { export NIGHTLY=ON ONECOPY_TEST_KILLS=500 ONECOPY_FUZZ_SECONDS=60; }
      run_steps "${CI_STEPS[@]}"
      report_cases
      [ "$1" = all ] || run_steps "${NIGHTLY_STEPS[@]}" ;;
    *) run_steps "$@" ;;
  esac
  summary
}
