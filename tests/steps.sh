# SPDX-License-Identifier: Apache-2.0
# The steps of `./dev test` and `./dev lint`; dev reads this file.
# shellcheck shell=bash

LOGS=build/logs
TIMEFORMAT='%R %U %S'

log_of() { echo "$LOGS/${1//[^a-z0-9]/_}"; }

count() { echo "$*" >>"$LOGS/counts"; }  # count <passed> <failed> <skipped>

summary() {  # the names of failed cases and steps again, since the end of a long log is what is kept
  grep -hE '^(failed|unexpected): ' "$LOGS/skips_are_expected.log" 2>/dev/null | cut -c 1-300 || true
  [ ! -e "$LOGS/failed" ] || sed 's/^/failed step: /' "$LOGS/failed"
  awk '{ p += $1; f += $2; s += $3 } END { print p + 0 " passed, " f + 0 " failed, " s + 0 " skipped"; exit f > 0 }' "$LOGS/counts"
}

skip() {  # skip <name> <reason>
  count 0 0 1
  printf 'skip  %-34s %s\n' "$1" "$2"
}

timed() {  # timed <log> <command>...: its output in <log>.log, and its seconds in <log>.times
  { time ("${@:2}" >"$1.log" 2>&1 </dev/null); } 2>"$1.times"
}

# Time on the clock says little while steps run beside each other.
tell() {  # tell <word> <name> <log> <remark>: the line of a step; of one that failed, its output
  printf '%-5s %-34s %s   %s\n' "$1" "$2" "$(awk '{ printf "%6.1f s  (processor %6.1f s)", $1, $2 + $3 }' "$3.times")" "$4"
  [ "$1" = ok ] || echo "$2" >>"$LOGS/failed"
  [ "$1" = ok ] || grep -vE '^\[[0-9]+/[0-9]+\] (Building|Linking|Creating)|^ *[0-9]+/[0-9]+ Test .* (Passed|Skipped)|^ *Start +[0-9]+:' \
    "$3.log" | tail -n 400 | sed 's/^/      /' || true
}

start_steps() { rm -rf "$LOGS" && mkdir -p "$LOGS"; }

step() {  # step <name> <command>...
  local log
  log=$(log_of "$1")
  if timed "$log" "${@:2}"; then
    count 1 0 0
    tell ok "$1" "$log" ""
  else
    count 0 1 0
    tell FAIL "$1" "$log" "(whole output: $log.log)"
    return 1
  fi
}

cases() {  # cases <name> <command>...: counts every case of the JUnit file that the command leaves beside its log
  local log word=ok status=0 all failed skipped ended=
  log=$(log_of "$1")
  rm -f "$log.xml" "$log.running"
  timed "$log" "${@:2}" || status=$?
  read -r all failed skipped < <(python3 tests/report.py --count "$log.xml" 2>/dev/null) || all=1 failed=1 skipped=0
  if [ $status != 0 ] && [ "$failed" = 0 ]; then failed=1 all=$((all + 1)); fi
  count $((all - failed - skipped)) "$failed" "$skipped"
  [ "$failed" = 0 ] || word=FAIL
  [ -e "$log.xml" ] || ended=", ended in $(cat "$log.running" 2>/dev/null || echo "the preparation")"
  tell $word "$1" "$log" "$all cases, $failed failed, $skipped skipped$ended"
}

ctest_step() {  # ctest_step <name> <test preset> [ctest argument...]; tests wait more than they compute
  cases "$1" "$CTEST" --preset "$2" -j $((2 * JOBS)) --no-tests=error --output-junit "$PWD/$(log_of "$1").xml" "${@:3}"
}

pytest_step() {  # pytest_step <name> [argument...]
  local shared log
  shared=$(mktemp -d /dev/shm/tests-XXXXXX)  # two runs at once do not take each other's files for left behind
  log=$PWD/$(log_of "$1")
  cases "$1" env ONECOPY_SHM_DIR="$shared" ONECOPY_TEST_RUNNING="$log.running" \
    "$VENV/bin/python" -X dev -W error -m pytest --junitxml="$log.xml" -o junit_logging=no "${@:2}"
  rm -rf "$shared"
}

# --- the steps --------------------------------------------------------------------------------------

