# SPDX-License-Identifier: Apache-2.0
"""A program that runs SGLang's engine on the CPU with a KV pool, for test_sglang_kv_pool.py: it answers lines of JSON.

The engine's own processes import this file, too, since they are spawned.
"""

import json
import sys
import time

import engine_process
import sglang_engine  # first: it stands for packages that are built for CUDA

CONFIG = sglang_engine.CONFIG | {"max_position_embeddings": 8192}


def save_model(folder, seed=0):
    """Saves a tiny Llama whose weights are far from each other, so that no rounding changes a token."""
    import vllm_engine

    vllm_engine.save_model(folder, seed, **CONFIG)


class Commands:
    """What test_sglang_kv_pool.py may ask for. The options are arguments of SGLang's engine."""

    def __init__(self, folder, options):
        import sglang

        self.engine = sglang.Engine(model_path=folder, sleep_on_idle=True, **sglang_engine.ENGINE, **options)
        self.engine.freeze_gc()  # flush_cache() collects garbage, for seconds if among all objects of SGLang

    def answers(self, prompts, count=4):
        """Returns the most likely tokens after each prompt, and how many of its tokens came from the KV pool."""
        greedy = {"max_new_tokens": count, "temperature": 0, "ignore_eos": True}
        outputs = self.engine.generate(input_ids=prompts, sampling_params=greedy)
        return [[output["output_ids"], from_pool(output["meta_info"])] for output in outputs]

    def forget(self):
        """Empties the engine's own cache and HiCache's."""
        return self.engine.flush_cache() and None

    def load(self, folder):
        """Gives the engine the weights of a folder."""
        is_done, message, *_ = self.engine.update_weights_from_disk(folder)
        assert is_done, message

    def seconds(self, prompt):
        """Returns the time to the first token, and how many tokens came from the KV pool."""
        start = time.perf_counter()
        [[_, cached]] = self.answers([prompt], 1)
        return [time.perf_counter() - start, cached]


def from_pool(info):
    details = info.get("cached_tokens_details") or {}
    return details.get("storage", 0) + details.get("host", 0)  # SGLang counts the linker's tokens as the host's


if __name__ == "__main__":
    engine_process.serve(lambda: Commands(sys.argv[1], json.loads(sys.argv[2])))
