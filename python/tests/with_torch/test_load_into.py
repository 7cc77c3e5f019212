# SPDX-License-Identifier: Apache-2.0
"""Bundle.load_into(): a whole torch module on the memory that another one was shared from."""

import subprocess
import sys
import textwrap

import pytest

import onecopy

torch = pytest.importorskip("torch")
nn = torch.nn


class Rotary(nn.Module):
    """Has a buffer that no state_dict() has, computed from nothing, as rotary embeddings do."""

    def __init__(self, width):
        super().__init__()
        self.register_buffer("inv_freq", 1.0 / 10 ** (torch.arange(width) / width), persistent=False)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.register_buffer("nothing", None)

    def forward(self, x):
        return x * self.inv_freq + self.steps


class Model(nn.Module):
    """Tied weights, non-persistent buffers, frozen parameters, a module under two names."""

    def __init__(self, words=11, width=4):
        super().__init__()
        self.embed = nn.Embedding(words, width)
        self.rotary = Rotary(width)
        self.blocks = nn.ModuleList([nn.Linear(width, width), nn.LayerNorm(width)])
        self.again = self.blocks[0]
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.embed.weight
        self.blocks[1].weight.requires_grad = False

    def forward(self, tokens):
        x = self.rotary(self.embed(tokens))
        for block in self.blocks:
            x = block(x)
        return self.head(self.again(x))


def on_meta(*arguments):
    with torch.device("meta"):
        return Model(*arguments)


TOKENS = torch.tensor([[1, 5, 2]])


def addresses(model):
    named = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    return {name: tensor.data_ptr() for name, tensor in named}


@pytest.mark.parametrize("framework", [None, "torch", "numpy"])
def test_a_meta_model_becomes_the_shared_one(framework):
    model, other = Model(), on_meta()
    handle = onecopy.share(model)
    assert onecopy.open(handle, framework=framework).load_into(other) == ([], [])
    assert torch.equal(other(TOKENS), model(TOKENS))
    assert addresses(other) == addresses(model)
    with torch.no_grad():
        model.embed.weight.fill_(0.5)
        model.rotary.inv_freq.fill_(2)
    assert torch.equal(other(TOKENS), model(TOKENS))


def test_tied_weights_are_one_parameter_again():
    model, other = Model(), on_meta()
    onecopy.open(onecopy.share(model)).load_into(other)
    assert other.head.weight is other.embed.weight and other.again.weight is other.blocks[0].weight
    assert len(list(other.parameters())) == len(list(model.parameters()))


def test_weights_that_the_sharer_tied_are_one_parameter_in_an_untied_module():
    model, other = Model(), on_meta()
    other.head = nn.Linear(4, 11, bias=False, device="meta")
    onecopy.open(onecopy.share(model)).load_into(other)
    assert other.head.weight is other.embed.weight


def test_parameters_want_a_gradient_if_they_did():
    model, other = Model(), on_meta()
    onecopy.open(onecopy.share(model)).load_into(other)
    for (name, mine), (_, theirs) in zip(model.named_parameters(), other.named_parameters()):
        assert type(theirs) is nn.Parameter and mine.requires_grad == theirs.requires_grad, name
    assert not other.blocks[1].weight.requires_grad
    other(TOKENS).sum().backward()
    assert other.embed.weight.grad is not None and model.embed.weight.grad is None


def test_the_dtype_is_the_bundles():
    other = on_meta()
    onecopy.open(onecopy.share(Model().to(torch.bfloat16))).load_into(other)
    assert other.embed.weight.dtype == torch.bfloat16


def test_buffers_stay_persistent_or_not():
    other = on_meta()
    onecopy.open(onecopy.share(Model())).load_into(other)
    assert other.state_dict().keys() == Model().state_dict().keys()


def test_a_module_with_values_of_its_own_is_loaded_from_a_state_dict():
    """The module has computed itself a buffer that no state_dict() has."""
    model, other = Model(), Model()
    assert onecopy.open(onecopy.share(model.state_dict())).load_into(other) == ([], [])
    assert torch.equal(other(TOKENS), model(TOKENS))
    assert other.embed.weight.data_ptr() == model.embed.weight.data_ptr()


def test_one_name_of_tied_weights_is_enough():
    state = Model().state_dict()
    del state["head.weight"]
    other = on_meta()
    other.rotary = Rotary(4)
    onecopy.open(onecopy.share(state)).load_into(other)
    assert other.head.weight is other.embed.weight and other.head.weight.device.type == "cpu"


def test_a_module_in_something_larger_is_named_by_its_prefix():
    model = Model()
    bundle = onecopy.open(onecopy.share({"model": model, "ema": {"model": model}, "step": 3}))
    for prefix in ("model", "model.", "ema.model"):
        other = on_meta()
        bundle.load_into(other, prefix=prefix)
        assert torch.equal(other(TOKENS), model(TOKENS))
    with pytest.raises(onecopy.InvalidArgument, match="prefix='model' loads the tensors below 'model'"):
        bundle.load_into(on_meta())


# --- tensors that do not fit ------------------------------------------------------------------------------


def refusal(bundle, module, **keywords):
    before = addresses(module)
    with pytest.raises(onecopy.InvalidArgument) as raised:
        bundle.load_into(module, **keywords)
    assert addresses(module) == before, "a module that was refused is as it was"
    return str(raised.value)


def test_a_state_dict_for_a_meta_model_names_the_buffers_and_the_way():
    message = refusal(onecopy.open(onecopy.share(Model().state_dict())), on_meta())
    assert message == (
        "the bundle lacks 1 of the module's tensors: 'rotary.inv_freq'; "
        "a state_dict() does not contain these buffers: share the module itself, share(model)"
    )


