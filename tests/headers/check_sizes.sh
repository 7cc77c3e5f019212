#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# check_sizes.sh: a source of the library or the package has at most 300 lines. These many have more today; lower a number when a
# file is divided. Tests may be longer.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
OVER_300=0 OVER_600=0

sources() {
  git ls-files -co --exclude-standard -- include src python/src python/onecopy 2>/dev/null ||
    find include src python/src python/onecopy -type f
}

too_long() {  # too_long <lines> <files allowed>
  local found
  found=$(sources | sort -u | grep -E '\.(h|cpp|py)$' | xargs ls -d 2>/dev/null | xargs wc -l | awk -v max="$1" '$1 > max && $2 != "total"' | sort -rn)
  [ "$(grep -c . <<<"$found" || true)" -gt "$2" ] || return 0
  echo "more than $2 files have over $1 lines; divide one:"
  echo "$found"
  return 1
}

too_long 300 $OVER_300 && too_long 600 $OVER_600
