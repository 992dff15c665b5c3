"""What a search tells beside its best plans: classes of layouts, variants."""

from collections.abc import Mapping, Sequence

from .best_first import BestFirst
from .candidates import Candidates, Place
from .ranking import LayoutClass, Ranked
from .variants import Variant

MOST_CLASSES = 12
"""Of how many classes the best is traced to say why it lost, those of one parallelism first."""
MOST_FRONT = 12
"""How many layouts are traced for the front of time against memory, evenly spread over the front of the bounds."""


def classes_of(candidates: Candidates, tracing: BestFirst, winner: Ranked) -> list[LayoutClass]:
    """The best of each class that was traced, the fastest that fits first."""
    best: dict[tuple[str, ...], Ranked] = {}
    for place, ranked in tracing.ranked.items():
        names = candidates.class_of(place)
        if names not in best or (not ranked.fits, ranked.seconds) < (not best[names].fits, best[names].seconds):
            best[names] = ranked
    found = [
        LayoutClass(names, candidates.classes[names].count, ranked, ranked.seconds / winner.seconds)
        for names, ranked in best.items()
    ]
    return sorted(found, key=lambda each: (not each.best.fits, each.times))


def told_variants(
    variants: Sequence[Variant], opened: Mapping[int, Sequence[int]], tracing: BestFirst, plans: Sequence[Ranked]
) -> list[str]:
    """What became of each variant, a line each; none where there is only one.

    `opened` has the programs of those that were taken up whole.
    """
    lines = []
    for variant in variants if len(variants) > 1 else ():
        numbers = opened.get(variant.number)
        if numbers is None and tracing.stopped:
            why = "seen in part" if any(plan.choices == variant.values for plan in plans) else "NOT SEEN"
        elif numbers is None:
            why = "ruled out: faster only under layouts that are slower than the best, or fit without it"
        elif not numbers:
            why = "refused"
        else:
            fitting = [r.seconds for p, r in tracing.ranked.items() if p[0] in numbers and r.fits]
            why = f"{min(fitting):.4g} s" if fitting else "nothing that could be the best fits"
        lines.append(f"{variant.text}: {why}")
    return lines


def places_to_show(candidates: Candidates) -> list[Place]:
    """Layouts traced to be shown: the front of the bounds, the best of classes."""
    front = candidates.front()
    step = max(len(front) / MOST_FRONT, 1.0)
    places = [candidates.place(front[int(i * step)]) for i in range(min(len(front), MOST_FRONT))]
    classes = sorted(candidates.classes.items(), key=lambda item: (len(item[0]) > 1, item[1].seconds))
    for _, best in classes[:MOST_CLASSES]:
        place = best.place if best.place is not None else best.smallest
        if place is not None:
            places.append(place)
    return list(dict.fromkeys(places))
