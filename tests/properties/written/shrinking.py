"""A finding made smaller: fewer statements, fewer rules, bodies whose steps give what they were given."""

import re
import warnings
from dataclasses import replace

import jax

import weft as wf
from tests.properties.written import judging
from tests.properties.written.drawing import Statement
from tests.properties.written.program import Written, weft_run

MOST_TRIES = 20


def under_layout(program: Written, here: judging.Answer, mesh: str, layout: str) -> list[tuple[str, str]]:
    """On a layout against no mesh: what differs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", wf.WeftWarning)
        result = wf.spmd(weft_run(program), mesh=mesh, layout=layout)(program.inputs())
    return judging.differences(program, judging.answer(program, result), here)


def verdict(program: Written, mesh: str, layout: str) -> str:
    """What becomes of a program, in a word or two; nothing if it is right."""
    try:
        here, plainly = judging.on_one_processor(program)
    except Exception as error:
        return "" if layout else f"{type(error).__name__} alone"
    if judging.differences(program, here, plainly):
        return "" if layout or judging.is_too_near(program, plainly) else "wrong alone"
    if not layout:
        return ""
    try:
        return "wrong" if under_layout(program, here, mesh, layout) else ""
    except wf.WeftError as error:
        return error.fact[:12]
    except Exception as error:
        return type(error).__name__ + str(error)[:12]


def shrunk(program: Written, mesh: str, layout: str) -> tuple[Written, str, str]:
    """A smaller program and layout of which the same becomes."""
    wanted, tries = verdict(program, mesh, layout), 0
    if not wanted:
        return program, mesh, layout

    def still(candidate: Written, rules: str) -> bool:
        nonlocal tries
        tries += 1
        return tries <= MOST_TRIES and verdict(candidate, mesh, rules) == wanted

    for output in program.outputs:
        part = program.leading_to(output)
        if len(part.statements) < len(program.statements) and still(part, layout):
            program = part
            break
    for rule in layout.split(",") if layout else []:
        rest = ",".join(r for r in layout.split(",") if r != rule)
        if rest and still(program, rest):
            layout = rest
    at = 0
    while tries < MOST_TRIES and (found := _simpler(program, at)) is not None:
        at, candidate = found
        if still(candidate, layout):
            program, at = candidate, 0
    return program, mesh, layout


def _simpler(program: Written, start: int) -> tuple[int, Written] | None:
    """The next program that lacks a statement, or in which a step gives what it was given; and its number."""
    number = 0
    for statement in program.statements:
        rest = [s for s in program.statements if s is not statement]
        if rest and not any(re.search(rf"\b{name}\b", s.text) for s in rest for name in statement.makes):
            number += 1
            if number > start:
                return number, _with(program, rest)
    for i, statement in enumerate(program.statements):
        lines = statement.text.split("\n")
        for j, line in enumerate(lines):
            found = re.match(r"( *)(v\d+) = (.+)$", line)
            for given in dict.fromkeys(re.findall(r"\b[vxz]\d+\b", found[3])) if found else ():
                if found[3] == given:
                    continue
                number += 1
                if number > start:
                    text = _without_unused("\n".join([*lines[:j], f"{found[1]}{found[2]} = {given}", *lines[j + 1 :]]))
                    new = Statement(text, statement.makes, statement.word)
                    return number, _with(program, [*program.statements[:i], new, *program.statements[i + 1 :]])
    return None


def _with(program: Written, statements: list[Statement]) -> Written:
    """The program of these statements, with the arguments they use."""
    used = set(re.findall(r"\bx\d+\b", "\n".join(s.text for s in statements)))
    leaves = [leaf for leaf in program.leaves if leaf.name in used] or program.leaves[:1]
    smaller = replace(program, statements=statements, leaves=leaves)
    try:
        made = jax.eval_shape(lambda inputs: smaller.run(inputs, wf), smaller.inputs())
    except Exception:
        return smaller  # which will fail in its own way
    return replace(smaller, made=dict(zip(smaller.outputs, made, strict=True)))


def _without_unused(text: str) -> str:
    """Without the functions that nothing calls."""
    while True:
        lines = text.split("\n")
        for i, line in enumerate(lines):
            found = re.match(r"( *)def (f\d+)\(", line)
            if found and len(re.findall(rf"\b{found[2]}\b", text)) == 1:
                end = i + 1
                while end < len(lines) and lines[end].startswith(found[1] + "    "):
                    end += 1
                text = "\n".join([*lines[:i], *lines[end:]])
                break
        else:
            return text
