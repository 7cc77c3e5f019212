#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# run.sh PROGRAM: runs a fuzzer for ONECOPY_FUZZ_SECONDS (2), from its seeds in fuzz/corpus. New inputs go to build/fuzzing/found,
# inputs that fail to build/fuzzing/artifacts.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
name=$(basename "$1")
found=build/fuzzing/found/$name seeds=()
[ ! -d "fuzz/corpus/$name" ] || seeds=("fuzz/corpus/$name")
mkdir -p "$found" build/fuzzing/artifacts
exec "$1" -max_total_time="${ONECOPY_FUZZ_SECONDS:-2}" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
  -artifact_prefix="build/fuzzing/artifacts/$name-" "$found" "${seeds[@]}" </dev/null
