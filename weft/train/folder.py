"""The folder of a run that is about to train: is it the run that was begun there?

Imports the data, the configuration and the checkpoints. As long as nothing was learned, that is while there is no
checkpoint, everything may change; afterwards what would be learned otherwise stops the run unless that is wanted.
What is on disk already is not written again, so that a full disk does not keep a run from going on.
"""

import contextlib
import errno
import functools
import json
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax

from .. import data, interop
from ..data.atomic import remove_partial, write_atomic
from ..data.tokenizers import NAMES
from ..errors import WeftError
from ..small_files import Reader
from ..spmd.together import wait_for_all
from .checkpoints import CheckpointError, Checkpoints, checkpoints_of
from .config import CONFIG, ConfigError, RunConfig, parse
from .interface import Outcome
from .keys import Where, changes_of
from .own.code import OwnCall
from .own.copies import code_changes, keep_code
from .own.model import OwnModel
from .runs import CACHE, ORIGIN, Lock, RunError
from .tables import Checkpoint

DATA, OUTCOME = "data.json", "run.json"
_MOST_NAMED = 3


class Folder:
    """The folder of a run at one start, and what it began with, which `may_change`."""

    def __init__(
        self, path: Path, checkpoints: Checkpoints, config: RunConfig, *, may_change: bool, say: Callable[[str], None]
    ):
        self.path, self.checkpoints, self.config, self.say = path, checkpoints, config, say
        self.may_change = may_change

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """Opens it, new or left by the same run; meanwhile nobody else trains in it."""
        with contextlib.ExitStack() as held:
            if jax.process_index() == 0:
                with self.reporting_errors():
                    self.path.mkdir(parents=True, exist_ok=True)
                    held.enter_context(Lock(self.path))
                    for place in (self.path, self.path / CACHE):
                        remove_partial(place)
                    self.check_config()
            wait_for_all("folder")
            yield

    @contextlib.contextmanager
    def reporting_errors(self) -> Iterator[None]:
        """Says what cannot be written in it."""
        try:
            yield
        except OSError as error:
            is_file = isinstance(error, FileExistsError | NotADirectoryError)
            why = "there is a file in its place" if is_file else error.strerror or error
            is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            fix = f"{'make room, or ' if is_full else ''}name another place, where you may write, with --run"
            raise RunError(f"{self.path} cannot be written: {why}", fix=fix) from error

    def write(self, tokenizer: data.Tokenizer | None, template: data.ChatTemplate | None = None) -> None:
        """Writes what the run goes on with, once its state is there."""
        _write(self.path / CONFIG, self.config.to_toml().encode())
        _write(self.path / DATA, json.dumps(self._data_now).encode())
        self._tell_what_ended_it()
        (self.path / OUTCOME).unlink(missing_ok=True)
        self._keep_origin()
        keep_code(self.path, self._calls)
        if tokenizer is not None and ((before := self._tokenizer_before) is None or before.key != tokenizer.key):
            for name in NAMES:
                (self.path / name).unlink(missing_ok=True)
            tokenizer.save(self.path)
        if template is not None:
            template.save(self.path)

    def write_outcome(self, outcome: Outcome) -> None:
        """Writes how the run ended; by the first process."""
        if jax.process_index() == 0:
            path = self.path / OUTCOME
            try:
                write_atomic(path, json.dumps(asdict(outcome)).encode())
            except OSError as error:
                self.say(f"{path} CANNOT BE WRITTEN: {error.strerror or error}")

    def _tell_what_ended_it(self) -> None:
        """Says why the start before this one could not go on."""
        with contextlib.suppress(RunError):
            before = Reader(RunError).json(self.path / OUTCOME, {"step": int, "steps": int, "reason": str})
            if before["reason"] and before["reason"] not in signal.Signals.__members__:
                lost = "" if self.checkpoints.steps else "; nothing was saved, and it begins anew"
                self.say(f"IT HAD TO STOP at step {before['step']} of {before['steps']}: {before['reason']}{lost}")

    def _keep_origin(self) -> None:
        """Keeps what is beside the weights it begins with, for the export."""
        if self.config.init_from is not None and not (self.path / ORIGIN).exists():
            start = Path(self.config.init_from).expanduser()
            start = start / ORIGIN if (start / CONFIG).exists() else start
            if start.is_dir():
                interop.carry(start, self.path / ORIGIN)

    def check_config(self) -> None:
        """Names the keys where the run was begun with another configuration."""
        self._check_place()
        before, now = self._config_before(), self.config.to_dict()
        if before is not None and (changes := code_changes(self.path, self._calls)):
            self._refuse_unless_wanted(f"{self.path} was begun with other code: {changes}")
            self.say(f"goes on with other code: {changes}")
        if before is not None:
            changed, free = changes_of(_fill_defaults(before), now)
            if changed:
                self._refuse_unless_wanted(f"{self.path} was begun with another configuration: {'; '.join(changed)}")
            if changed or free:
                self.say(f"goes on with another configuration: {'; '.join(changed + free)}")
            if any(line.startswith(("data.held_out:", "data.evaluation:")) for line in changed):
                self.say("WHAT IS HELD OUT NOW may be what it learned from before: it is judged by what it has seen")

    def _check_place(self) -> None:
        """Raises where checkpoints lie elsewhere than is said: it would begin anew."""
        with contextlib.suppress(RunError):
            table = Reader(RunError).toml(self.path / CONFIG)[0].get("checkpoint", {})
            before = Checkpoint(path=table.get("path"))
            if before.path == self.config.checkpoint.path or self.checkpoints.steps:
                return
            there = checkpoints_of(self.path, before)
            if there.steps:
                was = f'say `checkpoint.path = "{before.path}"`' if before.path else "leave out `checkpoint.path`"
                now = self.checkpoints.store
                raise ConfigError(
                    f"the checkpoints of {self.path} lie in {there.store}, and none in {now}",
                    fix=f'{was}; or begin in another folder (--run) with these weights: `init_from = "{self.path}"`',
                )

    def _config_before(self) -> Mapping[str, Any] | None:
        """What it was begun with, if something was learned; by a checkpoint at need."""
        steps, path = self.checkpoints.steps, self.path / CONFIG
        if not steps:
            self._check_ours(path)
            return None
        try:
            return Reader(RunError).toml(path)[0]
        except RunError as error:
            self.say(f"{error.fact}; what the last checkpoint says is taken for it")
        for step in reversed(steps):
            with contextlib.suppress(CheckpointError, KeyError):
                return self.checkpoints.metadata(step)["config"]
        return None

    def _check_ours(self, path: Path) -> None:
        """Raises where a file that no run wrote would be overwritten."""
        if not path.exists() or not path.stat().st_size:
            return
        with contextlib.suppress(RunError):
            if Reader(RunError).toml(path)[0].keys() >= {"model", "train"}:
                return
        raise RunError(
            f"{path} is not what a run writes, and would be overwritten",
            fix="name another folder with --run, or move that file away",
        )

    def check_data(self, tokenizer: data.Tokenizer | None) -> None:
        """Names what differs from the beginning: the tokenizer, or files of the data."""
        learned = {print_ for _, print_ in self._data_now["learned"]}
        both = [name for name, print_ in self._data_now["evaluation"] if print_ in learned]
        if both and not _are_ranges_apart(self.config.data):
            self.say(f"IT IS JUDGED BY WHAT IT LEARNS FROM: {', '.join(both)}. fix: name other files in `evaluation`")
        if not self.checkpoints.steps:
            self._compare_with_start(tokenizer)
            return
        old = None if tokenizer is None else self._tokenizer_before
        if old is not None and tokenizer is not None and old.key != tokenizer.key:
            self._refuse_unless_wanted(f"{self.path} was begun with another tokenizer, of {old.vocab} ids")
            self.say(f"goes on with another tokenizer than before, of {tokenizer.vocab} ids")
        if (before := self._data_before()) is not None:
            now = dict(self._data_now)
            if self.config.data.get("grows"):  # what came since is for its next epoch
                known = {name for name, _ in before["learned"]}
                now["learned"] = [each for each in now["learned"] if each[0] in known]
            if changes := _differences(before["learned"], now["learned"]):
                self._refuse_unless_wanted(f"{self.path} was begun with other data: {changes}")
                self.say(f"goes on with other data: {changes}")
            if changes := _differences(before["evaluation"], now["evaluation"]):
                self.say(f"is judged by other data than before: {changes}")

    def _compare_with_start(self, tokenizer: data.Tokenizer | None) -> None:
        """Says that the first weights were learned with another tokenizer."""
        start, named = self.config.init_from, self.config.tokenizer
        if start is None or tokenizer is None:
            return
        with contextlib.suppress(data.DataError):
            theirs = data.load_tokenizer(start, end=named.get("end"), pad=named.get("pad"))
            if theirs.key != tokenizer.key:
                say = f'it lies there: `tokenizer = "{start}"`'
                self.say(f"THE WEIGHTS in {start} were learned with ANOTHER TOKENIZER, of {theirs.vocab} ids; {say}")

    @property
    def _calls(self) -> list[OwnCall]:
        """The code of one's own that the run calls."""
        model, own_data = self.config.model, self.config.own_data
        return [*([model.call] if isinstance(model, OwnModel) else []), *([own_data.call] if own_data else [])]

    @functools.cached_property
    def _data_now(self) -> dict[str, Any]:
        if self.config.own_data is not None:
            return {"learned": [], "evaluation": []}
        source = data.open_source(self.config.data)
        cache = self.path / CACHE
        judged = [each for apart in source.apart for each in apart.prints(cache)]
        return {"learned": source.prints(cache), "evaluation": judged}

    def _data_before(self) -> dict[str, Any] | None:
        path = self.path / DATA
        if not path.exists() and self.checkpoints.steps[-1] == 0:  # made of weights: it has learned from no data
            return None
        try:
            return _read_data(path)
        except RunError as error:
            self.say(f"{error.fact}; whether the data are those it was begun with is not known")
            return None

    @functools.cached_property
    def _tokenizer_before(self) -> data.Tokenizer | None:
        named = self.config.tokenizer
        with contextlib.suppress(data.DataError):
            return data.load_tokenizer(self.path, end=named.get("end"), pad=named.get("pad"))
        return None

    def _refuse_unless_wanted(self, fact: str) -> None:
        if not self.may_change:
            fix = "name another folder with --run, or say --changed to go on so"
            raise ConfigError(fact, fix=fix, at=str(self.path))