check_format() {
  find include src python tests fuzz bench examples -name '*.h' -o -name '*.cpp' |
    xargs "$(llvm_tool clang-format)" --dry-run -Werror
}

tidy_step() {  # tidy_step [--all]: sources that differ from the commit before, or all
  llvm_tool clang-tidy >/dev/null || { skip "lint: clang-tidy" "clang-tidy is not installed"; return 0; }
  step "lint: clang-tidy" env CMAKE="$CMAKE" CLANG_TIDY="$(llvm_tool clang-tidy)" PYTHON="$VENV/bin/python" ONECOPY_JOBS="$JOBS" \
    tests/headers/run_tidy.sh "$@" || true
}

lint_steps() {
  step "lint: includes point down" tests/headers/check_arrows.sh . || true
  step "lint: sizes of files" tests/headers/check_sizes.sh || true
  step "lint: words" python3 tests/words/check_words.py || true
  if llvm_tool clang-format >/dev/null; then step "lint: clang-format" check_format || true
  else skip "lint: clang-format" "clang-format is not installed"; fi
  is_there python || { skip "lint: ruff" "python3 with its headers and venv is not installed"; return 0; }
  step "lint: tools for Python" setup_venv_tools || return 0
  step "lint: ruff format" "$VENV/bin/ruff" format --check . || true
  step "lint: ruff" "$VENV/bin/ruff" check . || true
}

LEFT_TO_NIGHTLY=(-m "not nightly")  # python/tests/nightly.py lists them
EXPLORED_LONGEST=ClaimExplored.ThreeThreadsOfOneBorrower  # half a minute
SANITIZED_LONGEST=StoreTest.ListsMoreVersionsThanOnePacketTakes  # half a minute in each sanitizer build

# The Python package is made of the library: what ccache has by then is not compiled twice.
library_step() {
  step "release: library" build release onecopy_rpc onecopy_graph onecopy_command || true
  touch "$LOGS/library"
}

wait_for_library() { ! command -v ccache >/dev/null || wait_for library; }

release_steps() {
  library_step
  step "release: build" build release || { BUILT_AHEAD=() && return 0; }
  build_ahead &
  step "release: layers link downwards" build release onecopy_arrows || true
  step "release: headers are self-contained" build release onecopy_headers || true
  find_ucx
  ctest_step "release: tests" release ${EXPLORED_LONGEST:+-E "$EXPLORED_LONGEST"}
}

# For people: in a few minutes what most mistakes break. What it leaves out, `./dev test all` does.
quick_steps() {
  WITHOUT_PLUGS=yes python_steps --editable -m "not slow and not nightly" &
  library_step
  if step "release: unit tests" build release onecopy_unit_tests; then ctest_step "unit tests" unit; fi
  wait
}

WITH_CPP=(python/tests/rpc/test_rpc_programs_cpp.py python/tests/binding/test_queue_programs_cpp.py)  # beside C++ programs of the release preset

python_steps() {  # python_steps [--editable] [pytest argument...]
  local editable=()
  [ "${1:-}" != --editable ] || { editable=(--editable) && shift; }
  is_there python || { skip "python" "python3 with its headers and venv is not installed"; return 0; }
  step "python: packages" setup_venv || return 0
  wait_for_library
  step "python: install" install_package "${editable[@]}" || return 0
  step "lint: mypy" "$VENV/bin/mypy" || true  # reads the stub that the installation made
  # In parts at once: most of the time goes by in programs that import torch, one after another.
  local processes=(python/tests/{multiprocessing,rpc,distributed}) programs=(python/tests/{integrations,project})
  local store=(python/tests/{store,checkpoint}) apart
  apart=("${processes[@]}" "${programs[@]}" "${store[@]}")
  pytest_step "python: tests" python/tests "${apart[@]/#/--ignore=}" "--deselect=${WITH_CPP[1]}" "$@" &
  pytest_step "python: store tests" "${store[@]}" "$@" &
  pytest_step "python: tests of processes" "${processes[@]}" "--deselect=${WITH_CPP[0]}" "$@" &
  pytest_step "python: tests of programs" "${programs[@]}" "$@" &
  wait
}

