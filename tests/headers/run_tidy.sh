#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs clang-tidy over src and python/src: `run_tidy.sh` over the sources that differ from HEAD~1, `run_tidy.sh COMMIT` from
# COMMIT, `run_tidy.sh --all` over all. Environment: CLANG_TIDY, CMAKE, ONECOPY_JOBS, and PYTHON, an interpreter with
# nanobind, without which python/src is left out.
set -euo pipefail
cd "$(dirname "$0")/../.."
build=build/tidy

python=${PYTHON:-.venv/bin/python}
settings=(-DONECOPY_PRECOMPILE=OFF) folders=(src)  # nothing precompiled, so a missing include shows
if "$python" -c 'import nanobind' 2>/dev/null; then
  settings+=(-DONECOPY_PYTHON=ON -DPython_EXECUTABLE="$(realpath -s "$python")")
  folders+=(python/src)
else
  echo "run_tidy.sh: $python has no nanobind, so python/src is left out" >&2
fi

if [ "${1:-}" = --all ]; then
  files=$(git ls-files -co --exclude-standard -- "${folders[@]}")
elif ! git rev-parse -q --verify "${1:-HEAD~1}^{commit}" >/dev/null; then
  echo "clang-tidy: no commit to compare with"
  exit 0
else
  files=$(git diff --name-only --diff-filter=d "${1:-HEAD~1}" -- "${folders[@]}")
fi
files=$(grep '\.cpp$' <<<"$files" || true)
[ -n "$files" ] || { echo "clang-tidy: no source has changed"; exit 0; }

"${CMAKE:-cmake}" --preset dev -B $build "${settings[@]}" >/dev/null
xargs -r -n 1 -P "${ONECOPY_JOBS:-$(nproc)}" "${CLANG_TIDY:-clang-tidy}" -p $build --quiet <<<"$files"
echo "clang-tidy: $(wc -l <<<"$files") sources"
