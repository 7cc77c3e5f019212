# SPDX-License-Identifier: Apache-2.0
"""A program that runs SGLang's engine on the CPU, for test_sglang_engine.py: it answers lines of JSON.

SGLang imports two packages that are built for CUDA only, and uses nothing of them here. The engine's own processes import
this file, too, since they are spawned.
"""

import importlib.abc
import importlib.machinery
import json
import os
import sys
import types

BUILT_FOR_CUDA = ("torchvision", "sgl_kernel")


class AnyName(type):
    """A class whose attributes are their own names."""

    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return name


class AnyModule(types.ModuleType):
    """A module in which every name is an empty class."""

    __path__ = ()
    __version__ = "0.29.1"  # that SGLang compares

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return vars(self).setdefault(name, AnyName(name, (), {}))


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BUILT_FOR_CUDA:
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        return AnyModule(spec.name)

    def exec_module(self, module):
        pass


sys.meta_path.append(Finder())

PROMPT = [1, 5, 9, 200, 31]
CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 128, "intermediate_size": 256,
    "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2, "vocab_size": 512,
    "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "torch_dtype": "float32", "tie_word_embeddings": False,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
ENGINE = {
    "device": "cpu", "attention_backend": "torch_native", "sampling_backend": "pytorch", "grammar_backend": "none",
    "skip_tokenizer_init": True, "disable_cuda_graph": True, "disable_overlap_schedule": True, "dtype": "float32",
    "page_size": 16, "max_total_tokens": 4096, "log_level": "warning",
}  # fmt: skip


def model(seed):
    """Returns a tiny Llama with the weights of a seed."""
    import torch
    import transformers

    torch.manual_seed(seed)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**CONFIG))


class Commands:
    """What test_sglang_engine.py and test_sglang_store.py may ask for; the engine is in ``self.engine``.

    With the name of an object, the engine's weights come from the store, and its folder has none.
    """

    def __init__(self, folder, ranks, name=None):
        import sglang

        from onecopy.integrations import sglang as plug

        self.plug, self.folder = plug, folder
        if name is None:
            model(0).save_pretrained(folder)
            options = {"custom_weight_loader": [plug._LOAD_FORMAT]}
        else:
            os.makedirs(folder, exist_ok=True)
            options = {"load_format": "private", "model_loader_extra_config": json.dumps({"store": name})}
        with open(os.path.join(folder, "config.json"), "w") as file:
            json.dump(CONFIG, file)
        self.engine = sglang.Engine(model_path=folder, tp_size=ranks, **options, **ENGINE)

    def reload(self, version=None):
        """Loads the current version of the store, as a server does that gets a request."""
        from sglang.srt.managers.io_struct import UpdateWeightFromDiskReqInput

        request = UpdateWeightFromDiskReqInput(
            model_path=str(self.folder), load_format="private", weight_version=version
        )
        manager = self.engine.tokenizer_manager
        return self.engine.loop.run_until_complete(manager.update_weights_from_disk(request, None))

    def tokens(self):
        """Returns the engine's answer to the prompt."""
        self.answer = self.engine.generate(
            input_ids=PROMPT, sampling_params={"max_new_tokens": 8, "temperature": 0, "ignore_eos": True}
        )
        return self.answer["output_ids"]

    def version(self):
        """Returns the name of the weights of the last answer."""
        return self.answer["meta_info"]["weight_version"]

    def expected(self, seed):
        """Returns what transformers answers with the weights of a seed."""
        import torch

        with torch.no_grad():
            all_tokens = model(seed).generate(
                torch.tensor([PROMPT]), max_new_tokens=8, do_sample=False, eos_token_id=511
            )
        return all_tokens[0, len(PROMPT) :].tolist()

    def update(self, seed):
        self.plug.update(self.engine, model(seed).state_dict())

    def update_by(self, text):
        """Updates by the handle of another process."""
        import torch

        self.plug.update(self.engine, self.plug.Offer([(text, torch.empty(0))], self.plug._LOAD_FORMAT, text))

    def update_with_a_wrong_shape(self):
        import torch

        self.plug.update(self.engine, {"model.norm.weight": torch.ones(3)})

    def call(self, name):
        """Returns what a method of SGLang returns."""
        return getattr(self.engine, name)()

    def update_without_a_session(self, seed):
        offer = self.plug.offer(model(seed).state_dict())
        return self.engine.update_weights_from_tensor(offer.named_tensors, load_format=offer.load_format)


if __name__ == "__main__":
    import engine_process

    engine_process.serve(lambda: Commands(sys.argv[1], int(sys.argv[2]), *sys.argv[3:]))