programs_steps() {
  [ -x "$VENV/bin/python" ] || return 0
  step "release: programs for Python tests" build release example_rpc example_values onecopy_plugins || return 0
  pytest_step "python: tests with programs in C++" "${WITH_CPP[@]}"
}

install_steps() {
  local kind
  step "release: build" build release || return 0
  for kind in find_package pkg_config plugins add_subdirectory headers command preset missing; do
    if [ $kind = pkg_config ] && ! command -v pkg-config >/dev/null; then skip "install: $kind" "pkg-config is not installed"
    else step "install: $kind" tests/install/run.sh "$kind" build/release || true; fi
  done
}

is_editable() { compgen -G "$VENV/lib/python3*/site-packages/_editable_skbc_onecopy.py" >/dev/null; }

# The core without what can be left out. Few targets: what release has compiled with the same flags, ccache has.
seams_steps() {
  local package=$PWD/build/seams/python files=(project/test_seams.py pickling/test_saving.py binding/test_tensor.py)
  [ "${ONECOPY_NIGHTLY:-OFF}" = OFF ] || files+=(binding/test_queue.py store/test_store.py)
  is_there python && [ -d "$VENV" ] || { skip "seams" "python3 with its headers and venv is not installed"; return 0; }
  step "seams: configure" "$CMAKE" --preset seams -DPython_EXECUTABLE="$VENV/bin/python" || return 0
  step "seams: build" "$CMAKE" --build --preset seams --target device_tests memory_tests transport_tests onecopy_command onecopy_python || return 0
  ctest_step "seams: tests" seams -E 'PinnedPagesOfAscend|AnExtensionsMemoryIsAscends'  # of Ascend, beside others' tests
  ! is_editable || step "seams: package" install_package
  PYTHONPATH=$package pytest_step "seams: python tests" "${files[@]/#/python/tests/}"
}

# Tests wait more than they compute. Builds with a low priority take the time that the tests of Python and release leave.
build_ahead() {
  local preset
  renice -n 10 "$BASHPID" >/dev/null
  for preset in "${BUILT_AHEAD[@]}"; do
    step "$preset: build" build "$preset" || true
    touch "$LOGS/$preset"
  done
}

built() {  # built <preset>: builds the preset, or waits for build_ahead; fails if the build has failed
  case " ${BUILT_AHEAD[*]} " in
    *" $1 "*) wait_for "$1" && ! grep -qsx "$1: build" "$LOGS/failed" ;;
    *) step "$1: build" build "$1" ;;
  esac
}

wait_for() { until [ -e "$LOGS/$1" ] || ! kill -0 $$; do sleep 1; done; }

asan_steps() { built asan && ctest_step "asan: tests" asan ${SANITIZED_LONGEST:+-E "$SANITIZED_LONGEST"} || true; }

tsan_starts() {  # without randomised addresses: older runtimes cannot map their shadow where vm.mmap_rnd_bits is 32
  echo 'int main() {}' | "$(llvm_tool clang++)" -x c++ - -fsanitize=thread -o "$LOGS/tsan_probe" && setarch -R "$LOGS/tsan_probe"
}

tsan_steps() {  # beside the tests of asan, and after those of Python: three at once would be too many for two processors
  llvm_tool clang++ >/dev/null || { skip "tsan" "clang++ is not installed"; return 0; }
  tsan_starts >/dev/null 2>&1 || { skip "tsan" "a program under ThreadSanitizer does not start here"; return 0; }
  built tsan || return 0
  wait_for python
  ctest_step "tsan: tests" tsan ${SANITIZED_LONGEST:+-E "$SANITIZED_LONGEST"}
}

fuzz_steps() {  # fuzz_steps [seconds]; new inputs go to build/fuzzing, the corpus stays as it is
  is_there fuzzer || { skip "fuzz" "clang++ with libFuzzer is not installed"; return 0; }
  step "fuzz: build" build asan onecopy_fuzzers || return 0
  ONECOPY_FUZZ_SECONDS=${1:-${ONECOPY_FUZZ_SECONDS:-2}} ctest_step "fuzz" fuzz -j "$JOBS"
}

model_steps() {
  if command -v spin >/dev/null; then step "model: spin" tests/model/run || true
  else skip "model" "spin is not installed"; fi
}

soak_steps() {
  step "soak" soak 10 || true
  step "soak: user namespaces" soak 2 --user-namespaces || true
}

