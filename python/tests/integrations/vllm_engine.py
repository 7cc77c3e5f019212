# SPDX-License-Identifier: Apache-2.0
"""A program that runs vLLM's engine on the CPU with a KV pool, for test_vllm_kv_pool.py: it answers lines of JSON."""

import functools
import json
import os
import random
import signal
import sys
import time

import engine_process

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256, "intermediate_size": 512,
    "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2, "vocab_size": 512,
    "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "torch_dtype": "float32", "tie_word_embeddings": False,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
PAGE = 32  # tokens of a block: the smallest that vLLM's attention takes on the CPU
BLOCK_BYTES = 2 * 2 * 2 * 64 * 4 * PAGE  # layers, keys and values, heads, their width, float32
ENGINE = {
    "skip_tokenizer_init": True, "dtype": "float32", "enforce_eager": True, "block_size": PAGE, "seed": 0,
    "max_model_len": 1024, "max_num_seqs": 8,
}  # fmt: skip


def save_model(folder, seed=0, **config):
    """Saves a tiny Llama whose weights are far from each other, so that no rounding changes a token."""
    import torch
    import transformers

    torch.manual_seed(seed)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**CONFIG, **config})).float()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3 if parameter.dim() > 1 else 1.0)
    model.save_pretrained(folder)
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump({**CONFIG, **config}, file)


class Commands:
    """What test_vllm_kv_pool.py may ask for. ``transfer`` is what vLLM's option --kv-transfer-config has, or None."""

    def __init__(self, folder, transfer, options):
        import vllm
        from vllm.config import KVTransferConfig

        self.vllm = vllm
        self.engine = vllm.LLM(
            model=folder, **{**ENGINE, **options}, enable_prefix_caching=transfer is not None,
            kv_transfer_config=KVTransferConfig(**transfer) if transfer else None,
        )  # fmt: skip
        self.engine.shutdown = lambda: None  # at the end of the process

    def _generate(self, prompts, count):
        sampling = self.vllm.SamplingParams(temperature=0, max_tokens=count, ignore_eos=True, detokenize=False)
        given = [{"prompt_token_ids": prompt} for prompt in prompts]
        outputs = self.engine.generate(given, sampling, use_tqdm=False)
        return [[list(output.outputs[0].token_ids), output.num_cached_tokens or 0] for output in outputs]

    def answers(self, prompts, count=4):
        """Returns the most likely tokens after each prompt, and how many tokens of the prompt were not computed."""
        answers = self._generate(prompts, count)
        self._generate([[1]], 1)  # an engine without a process of its own stores blocks with the next step
        return answers

    def forget(self):
        """Empties the engine's own cache, so that all that is cached comes from the KV pool."""
        return self.engine.reset_prefix_cache()

    # --- the KV pool; the scheduler is in this process with VLLM_ENABLE_V1_MULTIPROCESSING=0

    @functools.cached_property
    def pool(self):
        core = self.engine.llm_engine.engine_core.engine_core
        return core.scheduler.connector.connector_scheduler.manager._pool

    def stats(self):
        return self.pool.stats()

    def save_blocks(self, path):
        """Saves the bytes of all blocks that are found, by key."""
        import torch

        found = self._found()
        torch.save({key: self.pool.block(number).clone() for key, number in found.items()}, path)
        self.pool.release(list(found.values()))
        return len(found)

    def compare_blocks(self, path):
        """Returns how many blocks are found, how many of them are not known, and how many differ from the saved ones."""
        import torch

        found, saved = self._found(), torch.load(path)
        unknown = [key for key in found if key not in saved]
        wrong = [
            key for key, number in found.items() if key in saved and not torch.allclose(
                self.pool.block(number).view(torch.float32), saved[key].view(torch.float32), rtol=1e-3, atol=1e-3)
        ]  # fmt: skip
        self.pool.release(list(found.values()))
        return [len(found), len(unknown), len(wrong)]

    def _found(self):
        _, are_missing, events = self.pool.events()
        assert not are_missing, "more keys were stored than the KV pool remembers"
        keys = list({key for is_stored, key in events if is_stored})
        return {key: number for key, number in zip(keys, self.pool.find_all(keys)) if number is not None}

    def allocate_all(self):
        """Leases as many blocks as the KV pool gives one process, and returns how many."""
        import onecopy

        numbers = []
        try:
            while True:
                numbers += self.pool.allocate(1)
        except onecopy.OutOfMemory:
            self.pool.release(numbers)
        return len(numbers)

    def clear(self):
        return self.pool.clear()

    def overwrite(self, value):
        """Writes other keys and values into all blocks."""
        import torch

        self.pool.tensor[: self.pool.stats()["blocks"] * self.pool.block_bytes].view(torch.float32).fill_(value)

    def fork(self, seed, prompts):
        """Forks this engine. The child answers prompts without an end. Returns its pid."""
        pid = os.fork()
        if pid == 0:
            rng = random.Random(seed)
            while True:
                self.answers(rng.sample(prompts, 4), 1)
                self.forget()
        return pid

    def kill(self, pid, seconds, is_writing):
        """Kills a forked engine after a time, or once it writes a block after that time."""
        time.sleep(seconds)
        end = time.monotonic() + 5
        while is_writing and self.pool.stats()["writing"] == 0 and time.monotonic() < end:
            pass
        os.kill(pid, signal.SIGKILL)

    def bury(self, pid):
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


if __name__ == "__main__":
    engine_process.serve(lambda: Commands(sys.argv[1], *map(json.loads, sys.argv[2:])))
