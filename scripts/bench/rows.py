"""What is done to a corpus and measured: the rows of the table, each contender in every round.

Knows no cache. What the plain compiler does again in the same way whatever the edit was (all of it) is measured once a
round: as the row `cold`. After each row one object is compared with that of a clean compile: a cache that is fast
because it is stale is told so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

from common import Cost, Report, cpus, run, temporary_folder, walls
from contenders import MADE, Contender, Plain, Shims, Targets
from corpora import Corpus
from turns import freezers, in_turns

from tests.support.objects import Names, described, differences

OURS = ("buildd run", "buildd build", "buildd watch")


@dataclass(frozen=True, slots=True)
class Goal:
    """The most that a ratio may be.

    Args:
        peer: beside whom.
        cpu: of CPU seconds, not of wall time.
        who: which of ours.
        corpora: where it counts; empty for all.
    """

    most: float
    peer: str = "plain"
    cpu: bool = False
    who: str = "buildd run"
    corpora: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table.

    Args:
        prepare: what happens before a build, without being measured.
        as_cold: plain compiles everything again.
        hits: nothing may be compiled by us.
    """

    name: str
    about: str
    prepare: Callable[[Contender], None]
    goals: tuple[Goal, ...] = ()
    as_cold: bool = False
    hits: bool = False


def _edited(edit: Callable[[Corpus], None]) -> Callable[[Contender], None]:
    return lambda contender: edit(contender.corpus)


def _cold(contender: Contender) -> None:
    contender.forget()
    contender.configure()


_PEERS = ("ccache", "sccache")
_SAVING = ("small", "cutlass", "heavy", "hip")
"""Corpora whose texts do not change with the list of architectures."""
_HALF = (Goal(0.5, "ccache"), Goal(0.25, "ccache", who="buildd build"))
ROWS: tuple[Row, ...] = (
    Row("cold", "empty cache", _cold, (Goal(1.02), Goal(1.03, cpu=True))),
    Row("rebuild", "outputs deleted, all hits", Contender.clean, _HALF, as_cold=True, hits=True),
    Row("touched", "sources touched, all hits", _edited(Corpus.touch_sources), _HALF, as_cold=True, hits=True),
    Row(
        "header-touched",
        "a shared header touched, all hits",
        _edited(Corpus.touch),
        (Goal(1.0, "ccache"), Goal(1.0, "ccache", who="buildd build")),
        as_cold=True,
        hits=True,
    ),
    Row(
        "comment",
        "a comment line more in a shared header",
        _edited(Corpus.comment),
        (
            Goal(0.02, corpora=("small", "cutlass", "cpp")),
            Goal(0.30),
            *(Goal(0.30, peer, who=who) for who in ("buildd run", "buildd watch") for peer in _PEERS),
        ),
        as_cold=True,
    ),
    Row(
        "comment-text",
        "other words in a comment of a shared header, all hits",
        _edited(Corpus.comment_text),
        (Goal(0.02), *(Goal(1.0, peer, who=who) for who in ("buildd run", "buildd build") for peer in _PEERS)),
        as_cold=True,
        hits=True,
    ),
    Row("host", "host code in a shared header", _edited(Corpus.host), (Goal(0.70),), as_cold=True),
    Row("host-one", "host code in one source", _edited(Corpus.host_one), (Goal(0.65),)),
    Row("one", "a kernel in one source", _edited(Corpus.change_one), (Goal(0.70, corpora=("cutlass",)),)),
    Row(
        "arch",
        "one more architecture",
        lambda contender: contender.configure(added=True),
        (Goal(0.50, corpora=_SAVING), Goal(1.02, corpora=("listed",)), Goal(1.02, cpu=True, corpora=("listed",))),
    ),
)
NAMES = tuple(row.name for row in ROWS)


class Judge(Contender):
    """Says what the first source of a corpus has to come to, by a plain compile of it alone."""

    name = "judge"
    _NAMES = Names(("host_of_shared", "host_of_unit", "changed"))

    def right(self) -> None:
        unit = self.corpus.units[0]
        (self.corpus.folder / MADE).mkdir(exist_ok=True)
        run([self.ninja, self.corpus.object(MADE, unit)], cwd=self.corpus.folder, environment=self.environ)

    def stale(self, contender: Contender) -> list[str]:
        """In what a contender's object of it is another one."""
        ours, theirs = (described(each.objects()[0], str(self.cuobjdump), self._NAMES) for each in (contender, self))
        return differences(ours, theirs)

    @property
    def cuobjdump(self) -> Path | str:
        found = self.corpus.compiler.with_name("cuobjdump")
        return found if found.exists() else ""


def compete(
    report: Report,
    corpus: Callable[[Path], Corpus],
    kinds: Sequence[type[Contender]],
    *,
    width: int,
    rows: Sequence[str],
    rounds: int,
    turns: bool = False,
) -> None:
    """All rows of a corpus, each contender with its own copy of it.

    Args:
        corpus: makes one in a folder.
        kinds: the contenders.
        width: of ninja.
        turns: first builds of plain ninja and through shims are made at once, each while the other one is frozen.
    """
    with temporary_folder() as folder:
        contenders: list[Contender] = []
        try:
            for number, kind in enumerate((Judge, *kinds)):
                place = folder / str(number)
                place.mkdir()
                made = corpus(place / "project")
                if made.targets or not issubclass(kind, Targets):
                    contenders.append(kind(place, made, width))
            judge, *competing = contenders
            assert isinstance(judge, Judge)
            measure(report, judge.corpus.name, competing, judge, rows, rounds, turns=turns)
        finally:
            for contender in contenders:
                if left := contender.end():
                    report.fail(f"{contender.name} left behind: {left}")


