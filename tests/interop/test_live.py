"""Against `transformers` itself, where it is installed: models of other sizes, and its reading of what is written."""

import numpy as np
import pytest

import weft as wf
from tests.interop.folders import FIXTURES, NAMES, TOLERANCE, expected, loaded, logits, tensors
from weft import interop

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
from tests.interop import make_fixtures  # noqa: E402  (it needs both)

SEQ2SEQ = dict(relative_attention_num_buckets=16, relative_attention_max_distance=30, decoder_start_token_id=0)
UNTIED = dict(untied=True)  # two tables, as the published files have: this version of the library makes one
MADE = {
    "t5": ("T5", dict(d_kv=6, num_heads=3, d_ff=20, d_model=12, num_layers=3, **SEQ2SEQ)),
    "flan": ("T5", dict(d_kv=3, num_heads=2, d_ff=10, d_model=8, num_layers=1, feed_forward_proj="gated-gelu")),
    "silu": ("T5", dict(d_kv=3, num_heads=2, d_ff=10, d_model=8, num_layers=2, feed_forward_proj="gated-silu")),
    "unscaled": ("T5", dict(d_kv=3, num_heads=2, d_ff=10, d_model=8, num_layers=2, tie_word_embeddings=False)),
    "unequal": ("T5", dict(d_kv=3, num_heads=2, d_ff=10, d_model=8, num_layers=1, num_decoder_layers=3, **SEQ2SEQ)),
    "unequal-encoder": (
        "T5",
        dict(
            d_kv=3, num_heads=2, d_ff=10, d_model=8, num_layers=4, num_decoder_layers=2, feed_forward_proj="gated-silu"
        ),
    ),
    "mt5": ("MT5", dict(d_kv=3, num_heads=2, d_ff=10, d_model=8, num_layers=2)),
    "mt5-untied": ("MT5", dict(d_kv=4, num_heads=3, d_ff=14, d_model=12, num_layers=2, **UNTIED)),
    "mt5-one-layer": ("MT5", dict(d_kv=5, num_heads=1, d_ff=6, d_model=4, num_layers=1, **SEQ2SEQ)),
    "mt5-unequal": ("MT5", dict(d_kv=3, num_heads=2, d_ff=10, d_model=8, num_layers=1, num_decoder_layers=2, **UNTIED)),
    "mt5-plain": ("MT5", dict(d_kv=3, num_heads=2, d_ff=10, d_model=8, num_layers=2, feed_forward_proj="relu")),
    "mt5-epsilon": ("MT5", dict(d_kv=3, num_heads=4, d_ff=9, d_model=10, num_layers=2, layer_norm_epsilon=1e-2)),
    "umt5": ("UMT5", dict(d_kv=3, num_heads=2, d_ff=10, d_model=8, num_layers=2)),
    "umt5-buckets": ("UMT5", dict(d_kv=4, num_heads=3, d_ff=14, d_model=12, num_layers=3, **SEQ2SEQ)),
    "umt5-unequal": ("UMT5", dict(d_kv=3, num_heads=2, d_ff=10, d_model=8, num_layers=3, num_decoder_layers=1)),
    "umt5-one-layer": ("UMT5", dict(d_kv=5, num_heads=1, d_ff=6, d_model=4, num_layers=1)),
    "umt5-plain": ("UMT5", dict(d_kv=3, num_heads=2, d_ff=10, d_model=8, num_layers=2, feed_forward_proj="relu")),
    "umt5-epsilon": ("UMT5", dict(d_kv=3, num_heads=4, d_ff=9, d_model=10, num_layers=2, layer_norm_epsilon=1e-2)),
    "gpt2": ("GPT2", dict(n_embd=24, n_layer=3, n_head=2, n_positions=20)),
    "gpt2-untied": ("GPT2", dict(n_embd=8, n_layer=1, n_head=1, n_positions=20, tie_word_embeddings=False)),
    "llama": ("Llama", dict(hidden_size=24, num_attention_heads=6, num_key_value_heads=2, intermediate_size=20)),
    "llama-biased": (
        "Llama",
        dict(hidden_size=16, num_attention_heads=2, head_dim=12, intermediate_size=20, attention_bias=True),
    ),
    "switch": (
        "SwitchTransformers",
        dict(d_kv=4, num_heads=2, d_ff=10, d_model=8, num_layers=4, num_decoder_layers=4, num_experts=3)
        | dict(num_sparse_encoder_layers=2, num_sparse_decoder_layers=2, decoder_start_token_id=0),
    ),
    "switch-all": (
        "SwitchTransformers",
        dict(d_kv=4, num_heads=2, d_ff=10, d_model=8, num_layers=2, num_decoder_layers=2, num_experts=5)
        | dict(num_sparse_encoder_layers=2, num_sparse_decoder_layers=2, tie_word_embeddings=False),
    ),
}
KINDS = {
    "MT5": "MT5ForConditionalGeneration",
    "UMT5": "UMT5ForConditionalGeneration",
    "T5": "T5ForConditionalGeneration",
    "GPT2": "GPT2LMHeadModel",
    "Llama": "LlamaForCausalLM",
    "SwitchTransformers": "SwitchTransformersForConditionalGeneration",
}