def learned_files(run: Path, source: data.Source) -> list[str]:
    """The files of a source that a run has learned from, by what is in them."""
    with contextlib.suppress(RunError):
        learned = {print_ for _, print_ in _read_data(run / DATA)["learned"]}
        return [name for name, print_ in source.prints(run / CACHE) if print_ in learned]
    return []


def _are_ranges_apart(table: Mapping[str, Any]) -> bool:
    """Whether what is learned and what is held apart are ranges with no common byte."""
    apart = table.get("evaluation")
    learned, judged = table.get("range"), apart.get("range") if isinstance(apart, Mapping) else None
    return bool(learned and judged and (judged[0] >= learned[1] or judged[1] <= learned[0]))


def _read_data(path: Path) -> dict[str, Any]:
    """The names and prints of the files that a run was begun with."""
    files: dict[str, Any] = Reader(RunError).json(path, {"learned": [[str]], "evaluation": [[str]]})
    for key in ("learned", "evaluation"):
        if odd := [file for file in files[key] if len(file) != 2]:
            fact = f"`{key}` in {path} holds {odd[0]!r:.60}, and a name and a print are due"
            raise RunError(fact, fix="fetch or write the file again")
    return files


def _write(path: Path, content: bytes) -> None:
    """Writes a file unless it is there as it should be."""
    if not path.is_file() or path.read_bytes() != content:
        write_atomic(path, content)


