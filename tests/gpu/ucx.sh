#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Two processes of this machine call each other over UCX with tensors in memory of cards: contents are checked, and the rate is
# printed for each way of the bytes. Wants the package built by tests/gpu/python.sh (or PYTHONPATH with onecopy in it), OpenSSL 3,
# and UCX: the folder of an unpacked wheel libucx-cu13, which holds lib/libucp.so.0, and beside which may lie libucx_cu13.libs.
#
#   tests/gpu/ucx.sh FOLDER_OF_LIBUCX [PYTHON]
#
# To unpack the wheel where there is a network: pip download --no-deps libucx-cu13 && unzip -d ucx libucx_cu13*.whl; then
# FOLDER_OF_LIBUCX is ucx/libucx.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

UCX=$(realpath "${1:?the folder of libucx}")
PYTHON=${2:-python3}
export ONECOPY_UCX_LIBRARY=$UCX/lib/libucp.so.0
export LD_LIBRARY_PATH=$UCX/lib:${UCX%/*}/libucx_cu13.libs${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export PYTHONPATH=${PYTHONPATH:-build/gpu-python/python}
export ONECOPY_RPC_FABRIC=ucx ONECOPY_RPC_LINK=tcp ONECOPY_RPC_LISTEN=127.0.0.1:0
export ONECOPY_RPC_KEY="a secret of this test, of forty characters"

RENDEZVOUS=$(mktemp -u)
trap 'rm -f "$RENDEZVOUS"; kill $(jobs -p) 2>/dev/null || true' EXIT

pair() {  # pair <name> [LANES]
  echo "--- $1"
  [ -z "${2:-}" ] || local -x ONECOPY_UCX_TLS=$2
  rm -f "$RENDEZVOUS"
  "$PYTHON" tests/gpu/ucx_cards.py 1 "$RENDEZVOUS" &
  timeout 120 "$PYTHON" tests/gpu/ucx_cards.py 0 "$RENDEZVOUS" && wait $! || { kill $! 2>/dev/null; FAILED=1; }
}

FAILED=0
pair "from card to card"
pair "by way of the hosts' memory" tcp,cuda_copy
exit "$FAILED"
