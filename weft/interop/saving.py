"""From a model to a folder, in the form of its architecture, tensor by tensor."""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from ..models import EncoderConfig, LMConfig, Seq2SeqConfig, ViTConfig
from ..nn.freezing import tensors_by_path
from ..spmd.place import check_values
from ..spmd.together import wait_for_all
from .architecture import Architecture
from .bert import BERT
from .companions import copy_beside, keys_beside
from .files import DTYPES, Stored, WeightsError, check_free, write
from .gpt2 import GPT2
from .llama import LLAMA
from .mapping import Parameter, parameters, tensors_to_write
from .modernbert import MODERNBERT
from .switch import SWITCH
from .t5 import T5, T5_ENCODER, UMT5, UMT5_ENCODER
from .table import DECODERS, recall
from .vit import VIT


def save_model(
    model: Any, folder: Path, shard_bytes: int, keys: Mapping[str, Any], like: Path | None, tokenizer: bool
) -> None:
    """Writes the folder; of many processes the first does, and all wait for it."""
    config = _config_of(model)
    architecture = _architecture_of(config)
    architecture.check_fixed(config)
    of_config = architecture.keys(config)
    beside = {} if like is None else keys_beside(like, architecture, of_config)
    params = parameters(config.blueprint(), architecture.entries(config), architecture.model_type)
    arrays = _arrays_of(model, params)
    check_free(folder)
    wait_for_all(f"before saving {folder.name}")  # or a quick one would be done before a slow one has looked
    dtypes = {path: array.dtype for path, array in arrays.items()}
    made_of = tensors_to_write(params, dtypes)
    made_of |= {copy: made_of[original] for copy, original in architecture.repeated(config).items()}
    _check_one_dtype(made_of, dtypes)
    tensors = [Stored(name, arrays[parts[0][0]].dtype, params[parts[0][0]].shape) for name, parts in made_of.items()]

    def values() -> Iterator[np.ndarray]:
        for parts in made_of.values():
            first = params[parts[0][0]]
            if first.entry.share is None:
                yield first.to_file(_gather(arrays[parts[0][0]], parts[0][1]))
                continue
            tensor = np.zeros(first.shape, arrays[parts[0][0]].dtype)
            for path, places in parts:
                params[path].put(tensor, _gather(arrays[path], places))
            yield tensor

    head = {
        "architectures": [architecture.class_name_of(config)],
        "model_type": architecture.model_type,
        "torch_dtype": str(next(arrays[path] for path in params).dtype),
    }
    if jax.process_index() == 0:
        all_keys = of_config | beside | head | dict(keys)
        write(folder, all_keys, tensors, values(), shard_bytes, lambda made: copy_beside(like, made, tokenizer))
    else:
        for _ in values():  # takes its part in gathering
            pass
    wait_for_all(f"after saving {folder.name}")


def _config_of(model: Any) -> Any:
    config = getattr(model, "config", None)
    if not isinstance(config, LMConfig | Seq2SeqConfig | EncoderConfig | ViTConfig):
        raise WeightsError(
            f"{type(model).__name__} is no model that can be written",
            fix="give a `weft.models.TransformerLM`, `Seq2Seq`, `Encoder` or `ViT` with its weights, as `load` gives",
        )
    return config


def _architecture_of(config: Any) -> Architecture:
    """The architecture whose form the model has, or nearly has."""
    if (found := recall(config)) is not None:
        return found
    if isinstance(config, ViTConfig):
        return VIT
    if isinstance(config, EncoderConfig):
        of_positions = {"relative": UMT5_ENCODER if config.relative_by_layer else T5_ENCODER, "rotary": MODERNBERT}
        return of_positions.get(config.positions, BERT)
    if isinstance(config, Seq2SeqConfig):
        return SWITCH if config.experts else UMT5 if config.relative_by_layer else T5
    if fitting := next((family for family in DECODERS if _fits(family, config)), None):
        return fitting
    if config.positions in ("learned", "rotary"):
        return GPT2 if config.positions == "learned" else LLAMA
    raise WeightsError(
        f"a language model with `positions={config.positions!r}` has no Hugging Face form",
        state=f"model: {config.name}",
        fix="only `learned` positions (GPT-2) and `rotary` ones (Llama) can be written",
    )


def _fits(architecture: Architecture, config: Any) -> bool:
    """Whether a file of that architecture can say all that the configuration does."""
    try:
        architecture.check_fixed(config)
        architecture.keys(config)
    except WeightsError:
        return False
    return True


def _arrays_of(model: Any, params: Mapping[str, Parameter]) -> dict[str, Any]:
    arrays = {path: leaf.array for path, leaf in tensors_by_path(model).items()}
    check_values(list(arrays.values()))
    if adapted := next((path for path in params if path not in arrays and f"{path}.down" in arrays), None):
        raise WeightsError(f"weight `{adapted}` has an adapter", fix="fold it in first: `nn.lora.merge(model)`")
    for path, parameter in params.items():
        if path not in arrays or arrays[path].shape != parameter.dims.sizes:
            raise WeightsError(
                f"the model has no weight `{path}` of [{parameter.dims}]", fix="give a model as `models.init` makes it"
            )
        if arrays[path].dtype not in DTYPES.values():
            raise WeightsError(
                f"weight `{path}` holds {arrays[path].dtype}", fix=f"cast it to {', '.join(map(str, DTYPES.values()))}"
            )
    return arrays


def _check_one_dtype(made_of: Mapping[str, Sequence[tuple[str, Any]]], dtypes: Mapping[str, np.dtype]) -> None:
    """Raises where weights of several dtypes were to be one tensor."""
    for name, parts in made_of.items():
        paths = [path for path, _ in parts]
        if other := next((path for path in paths if dtypes[path] != dtypes[paths[0]]), None):
            raise WeightsError(
                f"`{paths[0]}` holds {dtypes[paths[0]]} and `{other}` {dtypes[other]}; both go into tensor `{name}`",
                fix="cast them to one dtype",
            )


def gather_whole(array: Any) -> np.ndarray:
    """The values of an array, whole on this host."""
    return _gather(array, ())


def _gather(array: Any, places: Sequence[int]) -> np.ndarray:
    """The values at some places of the first dims, whole on this host."""
    sharding = array.sharding
    whole = NamedSharding(sharding.mesh, PartitionSpec()) if isinstance(sharding, NamedSharding) else None
    return np.asarray(_compile_gather(whole)(array, tuple(places)).addressable_data(0))


@functools.cache
def _compile_gather(whole: NamedSharding | None) -> Callable[[Any, tuple[int, ...]], Any]:
    return jax.jit(lambda array, places: array[places], out_shardings=whole)
