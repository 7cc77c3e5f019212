# SPDX-License-Identifier: Apache-2.0
# `./dev test plugs`, which reads this: the plugs with the packages themselves, in an environment of their own. Not in CI:
# half a gigabyte to fetch, and Ray's daemons take minutes of the processor to start.
# shellcheck shell=bash

# Of those that want a card or a torch of their own there are the files alone: installed, or in a folder to be named.
PLUGS_ALONE=(verl==0.9.1 lmcache==0.5.6)
PLUGS_FILES=(vllm==0.33.0 sglang==0.5.23)

plugs_steps() {
  local VENV=$PWD/.venv-plugs files=$PWD/build/plugs
  step "plugs: install" install_package || return 0
  step "plugs: their packages" install_plugs "$files" || return 0
  ONECOPY_VLLM=$files/vllm ONECOPY_SGLANG=$files/sglang run_pytest "plugs: tests" \
    python/tests/test_{ray,trainers,verl,vllm,sglang,lmcache,joblib,jax,huggingface,checkpoint_engine}.py \
    "python/tests/test_mp_docs.py::test_examples_print_what_they_should[ray_actors]"
  pytest_step "plugs: tests"
}

install_plugs() {  # install_plugs <folder>
  local package pip=("$VENV/bin/pip" --disable-pip-version-check -q)
  venv_has ray lightning jax || { install_beside_torch ray && install_beside_torch plugs; } || return 1
  venv_has verl lmcache || "${pip[@]}" install --no-deps "${PLUGS_ALONE[@]}" || return 1
  for package in "${PLUGS_FILES[@]}"; do
    [ -d "$1/${package%%=*}" ] && continue
    "${pip[@]}" download --no-deps -d "$1" "$package" || return 1
    "$VENV/bin/python" -m zipfile -e "$1/${package%%=*}"-*.whl "$1" || return 1
  done
}