bench_steps() { step "bench: build" build bench || true; }  # to see that it compiles; ./dev bench measures

kernels_steps() {
  local kernel
  for kernel in qemu-system-x86_64 busybox cpio apt-get; do
    command -v $kernel >/dev/null || { skip "kernels" "$kernel is not installed"; return 0; }
  done
  step "release: build" build release || return 0
  for kernel in 6.1 6.12; do step "kernels: $kernel" tests/kernels/run.sh build/release $kernel || true; done
}

# What a whole run says of its cases. Which packages there are is asked of the Python that ran the tests.
report_cases() {
  local python=$VENV/bin/python
  [ -x "$python" ] || python=python3
  step "skips are expected" "$python" tests/report.py "$LOGS"/*tests*.xml && cat "$LOGS/skips_are_expected.log" || true
}

nox_step() {  # nox_step <session> [argument...]: of noxfile.py
  step "$1: package" install_package || return 0
  venv_has nox || step "$1: nox" "$VENV/bin/pip" install -q nox || return 0
  step "$1" "$VENV/bin/nox" -s "$1" -- "${@:2}" || true
}

SANITIZED=()  # the nightly run: asan tsan fuzz
NIGHTLY_STEPS=(old-torch two-torches pythons rpc-torch rpc-hosts ray plugs soak bench kernels tidy)

run_step() {  # run_step <word of ./dev test>
  case $1 in
    python)  # most tests wait for processes, so they run beside the builds
      { wait_for lint && python_steps "${LEFT_TO_NIGHTLY[@]}"; touch "$LOGS/python"; } & ;;
    tidy) tidy_step --all ;;
    tidy-changed) tidy_step ;;
    lint) { lint_steps; touch "$LOGS/lint"; } & ;;  # installs the first packages of .venv
    release | install | model) "$1_steps" ;;
    asan | tsan) "$1_steps" & ;;
    fuzz)  # in the same build
      wait
      fuzz_steps ;;
    seams)  # beside the Python tests, unless it installs the package anew
      ! is_editable || wait
      seams_steps ;;
    *) wait ;;&  # others use the same .venv
    programs | soak | bench | kernels) "$1_steps" ;;
    old-torch | two-torches | pythons | rpc-torch | rpc-hosts | ray | plugs | vllm | sglang) nox_step "$1" ;;
    torch=*) nox_step torch "${1#torch=}" ;;
    *) echo "no such step: $1" >&2 && count 0 1 0 ;;
  esac
}

run_steps() {  # run_steps <word>...
  local word
  BUILT_AHEAD=()
  case " $* " in *" lint "*) ;; *) touch "$LOGS/lint" ;; esac
  case " $* " in *" python "*"release "*) ;; *) touch "$LOGS/library" ;; esac
  case " $* " in *" python "*) ;; *) touch "$LOGS/python" ;; esac
  case " $* " in *" release "*" asan tsan "*) BUILT_AHEAD=(asan tsan) ;; esac
  for word in "$@"; do run_step "$word"; done
  wait
}

run_tests() {  # run_tests [all|nightly|STEP...]; without a word, the steps for people
  start_steps
  if ! step "setup" setup; then summary; return 1; fi
  find_cmake
  case ${1:-} in
    "") quick_steps ;;
    all | nightly)
      if [ "$1" = nightly ]; then
        export ONECOPY_NIGHTLY=ON ONECOPY_TEST_KILLS=500 ONECOPY_STORE_STEPS=5000 ONECOPY_GROUP_STEPS=300 ONECOPY_CHECKPOINT_KILLS=300 ONECOPY_FUZZ_SECONDS=60
        export ONECOPY_RPC_PROGRAMS=10000 ONECOPY_GRAPH_PROGRAMS=200 ONECOPY_LOADER_PROGRAMS=1000
        LEFT_TO_NIGHTLY=() EXPLORED_LONGEST= SANITIZED_LONGEST= SANITIZED=(asan tsan fuzz)
      fi
      run_steps lint python release install model tidy-changed "${SANITIZED[@]}" seams programs
      report_cases
      [ "$1" = all ] || run_steps "${NIGHTLY_STEPS[@]}" ;;
    *) run_steps "$@" ;;
  esac
  summary
}