def test_missing_and_unexpected_names_are_named():
    state = Model().state_dict()
    state["more"] = torch.zeros(1)
    del state["blocks.0.bias"], state["again.bias"]
    message = refusal(onecopy.open(onecopy.share(state)), Model())
    assert "lacks 2 of the module's tensors: 'blocks.0.bias', 'again.bias'" in message
    assert "the module lacks 1 of the bundle's: 'more'; strict=False loads the tensors that both have" in message
    other = Model()
    bias = other.blocks[0].bias
    missing, unexpected = onecopy.open(onecopy.share(state)).load_into(other, strict=False)
    assert (missing, unexpected) == (["blocks.0.bias", "again.bias"], ["more"]) and other.blocks[0].bias is bias


def test_many_names_are_not_all_printed():
    message = refusal(onecopy.open(onecopy.share({})), nn.ModuleList(nn.Linear(1, 1) for _ in range(30)))
    assert "lacks 60 of the module's tensors" in message and "and 52 more" in message and len(message) < 400


@pytest.mark.parametrize("strict", [True, False])
def test_another_shape_is_refused_with_both(strict):
    message = refusal(onecopy.open(onecopy.share(Model())), on_meta(11, 5), strict=strict)
    assert "'embed.weight' is (11, 4) in the bundle and (11, 5) in the module" in message
    assert "make the module with the sharer's sizes" in message


def test_what_is_no_module_is_refused():
    bundle = onecopy.open(onecopy.share({"a": torch.zeros(1)}))
    with pytest.raises(TypeError, match="module must be a torch.nn.Module, not dict"):
        bundle.load_into({})
    with pytest.raises(TypeError, match="prefix must be a str"):
        bundle.load_into(Model(), prefix=None)


# --- weights beside parameters and buffers -------------------------------------------------------------


class WithExtraState(torch.nn.Module):
    def __init__(self, state):
        super().__init__()
        self.layer = torch.nn.Linear(2, 2)
        self.state = state

    def get_extra_state(self):
        return self.state

    def set_extra_state(self, state):
        self.state = state


class SavesMore(torch.nn.Linear):
    """Writes what it has under other names, and a number."""

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[prefix + "again"] = self.weight
        destination[prefix + "zero_point"] = 7
        destination[prefix + "nothing"] = None


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_packed_weights_of_quantized_layers_are_refused_by_name():
    module = torch.ao.quantization.quantize_dynamic(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4)))
    with pytest.raises(
        onecopy.Unsupported, match=r"x has weights .*'0._packed_params.dtype', '0._packed_params._packed_params'"
    ):
        onecopy.share(module)
    with pytest.raises(onecopy.Unsupported, match=r'x at "model" has weights .*'):
        onecopy.share({"model": module})


def test_an_extra_state_is_refused_by_name_and_an_empty_one_is_not():
    module = torch.nn.Sequential(WithExtraState({"scale": torch.ones(2)}))
    with pytest.raises(
        onecopy.Unsupported, match=r"x has weights .*: '0._extra_state'; share\(module.state_dict\(\)\)"
    ):
        onecopy.share(module)
    handle = onecopy.share(module.state_dict())
    assert "0._extra_state.scale" in onecopy.open(handle)
    for empty in (None, torch.empty(0)):
        assert len(onecopy.open(onecopy.share(WithExtraState(empty)))) == 2


def test_a_value_that_a_layer_saves_beside_its_tensors_is_refused_by_name():
    with pytest.raises(onecopy.Unsupported, match=r"buffers: 'zero_point';"):
        onecopy.share(SavesMore(2, 2))


def test_an_extra_state_that_the_bundle_lacks_is_missing():
    bundle = onecopy.open(onecopy.share({"layer.weight": torch.ones(2, 2), "layer.bias": torch.ones(2)}))
    module = WithExtraState({"scale": torch.ones(2)})
    with pytest.raises(onecopy.InvalidArgument, match="lacks 1 of .*: '_extra_state'; these are neither"):
        bundle.load_into(module)
    assert bundle.load_into(module, strict=False).missing == ["_extra_state"]
    assert module.layer.bias.tolist() == [1, 1]


# --- a real one -------------------------------------------------------------------------------------

LLAMA = """
    import subprocess, sys
    import torch, transformers
    import onecopy

    def make():
        return transformers.LlamaForCausalLM(transformers.LlamaConfig(
            vocab_size=97, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, tie_word_embeddings="tied" in sys.argv)).eval()

    tokens = torch.tensor([[1, 5, 2, 80]])
    if sys.argv[1] == "engine":
        with torch.device("meta"):
            model = make()
        onecopy.open(sys.argv[3]).load_into(model)
        assert all(x.device.type == "cpu" for x in [*model.parameters(), *model.buffers()])
        assert (model.lm_head.weight is model.get_input_embeddings().weight) == (sys.argv[2] == "tied")
        print(model(tokens).logits.detach().sum().item())
    else:
        torch.manual_seed(0)
        model = make()
        handle = onecopy.share(model)
        print(model(tokens).logits.detach().sum().item())
        engine = subprocess.run([sys.executable, __file__, "engine", sys.argv[2], str(handle)], check=True)
"""


@pytest.mark.parametrize("tied", ["tied", "apart"])
def test_a_llama_of_transformers(tied, tmp_path):
    pytest.importorskip("transformers")
    (tmp_path / "llama.py").write_text(textwrap.dedent(LLAMA))
    done = subprocess.run(
        [sys.executable, tmp_path / "llama.py", "trainer", tied], capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    trainer, engine = done.stdout.split()
    assert trainer == engine