def _differences(before: Sequence[Any], now: Sequence[Any]) -> str:
    """In which files two lists of names and prints differ; empty where they do not.

    >>> _differences([["a.txt", "1"], ["b.txt", "2"]], [["a.txt", "1"], ["b.txt", "3"], ["c.txt", "4"]])
    'b.txt is another, c.txt is new'
    """
    old, new = ({name: list(rest) for name, *rest in files} for files in (before, now))
    changes = [f"{name} is another" for name in new if name in old and old[name] != new[name]]
    changes += [f"{name} is new" for name in new if name not in old]
    changes += [f"{name} is gone" for name in old if name not in new]
    if not changes and list(map(list, before)) != list(map(list, now)):
        changes = ["the same files in another order"]
    more = f" and {len(changes) - _MOST_NAMED} more" if len(changes) > _MOST_NAMED else ""
    return ", ".join(changes[:_MOST_NAMED]) + more


def _fill_defaults(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """The values, and defaults of the keys that came with later versions.

    What calls code of the user's stays as it is: no code is run to compare.
    """
    own = {key: values[key] for key in ("model", "data") if "call" in (values.get(key) or {})}
    others = {"model": "tiny-lm"} | {key: value for key, value in values.items() if key not in own}
    try:
        return parse(others, Where(CONFIG, {})).to_dict() | own
    except WeftError:  # a key that is gone, or a value of another kind: compared as it stands
        return values
