"""Which instruction each kernel of a CUDA graph is.

XLA starts many kernels at once as a graph (a command buffer), and a profile says of them only which graph they are in.
Kernels that XLA made are called by their instructions; alike ones share a kernel, and run in the order of the program.
Those of libraries (products, attention, copies) lie between such, as their instructions do.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence

from .compiled import CompiledProgram, HloInstruction

_LIBRARY = "cudnn"
_BEFORE, _AFTER = "memset", "splitk"  # in the names of kernels that help the one after, or the one before


def name_launches(program: CompiledProgram, kernels: Sequence[str]) -> list[str]:
    """The instruction of each of a program's kernels, as they ran; empty if unknown."""
    named = _name_own(program, kernels)
    found = list(named)
    place = {name: (sequence, i) for sequence in program.order for i, name in enumerate(sequence)}
    at = 0
    while at < len(kernels):
        if named[at]:
            at += 1
            continue
        end = next((i for i in range(at, len(kernels)) if named[i]), len(kernels))
        before, after = (named[at - 1] if at else ""), (named[end] if end < len(kernels) else "")
        between = _between(program, place, before, after)
        found[at:end] = _name_others(kernels[at:end], between)
        at = end
    return found


def _name_own(program: CompiledProgram, kernels: Sequence[str]) -> list[str]:
    """The instructions of kernels that XLA made; empty for those of libraries."""
    group_of = {each.kernel_name: each.kernel for each in program.instructions.values()}
    groups = [group_of.get(kernel, "") for kernel in kernels]
    alike = _alike(program, Counter(groups))
    seen: Counter[str] = Counter()
    names = []
    for group in groups:
        members = alike.get(group, [])
        names.append(members[seen[group] % len(members)] if members else "")
        seen[group] += 1
    return names


def _alike(program: CompiledProgram, counts: Counter[str]) -> dict[str, list[str]]:
    """The instructions that the kernels of each group run for, in their order."""
    groups: dict[str, list[str]] = defaultdict(list)
    for name in (name for sequence in program.order for name in sequence):
        groups[program.instructions[name].kernel].append(name)
    place = {name: i for i, name in enumerate(name for sequence in program.order for name in sequence)}
    ran = {group: groups.pop(group) for group in counts if group in groups}
    runs = [counts[group] // len(members) for group, members in ran.items()]
    usual = max(set(runs), key=runs.count, default=0)
    for group, members in ran.items():
        # What no kernel is called after runs by that of another like it.
        like = [name for names in groups.values() for name in names if _are_like(program, name, members[0])]
        if like and counts[group] == usual * (len(members) + len(like)):
            ran[group] = sorted([*members, *like], key=place.__getitem__)
    return ran


def _are_like(program: CompiledProgram, name: str, other: str) -> bool:
    """Whether two instructions may run one kernel, as far as names and sizes tell."""
    one, two = program.instructions[name], program.instructions[other]
    return (one.base_name, one.opcode, one.work) == (two.base_name, two.opcode, two.work)


def _between(
    program: CompiledProgram, place: dict[str, tuple[tuple[str, ...], int]], before: str, after: str
) -> list[HloInstruction]:
    """The instructions without kernels of their own between two others."""
    sequence, begin = place.get(before) or (place[after][0] if after in place else (), -1)
    until, end = place.get(after, (sequence, len(sequence)))
    names = sequence[begin + 1 : end] if until is sequence and end > begin else (*sequence[begin + 1 :], *until[:end])
    return [each for each in map(program.instructions.__getitem__, names) if each.is_of_library]


def _name_others(kernels: Sequence[str], between: Sequence[HloInstruction]) -> list[str]:
    """The instructions of kernels of libraries, one after the other."""
    names: list[str] = []
    left, current, was_library = list(between), "", False
    for i, kernel in enumerate(kernels):
        if _BEFORE in kernel.lower() and i + 1 < len(kernels):
            names.append("")  # with the one after it
            continue
        is_library = _LIBRARY in kernel.lower()
        goes_on = _AFTER in kernel.lower() or (is_library and was_library)
        fit = next((each for each in left if (_LIBRARY in each.target) == is_library), None)
        if fit is not None and not (goes_on and current):
            current, was_library = fit.name, is_library
            left = left[left.index(fit) + 1 :]
        names += [current]
    for i in reversed(range(len(names) - 1)):
        names[i] = names[i] or names[i + 1]
    return names
