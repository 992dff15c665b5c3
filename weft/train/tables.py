"""The tables of a run's TOML file: keys, defaults, bounds and what they mean.

Imports the data's formats. `config` reads and checks them.
"""

import dataclasses

from ..data.sources import SourceTable
from ..data.tokenizers import TokenizerTable
from ..fields import bounded, one_of


@dataclasses.dataclass(frozen=True, kw_only=True)
class Train:
    """How long and with how much at a time."""

    steps: int = 1000
    """How many updates of the parameters."""
    objective: str = one_of("likelihood", "dpo")
    """What is learned: to predict the data; or, by DPO, which answers are preferred (`data.format = "preferences"`)."""
    beta: float = 0.1
    """Of DPO: how dear it is to differ from the weights that the run began with."""
    batch: int | None = None
    """Sequences in a batch; by default the model's."""
    tokens: int | None = None
    """Tokens in a batch, in place of `batch`."""
    length: int | None = None
    """Tokens in a sequence; by default the model's."""
    microbatches: int = 1
    """Gradient accumulation: in how many parts a batch is computed; gradients are summed once."""
    log_every: int = 10
    """Every how many steps a line is logged."""
    peak_flops: float | None = None
    """What one processor can do at most, in FLOP/s; then the share of it that is used, the MFU, is logged."""
    bad_steps: int = 10
    """After so many steps in a row whose loss or gradients are not finite, training stops; each is skipped."""
    spikes: str = one_of("keep", "skip", "rollback")
    """What is done with a step whose loss or gradients leap up: `keep` nothing; `skip` leaves it out as one that is not
    finite; `rollback` goes back to the last checkpoint and on with the batches after it."""
    spike_window: int = 128
    """By how many steps before it a step is a spike or not; none of the first so many is."""
    spike_sigmas: float = 6.0
    """How many standard deviations above the mean of these a loss, or a norm of the gradients, is one."""
    watchdog_minutes: float = bounded(60.0, least=0)
    """After so many minutes without a step a process writes its stacks and ends with status 75; 0: it waits on."""
    compilation_cache: bool = True
    """Whether compiled programs are kept for the next start, by user; never those of virtual processors."""
    average: float | None = bounded(below=1)
    """The decay of an EMA of the weights, which is then what is evaluated; none by default."""
    loss_scale: float | None = None
    """Loss scaling: the loss times this is differentiated, for narrow floats; gradients are divided by it again."""
    sum_dtype: str | None = one_of("float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", default=None)
    """In which dtype sums of gradients travel, float8 with scales; by default that in which a weight is computed."""
    pack: bool = True
    """Whether several texts share a sequence; they do not see each other."""
    stride: int | None = bounded(least=1)
    """How many tokens one packed sequence begins after another: fewer than `length`, and they overlap, so that a token
    is seen at many places. By default they do not."""
    across: bool = False
    """Whether packed texts see those before them after all, as one stream."""
    buckets: tuple[int, ...] = ()
    """Lengths that pairs of texts are padded to, instead of packing them."""
    freeze: tuple[str, ...] = ()
    """Paths of weights that stay as they are, like `embedding.*`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Optimizer:
    """The optimizer, by its name in Optax; `adamw8bit` is AdamW with 8-bit moments.

    `muon` makes the momentum of the blocks' matrices orthogonal, and updates all else by Adam.
    """

    name: str = one_of("adamw", "adam", "adafactor", "sgd", "momentum", "lion", "muon", "adamw8bit", "adam8bit")
    """The rule of updates."""
    b1: float = bounded(0.9, least=0, below=1)
    """The decay of the mean of gradients (Adam, Lion)."""
    b2: float = bounded(0.95, least=0, below=1)
    """The decay of the mean of their squares (Adam), or of the mean (Lion)."""
    momentum: float = bounded(0.9, least=0, below=1)
    """Of `momentum` and `muon`."""
    epsilon: float = 1e-8
    """What Adam adds to the root of the mean square."""
    weight_decay: float = bounded(0.0, least=0)
    """Times the rate and a weight, taken off it at each step (decoupled, as in AdamW)."""
    no_decay: tuple[str, ...] = ("*norm*", "*bias*")
    """Paths of weights that do not decay."""
    clip: float = bounded(1.0, least=0)
    """Gradient clipping: the largest norm of all gradients together. 0 for none."""
    parameter_scale: bool = False
    """Adafactor: whether an update is as large as what it updates (Shazeer and Stern 2018)."""
    block_size: int = bounded(64, least=16)
    """How many numbers of an 8-bit moment share a scale at most, a power of two (`adamw8bit`)."""
    by_adam: tuple[str, ...] = ("*norm*", "*bias*", "*table*", "*talking*", "*.gate")
    """Paths of matrices that Adam updates where Muon does the others: embeddings (`table`), routers, what is no map."""
    adam_rate: float = bounded(1.0, least=0)
    """Muon: the rate of what Adam updates, as a multiple of the schedule's."""
    keep_float32: tuple[str, ...] = ("*norm*", "*bias*")
    """Paths of weights whose moments stay float32 there."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Schedule:
    """The learning-rate schedule: a warmup, then `kind`."""

    kind: str = one_of("constant", "linear", "cosine", "rsqrt", "wsd", default="cosine")
    """After the warmup; `rsqrt` falls with the root of the step, `wsd` stays until a cooldown."""
    rate: float = 1e-3
    """The highest learning rate."""
    warmup: int = bounded(0, least=0)
    """Over how many first steps the rate rises in a line."""
    end: float = bounded(0.1, least=0)
    """The share of `rate` that is left at the end of a cosine, a line or a WSD."""
    cooldown: int = bounded(0, least=0)
    """Over how many last steps an rsqrt goes down to 0 in a line, and WSD (warmup, stable, decay) to `end`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Evaluation: when, and with what."""

    every: int = bounded(200, least=0)
    """Every how many steps; 0 for never."""
    batches: int | None = None
    """At most so many; all by default."""
    metrics: tuple[str, ...] = one_of("bleu", "chrf", default=())
    """Beside the perplexity: `bleu`, `chrf`."""
    beams: int = 5
    """Beam search: how many translations of a text are followed at once."""
    alpha: float = bounded(0.6, least=-100)
    """The length penalty: how much longer translations are favoured; a negative one favours short ones."""
    repetition_penalty: float = 1.0
    """Divides the chance of tokens that a translation has; 1 is none."""
    no_repeat_ngram: int | None = None
    """Of how many tokens no sequence comes twice in a translation."""
    penalty: str = one_of("gnmt", "length")
    """Of what `alpha` is the power: (5 + length) / 6 as in GNMT, or the length itself."""
    bleu_tokenize: str = one_of(*"13a none intl char zh ja-mecab ko-mecab spm flores101 flores200".split())
    """How sacreBLEU parts a text into words; `none` for a text whose words are parted already."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """Checkpoints: when the state is saved, and what is kept."""

    every: int = bounded(200, least=0)
    """Every how many steps; 0 for after the last alone."""
    keep: int = 3
    """How many of the last are kept."""
    best: bool = True
    """Whether the best by evaluation is kept too."""
    last: bool = True
    """Whether the state after the last step is saved too, though it is not due; a run that is stopped always saves."""
    path: str | None = None
    """Where they lie, if not in the run's folder: `s3://bucket/folder` or `gs://bucket/folder`, of this run alone."""
    stop_if_full: bool = False
    """Whether training stops where a checkpoint cannot be written; otherwise it says so and goes on."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Tracking:
    """Where metrics are sent, beside the run's own files."""

    wandb: bool = False
    """Whether to Weights & Biases."""
    mlflow: str | None = None
    """To the MLflow at this address: `http://localhost:5000`, or `sqlite:///mlflow.db`."""
    project: str = "weft"
    """The project, or experiment, they are sent to."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lora:
    """LoRA: two low-rank weights beside each frozen one; rank 0 for none."""

    rank: int = bounded(0, least=0)
    """Of the two weights; 0 for none."""
    where: tuple[str, ...] = ("*.attention.q", "*.attention.v")
    """Paths of the weights that get them."""
    alpha: float | None = None
    """What they add counts `alpha / rank` times; by default twice."""


FREE = {"mesh", "layout", "name", "train.log_every", "train.peak_flops", "train.bad_steps", "train.watchdog_minutes"}
FREE |= {"train.compilation_cache"}
FREE_TABLES = {"eval", "checkpoint", "metrics"}
"""What a run may go on with another value of: nothing in it changes what is learned."""

TABLES: dict[str, type] = {
    "train": Train,
    "optimizer": Optimizer,
    "schedule": Schedule,
    "eval": Evaluation,
    "checkpoint": Checkpoint,
    "lora": Lora,
    "metrics": Tracking,
}
OPEN_TABLES: dict[str, type] = {"data": SourceTable, "tokenizer": TokenizerTable}
"""Tables of which the keys that are said are kept as they are, for `data.open_source` and `data.open_tokenizer`."""