def made(name, seed=11):
    family, sizes = MADE[name]
    sizes = {"vocab_size": 71, **sizes}
    untied = sizes.pop("untied", False)
    if family == "Llama":
        sizes = {"num_hidden_layers": 3, "max_position_embeddings": 32, **sizes}
    model = getattr(transformers, KINDS[family])(getattr(transformers, f"{family}Config")(**sizes)).eval()
    if untied:
        model.lm_head.weight = torch.nn.Parameter(torch.zeros(71, sizes["d_model"]))
    make_fixtures.fill(model, seed)
    return model


ROUTED = dict(d_kv=4, num_heads=2, d_ff=10, d_model=8, num_layers=4, num_decoder_layers=4, num_experts=3)
ROUTED |= dict(num_sparse_encoder_layers=2, num_sparse_decoder_layers=2, decoder_start_token_id=0, expert_capacity=3)


@pytest.mark.parametrize("tied", [True, False])
def test_switch_has_the_routers_losses_the_room_and_the_tables_of_transformers(tied, tmp_path):
    changes = dict(router_z_loss_coef=0.02, router_aux_loss_coef=0.3, tie_word_embeddings=tied, vocab_size=71)
    model = transformers.SwitchTransformersForConditionalGeneration(
        transformers.SwitchTransformersConfig(**ROUTED, **changes)
    ).eval()
    make_fixtures.fill(model, 4)  # untied, the stacks' tables differ
    model.save_pretrained(tmp_path / "first")
    random = np.random.default_rng(2)
    inputs, targets = (random.integers(2, 71, (3, length)) for length in (9, 6))
    arguments = {"input_ids": torch.tensor(inputs), "labels": torch.tensor(targets)}
    out = model(**arguments, output_router_logits=True)
    out.loss.backward()
    ours = interop.load(tmp_path / "first", vocab_multiple=1)
    assert ours.config.expert_room == 3 and ours.config.separate_embeddings is not tied
    loss, told = ours.loss_and_metrics({"inputs": inputs, "targets": targets})
    assert float(told["dropped"]) > 0  # there is not room for all
    for name, theirs in (("balance_loss", "aux_loss"), ("router_z_loss", "z_loss")):
        wanted = sum(float(getattr(out, f"{stack}_{theirs}")) for stack in ("encoder", "decoder"))
        np.testing.assert_allclose(float(told[name]), wanted, rtol=1e-5)
    np.testing.assert_allclose(float(loss), float(out.loss.detach()), rtol=1e-5)
    gradients = wf.grad(lambda model: model.loss({"inputs": inputs, "targets": targets}))(ours)
    interop.save(gradients, tmp_path / "gradients")
    for weight in model.parameters():
        weight.data = torch.zeros_like(weight) if weight.grad is None else weight.grad
    model.save_pretrained(tmp_path / "theirs")
    wanted, found = tensors(tmp_path / "theirs"), tensors(tmp_path / "gradients")
    assert set(found) == set(wanted)
    found.pop("shared.weight") if not tied else None  # of no use, untied
    for key, gradient in found.items():
        np.testing.assert_allclose(gradient, wanted[key], atol=2e-5, rtol=2e-4, err_msg=key)


