#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs tests of Python and looks after each for objects that lost one reference too many; see quarantine.c.
#
#   tests/gpu/lost_references.sh PYTHON PYTEST_ARGUMENT...   with onecopy on PYTHONPATH; QUARANTINE_LOG: a file for the reports
set -euo pipefail
PYTHON=$1
shift
SOURCES=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
BUILD=$(mktemp -d)
trap 'rm -rf "$BUILD"' EXIT
INCLUDES=$("$PYTHON" -c 'import sysconfig; print(sysconfig.get_path("include"))')
"${CC:-cc}" -shared -fPIC -O2 -Wall -I"$INCLUDES" -o "$BUILD/quarantine.so" "$SOURCES/quarantine.c"
cat >"$BUILD/quarantine_plugin.py" <<'PLUGIN'
import gc
import os

import pytest
import quarantine


@pytest.fixture(autouse=True)
def _look_for_lost_references(request):
    yield
    gc.collect()
    if found := quarantine.sweep():
        text = f"{found} blocks were written after they had been freed: {request.node.nodeid}\n"
        with open(os.environ.get("QUARANTINE_LOG", "/dev/stderr"), "a") as log:
            log.write(text)
PLUGIN
export QUARANTINE_LOG=${QUARANTINE_LOG:-$BUILD/log} PYTHONPATH=$BUILD${PYTHONPATH:+:$PYTHONPATH}
: >"$QUARANTINE_LOG"
status=0
"$PYTHON" -m pytest -p quarantine_plugin "$@" || status=$?
cat "$QUARANTINE_LOG"
[ "$status" = 0 ] && [ ! -s "$QUARANTINE_LOG" ]
