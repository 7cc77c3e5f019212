# SPDX-License-Identifier: Apache-2.0
"""Two workers use a checkpoint of Hugging Face: the files are read once, and there is one copy of the weights."""

import multiprocessing
import tempfile
import torch
import transformers
import onecopy

transformers.utils.logging.disable_progress_bar()


def worker(path, name, answers, done):
    model = onecopy.hf.from_pretrained(
        transformers.LlamaForCausalLM, path
    )  # instead of LlamaForCausalLM.from_pretrained
    own, total = onecopy.stats()["live_bytes"] >> 20, sum(p.nbytes for p in model.parameters()) >> 20
    tokens = model.generate(torch.tensor([[3, 1, 4]]), max_new_tokens=4, do_sample=False, pad_token_id=0)
    answers.put((f"{name} has allocated {own} of {total} MiB", tokens.tolist()))
    done.wait()


def main(path):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=8
    )
    transformers.LlamaForCausalLM(config).save_pretrained(path)  # a random model: yours is there already
    context = multiprocessing.get_context("spawn")
    answers, done = context.Queue(), context.Event()
    told = []
    workers = [context.Process(target=worker, args=(path, name, answers, done)) for name in ("first", "second")]
    for process in workers:
        process.start()
        told.append(answers.get())
        print(told[-1][0])
    print("they answer alike:", told[0][1] == told[1][1])
    done.set()
    for process in workers:
        process.join()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        main(directory)