GRADED = ("t5", "unequal", "mt5-untied", "umt5-buckets")


def their_loss(model, seed=7):
    """What `transformers` says that a batch costs; and the batch as ours."""
    random = np.random.default_rng(seed)
    inputs, targets = (random.integers(2, 71, (3, length)) for length in (9, 6))
    loss = model(input_ids=torch.tensor(inputs), labels=torch.tensor(targets)).loss
    return loss, {"inputs": inputs, "targets": targets}


def theirs(model, given):
    return make_fixtures.logits_of(model, {key: torch.tensor(given[key]).long() for key in given}).numpy()


@pytest.mark.parametrize("name", MADE)
def test_logits_of_any_sizes_are_those_of_transformers(name, tmp_path):
    model = made(name)
    model.save_pretrained(tmp_path / name)
    given = {key: value.numpy() for key, value in make_fixtures.inputs_of(model.config, 5).items()}
    ours = interop.load(tmp_path / name)
    np.testing.assert_allclose(logits(ours, given), theirs(model, given), atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("name", [*NAMES, *MADE])
def test_transformers_reads_what_is_written(name, tmp_path):
    if name in MADE:
        first = made(name)
        first.save_pretrained(tmp_path / "first")
        ours, kind = interop.load(tmp_path / "first"), type(first)
        given = {key: value.numpy() for key, value in make_fixtures.inputs_of(first.config, 5).items()}
        wanted = theirs(first, given)
    else:
        ours, kind = loaded(name), make_fixtures.MODELS[name][0]
        given = {key: value for key, value in expected(name).items() if key != "logits"}
        wanted = theirs(kind.from_pretrained(FIXTURES / name).eval(), given)
    interop.save(ours, tmp_path / "ours", shard_bytes=10_000)
    again, report = kind.from_pretrained(tmp_path / "ours", dtype="auto", output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"] and not report["mismatched_keys"]
    assert again.dtype == torch.float32
    # The weights are the same bits; where they lie in memory moves torch's sums by a few roundings.
    np.testing.assert_allclose(theirs(again.eval(), given), wanted, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", GRADED)
def test_the_loss_and_its_gradients_are_those_of_transformers(name, tmp_path):
    model = made(name)
    model.save_pretrained(tmp_path / "first")
    loss, batch = their_loss(model)
    loss.backward()
    ours = interop.load(tmp_path / "first", vocab_multiple=1)
    value, gradients = wf.value_and_grad(lambda model: model.loss(batch))(ours)
    np.testing.assert_allclose(float(value), float(loss.detach()), rtol=1e-5)
    interop.save(gradients, tmp_path / "gradients")  # under the names of the weights
    wanted = {key: weight.grad for key, weight in model.named_parameters() if weight.grad is not None}
    compared = {key: value for key, value in tensors(tmp_path / "gradients").items() if key in wanted}
    assert len(compared) > 0.9 * len(wanted)
    for key, gradient in compared.items():
        np.testing.assert_allclose(gradient, wanted[key].numpy(), atol=2e-5, rtol=2e-4, err_msg=key)


def test_narrow_weights_are_narrow_in_transformers_too(tmp_path):
    interop.save(interop.load(FIXTURES / "llama", param_dtype="bfloat16"), tmp_path / "ours")
    again = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "ours", dtype="auto")
    assert again.dtype == torch.bfloat16