def measure(
    report: Report,
    corpus: str,
    contenders: Sequence[Contender],
    judge: Judge,
    rows: Sequence[str],
    rounds: int,
    *,
    turns: bool = False,
) -> None:
    """All rows of a corpus, `rounds` times; lines of the report, and a table of medians."""
    costs: dict[tuple[str, str], list[Cost]] = {}
    stale: set[tuple[str, str]] = set()
    for number in range(rounds):
        for row in ROWS:
            # Every round begins with nothing, whatever is asked for: the other rows stand on it.
            if row.name not in rows and row.name != "cold":
                continue
            if row.name == "arch" and not any(unit.added for unit in judge.corpus.units):
                continue
            row.prepare(judge)
            judge.right()
            built = _in_turns(contenders, row) if turns and row.name == "cold" else {}
            for contender in contenders if number % 2 == 0 else tuple(reversed(contenders)):
                if contender.name == "plain" and row.as_cold:
                    continue
                if contender.name not in built:
                    row.prepare(contender)
                before = contender.missed()
                cost = built.get(contender.name) or contender.build()
                after = contender.missed()
                missing = [path.name for path in contender.objects() if not path.exists()]
                if missing:
                    report.fail(f"{corpus}, {row.name}, {contender.name}: no {', '.join(missing)}")
                elif contender.name != "plain" and (parts := judge.stale(contender)):
                    stale.add((row.name, contender.name))
                    print(f"  {corpus} {row.name} {contender.name}: stale: {', '.join(parts)}")
                    if contender.name in OURS:
                        report.fail(f"{corpus}, {row.name}, {contender.name}: stale: {', '.join(parts)}")
                if row.hits and after != before:
                    report.fail(f"{corpus}, {row.name}, {contender.name}: {after - before} were no hits")
                costs.setdefault((row.name, contender.name), []).append(cost)
                print(f"  {corpus} {row.name} {contender.name} {number + 1}: {cost.wall_s:.2f} s", flush=True)
    tell(report, corpus, [contender.name for contender in contenders], rows, costs, stale)


def _in_turns(contenders: Sequence[Contender], row: Row) -> dict[str, Cost]:
    """What a row costs two contenders that have to meet the same machine: they build in turns."""
    both = [contender for contender in contenders if isinstance(contender, Plain | Shims)]
    for contender in both:
        row.prepare(contender)
    with freezers([contender.name for contender in both]) as held:
        for contender in both:
            held[contender.name].take(contender.helpers())
        costs = in_turns({each.name: partial(each.build_within, held[each.name].around) for each in both}, held)
        for freezer in held.values():
            freezer.release()
    return costs


def tell(
    report: Report,
    corpus: str,
    names: Sequence[str],
    rows: Sequence[str],
    costs: dict[tuple[str, str], list[Cost]],
    stale: set[tuple[str, str]],
) -> None:
    """Lines of the report for these rows, and a table of medians."""
    report.figures[f"{corpus}, costs"] = [
        [row, name, [[cost.wall_s, cost.cpu_s] for cost in found]] for (row, name), found in costs.items()
    ]
    report.figures[f"{corpus}, stale"] = sorted(map(list, stale))
    for row in ROWS:
        if (row.name, "plain") not in costs and row.as_cold and ("cold", "plain") in costs:
            costs[row.name, "plain"] = costs["cold", "plain"]
    chosen = [row for row in ROWS if row.name in rows]
    for row in chosen:
        for ours in names:
            for peer in names:
                if ours in OURS and peer not in OURS:
                    _compare(report, corpus, row, ours, peer, costs)
    _table(corpus, chosen, names, costs, stale)


def _compare(
    report: Report, corpus: str, row: Row, ours: str, peer: str, costs: dict[tuple[str, str], list[Cost]]
) -> None:
    mine, theirs = costs.get((row.name, ours)), costs.get((row.name, peer))
    if not mine or not theirs:
        return
    goals = [g for g in row.goals if (g.who, g.peer) == (ours, peer) and (not g.corpora or corpus in g.corpora)]
    for cpu in (False, True):
        most = next((goal.most for goal in goals if goal.cpu is cpu), None)
        if cpu and most is None and row.name != "cold":
            continue
        values = cpus if cpu else walls
        what = f"{corpus}, {row.name}, {ours}: {'CPU' if cpu else 'wall'}"
        report.ratio(what, values(mine), values(theirs), peer, most=most)


def _table(
    corpus: str,
    rows: Sequence[Row],
    names: Sequence[str],
    costs: dict[tuple[str, str], list[Cost]],
    stale: set[tuple[str, str]],
) -> None:
    """Medians in seconds, and beside them the ratio to plain."""
    print(f"\n{corpus:<16}" + "".join(f"{name:>27}" for name in names))
    for row in rows:
        line = f"{row.name:<16}"
        plain = costs.get((row.name, "plain"))
        for name in names:
            found = costs.get((row.name, name))
            if not found:
                line += f"{'-':>27}"
                continue
            middle = median(walls(found))
            ratio = f" {middle / median(walls(plain)):6.3f}x" if plain and name != "plain" else ""
            wrong = " STALE" if (row.name, name) in stale else ""
            line += f"{f'{middle:.2f} s{ratio}{wrong}':>27}"
        print(f"{line}  {row.about}")
    print(flush=True)
