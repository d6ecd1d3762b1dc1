"""`loopnest.verify`: prove that a kernel computes its math, or show where it does not."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from loopnest import kir
from loopnest.base.errors import VerifyError, kind_of
from loopnest.base.gc_pause import paused
from loopnest.base.recursion import deep
from loopnest.kir.legal_program import made_twice, program_faults
from loopnest.kir.legal_tiles import tile_faults
from loopnest.kir.tiles import without_tiles
from loopnest.proofs.affine import NotAffine
from loopnest.proofs.barrier_necessity import necessity
from loopnest.proofs.collectives.collective_contract import is_declared
from loopnest.proofs.data_indices import Unbounded
from loopnest.proofs.early_ends import early_ends
from loopnest.proofs.empty_launches import empty_sizes, of_the_host
from loopnest.proofs.enumeration import EnumeratedFacts
from loopnest.proofs.live_points import LivePoints
from loopnest.proofs.obligations import (
    CollectiveMath,
    Work,
    collective_math_of,
    obligations,
    program_of,
    work_of,
)
from loopnest.proofs.point_arrays import Array, NoLaunch, TooMany, Undecidable, number
from loopnest.proofs.program_model import Model, equal_sizes
from loopnest.proofs.report import ALL_SIZES, Finding, Report
from loopnest.proofs.single_launches import order_faults, single_launches, together
from loopnest.proofs.size_choice import (
    crossed,
    filled,
    fulfils,
    never_launched,
    points_at,
    small_sizes,
    starts,
    telling_extents,
)
from loopnest.proofs.symbolic import NotProved, broken_contract, prove
from loopnest.proofs.template_matching import Mismatch
from loopnest.proofs.witness import Witness, among_tiles
from loopnest.scalar import dtypes
from loopnest.scalar.enums import Memory
from loopnest.scalar.expr import Buffer, Expr, Local, Symbol, loads
from loopnest.scalar.facts import Facts
from loopnest.scalar.simplify import Simplifier
from loopnest.tensor.computed_ranges import distinct_data
from loopnest.tensor.math_snapshot import MathSnapshot, MathTensor

_log = logging.getLogger("loopnest")

_ILLEGAL = (
    "outside of its loop", "before it is defined", "before it is stored",
    "is not the last statement of a loop that runs in order",
)  # fmt: skip
"""How the faults of a nest end that names or tests what has no value there, or ends no loop."""


@deep
def verify(k: Any, *, needed: bool | int = False, **sizes: int) -> Report:
    """Prove that the kernel `k` computes its math, with and without wide accesses.

    Args:
        k: a kernel, as `loopnest.lower` returns it.
        needed: whether to add a note on each barrier, wait and atomic store of `k`: of the kind
            "needed", with the two accesses that race without it, or "superfluous".
        **sizes: values of size symbols; those left out stay symbolic.

    Returns:
        A report: "proved" (for the sizes that its scope names), "refuted" with a witness, or
        "unknown".

    Raises:
        VerifyError: no kernel, one without math, an unknown size, sizes that break an assumption,
            or `needed` is no bool.

    >>> import loopnest as ln
    >>> with ln.Fusion("k") as f:
    ...     x = f.input("x", ("N",), ln.float32)
    ...     y = f.output(x * 2.0, "y")
    >>> print(ln.verify(ln.lower(f)))
    proved for all sizes

    Source: Verdoolaege, "isl: an integer set library for the polyhedral model", ICMS 2010.
    """
    program, math = program_of(k, "verify")
    if not isinstance(needed, bool):
        found = f"needed is {kind_of(needed)}"
        raise VerifyError(f"verify({program.name}, needed=…)", found, "pass True or False")
    if needed:
        report = verify(k, **sizes)
        if not report.ok:
            return report
        return replace(report, findings=(*report.findings, *necessity(program, math, sizes)))
    make = getattr(getattr(k, "_lowered", k), "scalar", None)
    if make is None:
        return verify_variant(k, **sizes)
    _check_sizes(program, sizes)
    lanes = make()
    scalar = verify_program(lanes.program, lanes.math(), sizes)
    if not _may_run(program, sizes):
        return scalar
    return _both(verify_variant(k, **sizes), scalar)


@deep
def verify_variant(k: Any, **sizes: int) -> Report:
    """Prove the kernel `k` as `verify` does, but for its variant without wide accesses.

    Raises:
        VerifyError: as `verify`.
    """
    program, math = program_of(k, "verify")
    _check_sizes(program, sizes)
    return verify_program(program, math, sizes)


def _may_run(program: kir.Program, sizes: Mapping[str, int]) -> bool:
    """Whether a variant can run at these sizes, as far as they are known."""
    known = {p.name for p in program.params if p.kind == "size"} <= set(sizes)
    return not known or fulfils(program, sizes)


def _both(first: Report, scalar: Report) -> Report:
    """Return one report on a kernel and its variant without wide accesses."""
    for status in ("refuted", "unknown"):
        for report in (first, scalar):
            if report.status == status:
                return report
    scope = first.scope
    if scalar.scope != scope:
        scope = f"{scope}; without wide accesses: {scalar.scope}"
    found = {f.message: f for f in (*first.findings, *scalar.findings)}
    return Report("proved", tuple(found.values()), scope)


def verify_program(
    program: kir.Program, math: MathSnapshot, sizes: Mapping[str, int] | None = None
) -> Report:
    """Prove that one program computes `math`; see `verify`."""
    given = dict(sizes or {})
    _check_sizes(program, given)
    if any(isinstance(node, kir.Launch) for node in program.body):
        return _verify_launches(program, math, given)
    wrong = [Finding("tile", "refuted", fault) for fault in tile_faults(program)]
    for node, _ in kir.walk(program.body):
        if isinstance(node, kir.Collective) and is_declared(node):
            text = f"the body of {node.name} does not define {node.results[0].name}"
            wrong.append(Finding("collective", "refuted", text))
    for fault in program_faults(program):
        # isl would take such a name for one more size, and prove what no compiler can build.
        if fault.endswith(_ILLEGAL):
            wrong.append(Finding("scope", "refuted", fault))
    if wrong:
        return Report("refuted", tuple(wrong))
    plain = without_tiles(program)
    if plain is not program:
        report = _verify_nest(plain, math, given)
        places = among_tiles(program)
        return replace(report, findings=tuple([f.moved(places) for f in report.findings]))
    return _verify_nest(program, math, given)


def _verify_nest(program: kir.Program, math: MathSnapshot, given: dict[str, int]) -> Report:
    """Prove that one program without tiles computes `math`, where no thread starts, too."""
    report = _verify_one(of_the_host(program, given), math, given)
    symbolic = report.ok and report.scope == (named(given) if given else ALL_SIZES)
    left: list[str] = []
    for sizes in empty_sizes(program, given) if symbolic else ():
        known = {**given, **sizes}
        other = _verify_one(of_the_host(program, known), math, known)
        if other.status == "refuted":
            return other
        if not other.ok:
            left.append(named(known))
    if not left:
        return report
    text = f"there is no proof for {'; '.join(left)}, where a launch has no thread"
    findings = (*report.findings, Finding("sizes", "note", text))
    return replace(report, findings=findings, scope=f"{report.scope} but {'; '.join(left)}")


def _verify_one(program: kir.Program, math: MathSnapshot, given: dict[str, int]) -> Report:
    """Prove that one program of one launch computes `math`."""
    twice = made_twice(program)
    if twice:
        # Proofs follow a buffer from where it was made.
        message = f"{twice[0].name} is made at several places of the nest"
        return Report("unknown", (Finding("scope", "unknown", message),))
    with paused():
        model = Model(program)
        faults = _unlike_the_math(model, math, given)
        if faults:
            return Report("refuted", tuple(faults))
        works, exchanges, problems = obligations(model, math)
    if problems:
        refuted = [f for f in problems if f.status == "refuted"]
        if not refuted:
            refuted = _other_values(model, math, given)
        return Report("refuted" if refuted else "unknown", tuple(refuted or problems))
    report = _decided(model, math, works, exchanges, given)
    early = early_ends(model, math, given) if report.ok else None
    if early is None:
        return report
    return Report("refuted" if early.status == "refuted" else "unknown", (early,), report.scope)


def _verify_launches(program: kir.Program, math: MathSnapshot, given: Mapping[str, int]) -> Report:
    """Prove that several launches compute `math`, launch by launch."""
    plain = Model(program.with_body(()))
    witness = Witness(plain, given, (1, 1, 1), (1, 1, 1))
    faults = [
        witness.plain("interface", text, name) for name, text in interface_faults(plain, math)
    ]
    if any(not isinstance(node, kir.Launch) for node in program.body):
        text = "a statement stands beside the launches, so that none of them runs it"
        faults.append(witness.plain("launch", text, ""))
    faults += [
        replace(witness.plain("flow", text, name), status="refuted" if wrong else "unknown")
        for wrong, name, text in order_faults(program, math)
    ]
    if faults:
        refuted = any(fault.status == "refuted" for fault in faults)
        return Report("refuted" if refuted else "unknown", tuple(faults))
    launches = single_launches(program, math)
    return together([verify_program(n.program, n.math, given) for n in launches], launches)


def _decided(
    model: Model,
    math: MathSnapshot,
    works: list[Work],
    exchanges: list[CollectiveMath],
    given: dict[str, int],
) -> Report:
    """Decide the facts of a program whose statements have the form of the math."""
    outside = list(_outside(model, works, given))
    wide = tuple([finding for finding in outside if finding.status == "refuted"])
    if wide:
        return Report("refuted", wide, named(wide[0].sizes))
    report = _shown(model, math, works, exchanges, given)
    if report.status == "refuted" or not outside:
        return report
    return Report("unknown", (*outside, *report.findings), report.scope)


def _shown(
    model: Model,
    math: MathSnapshot,
    works: list[Work],
    exchanges: list[CollectiveMath],
    given: dict[str, int],
) -> Report:
    """Decide what is left where all indices that are data lie inside."""
    hints: list[dict[str, int]] = []
    ranges = [*trusted_ranges(works), *_distinct(math), *_refused_factors(model.program)]
    try:
        with paused():
            notes = prove(model, math, works, exchanges, _valued(model.program, given))
    except (NotProved, NotAffine) as why:
        _log.debug("verify %s: no proof for all sizes: %s", model.program.name, why)
        if isinstance(why, NotProved) and why.sizes:
            hints.append(why.sizes)
        missing = _not_for_all(model, why)
    else:
        scope = named(given) if given else ALL_SIZES
        return Report("proved", (*notes, *ranges), scope)
    report = enumerated(model, math, works, exchanges, given, hints)
    if report.status == "proved":
        report = _with_contracts(report, model, exchanges, _valued(model.program, given))
    free = any(p.kind == "size" and p.name not in given for p in model.program.params)
    idle = any(f.kind == "launch" for f in report.findings)
    if report.status == "proved":
        report = replace(report, findings=(*report.findings, *ranges))
    if report.status == "refuted" or not free or idle:
        return report
    return replace(report, findings=(*report.findings, missing))


def _with_contracts(
    report: Report, model: Model, exchanges: Sequence[CollectiveMath], sizes: dict[str, int]
) -> Report:
    """Return a proof at sizes, unless a collective is wrong for the threads of others.

    A mask that is off by one matters for few numbers of threads, which small sizes may all miss.
    """
    try:
        problem = broken_contract(model, exchanges, sizes)
    except (NoLaunch, Undecidable):
        return report
    if problem is None:
        return report
    return Report("unknown", (Finding("collective", "unknown", problem),), report.scope)


def _valued(program: kir.Program, given: dict[str, int]) -> dict[str, int]:
    """Return the sizes that have one value: at every launch, as given, or equal to one given."""
    facts = Facts.of([test for _, test in program.conditions])
    values = {p.name: facts.fixed(Symbol(p.name)) for p in program.params if p.kind == "size"}
    fixed = {name: value for name, value in values.items() if value is not None}
    same = equal_sizes(program)
    stands = {name: str(same.get(name, name)) for name in values}
    known = {stands[name]: value for name, value in given.items()}
    equal = {name: known[stands[name]] for name in values if stands[name] in known}
    return {**fixed, **equal, **given}


def _refused_factors(program: kir.Program) -> list[Finding]:
    """Return a note on each factor of a split that is below 1 at some sizes."""
    algebra = Simplifier(Facts.of([test for _, test in program.conditions]))
    found = [f for f in program.split_factors if not isinstance(f, Symbol)]
    texts = [f"a launch is refused at sizes for which {f} is not 1 or more, since an axis is split "
             "by it" for f in found if (algebra.range_at_launch(f)[0] or 0) < 1]  # fmt: skip
    return [Finding("factor", "note", text) for text in texts]


def trusted_ranges(works: Sequence[Work]) -> list[Finding]:
    """Return a note on each range of data that a proof takes on trust."""
    named = {text: w.tensor.name for w in works for t in w.trusted for text in t.texts}
    return [Finding("range", "note", text, name) for text, name in named.items()]


def _distinct(math: MathSnapshot) -> list[Finding]:
    """Return a note on data that were declared to differ."""
    named = {source.name: reader.name for source, reader, _ in distinct_data(math)}
    text = "assuming that the places of {} differ, as declared by unique=True"
    return [Finding("unique", "note", text.format(i), name) for i, name in named.items()]


def _outside(model: Model, works: Sequence[Work], given: Mapping[str, int]) -> Iterator[Finding]:
    """Yield the data that nothing keeps inside of an axis: refuted where their range leaves it.

    A declaration says that each of its numbers may come.
    """
    found = {str(unbounded): unbounded for work in works for unbounded in work.unbounded}
    for text, unbounded in found.items():
        name = unbounded.use.reader.name
        wide = _left(model.program, unbounded, given)
        if wide is None:
            yield Finding("range", "unknown", text, name)
        else:
            sizes, value = wide
            yield Finding("range", "refuted", f"{text}: {value} lies outside", name, None, sizes)


def _left(
    program: kir.Program, unbounded: Unbounded, given: Mapping[str, int]
) -> tuple[dict[str, int], int] | None:
    """Return sizes at which a declared range leaves an axis, and a number that does; else None."""
    extents = [axis.extent for axis in unbounded.use.source.logical]
    for sizes in small_sizes(program, given) if unbounded.declared else ():
        if not all(number(extent, sizes) > 0 for extent in extents):
            continue  # there are no data
        # All that is declared of the data holds of each of them.
        low = max([number(declared.low, sizes) for declared in unbounded.declared])
        high = min([number(declared.high, sizes) for declared in unbounded.declared])
        inside = range(number(unbounded.use.extent, sizes))
        for value in (low, high - 1):
            if low < high and value not in inside:
                return dict(sizes), value
    return None


def _not_for_all(model: Model, why: NotProved | NotAffine) -> Finding:
    """Return a note on the statement at which the proof for all sizes ended, and why."""
    reason = f"{why} is not shown"
    if isinstance(why, NotAffine):
        reason = f"it has no affine form: {why}"
    message = f"there is no proof for all sizes: {reason}"
    if why.site is None:
        return Finding("sizes", "note", message)
    witness = Witness(model, {}, (1, 1, 1), (1, 1, 1))
    return witness.bare("sizes", message, why.site, "note")


def _unlike_the_math(model: Model, math: MathSnapshot, given: Mapping[str, int]) -> list[Finding]:
    """Return what is wrong with the program as a whole: what a caller sees of it, its launch."""
    witness = Witness(model, given, (1, 1, 1), (1, 1, 1))
    found = [witness.plain("interface", text, name) for name, text in interface_faults(model, math)]
    return found + [witness.plain("launch", t, "") for t in never_launched(model.program, given)]


def _check_sizes(program: kir.Program, given: Mapping[str, int]) -> None:
    subject = f"verify({program.name})"
    known = [p.name for p in program.params if p.kind == "size"]
    for name, value in given.items():
        if name not in known:
            raise VerifyError(subject, f"'{name}' is no size of it", f"its sizes are {known}")
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise VerifyError(subject, f"{name}={value!r} is no size", "give an int >= 0")
    plain = replace(program, requires=())
    if len(given) == len(known) and not fulfils(plain, given):
        raise VerifyError(subject, f"the sizes {dict(given)} break an assumption of the kernel")


def _other_values(model: Model, math: MathSnapshot, given: dict[str, int]) -> list[Finding]:
    """Return the stores that compute other values than the math, where all else is right.

    A value of another form than its template may be equal to it. Only where each store reads what
    the math demands, which is decided as ever, is it known what values the forms are of.
    """
    from loopnest.proofs.value_comparison import OtherForm, differing  # needs the oracle

    works: list[Work] = []
    exchanges: list[CollectiveMath] = []
    forms: list[OtherForm] = []
    live = LivePoints(math, model.program)
    for site in (s for s in model.sites if s.within is None):
        try:
            if isinstance(site.node, kir.Collective):
                exchanges.append(collective_math_of(math, site))
            elif isinstance(site.node, kir.Store):
                works.append(work_of(model, math, live, site))
        except Mismatch as why:
            form = OtherForm.of(model, math, site, why)
            if form is None:
                return []
            forms.append(form)
            works.append(form.work)
    found = [finding for form in forms for finding in differing(model, math, form, given)]
    if not found:
        return []
    small = enumerated(model, math, works, exchanges, found[0].sizes)
    return found if small.ok or _decided(model, math, works, exchanges, given).ok else []


def _asks_for_ranges(report: Report) -> bool:
    """Whether the ranges of data are all that is missing to a proof."""
    missing = [finding.kind for finding in report.findings if finding.status == "unknown"]
    return report.status == "unknown" and set(missing) == {"range"}


def require_proved(k: Any) -> None:
    """Prove the kernel `k`, for all sizes where possible; one without math passes.

    So does one of which all is shown but that data lie inside of the axes whose indices they are:
    that is for its launches to look at.

    Raises:
        VerifyError: it is refuted, or a fact could not be decided; with the first finding.
    """
    if getattr(getattr(k, "_lowered", k), "math", None) is None:
        return
    report = verify_program(*program_of(k, "verify"))
    if _asks_for_ranges(report):
        return
    name = getattr(getattr(k, "program", None), "name", "kernel")
    if not report.ok:
        first = report.findings[0] if report.findings else "nothing was found"
        raise VerifyError(f"verify({name})", f"{report.status} for {report.scope}: {first}")
    if report.all_sizes:
        _log.info("verify(%s): proved for all sizes", name)
    else:
        _log.warning("verify(%s): %s", name, report)


# Prove by enumeration, at given or at small sizes, what isl did not prove for all sizes.


MOST_SIZES = 12
"""How many sets of small sizes are looked at."""

MOST_POINTS = 6_000_000
"""How many points of statements are looked at in all of them together."""

DRAWS = 3
"""How many sets of elements of inputs are tried at each sizes, where tests load them."""

MOST_FIRST = 6_000_000
"""How many points may be looked at where it would be none else."""


def enumerated(
    model: Model,
    math: MathSnapshot,
    works: Sequence[Work],
    exchanges: Sequence[CollectiveMath],
    given: Mapping[str, int],
    hints: Sequence[Mapping[str, int]] = (),
) -> Report:
    """Return what holds at some sizes; those of `hints` come first.

    At sizes that no launch admits (an axis is split by 0), or at which no thread runs, there is
    nothing to be wrong; where all that are looked at are such sizes, a note says so.

    Args:
        model: the program.
        math: what it should compute.
        works: its stores.
        exchanges: its collectives.
        given: the size symbols that have a value.
        hints: sizes at which something may fail.
    """
    search = _SizeSearch(model, math, works, exchanges, given)
    for sizes in small_sizes(model.program, given, hints):
        refuted = search.look_at(sizes)
        if refuted is not None:
            return refuted
    return search.verdict(hints)


class _SizeSearch:
    """What is known of the sizes that were looked at so far.

    Attributes:
        done: these sizes.
        notes: findings that are no failures, by message.
        open: extents of loops that were at none of them as large as is telling.
        skipped: such an extent -> the first sizes at which it is, with too many points to look at.
        budget: how many points may be looked at yet.
        telling: whether at some of them no size was 0.
        passed_over: whether some of them have too many points.
        launched: whether something runs at some of them, as far as it is known.
        undecided: why nothing is known at some of them, "" where it is.
    """

    def __init__(
        self,
        model: Model,
        math: MathSnapshot,
        works: Sequence[Work],
        exchanges: Sequence[CollectiveMath],
        given: Mapping[str, int],
    ) -> None:
        self.model, self.math, self.works, self.exchanges = model, math, works, exchanges
        self.program, self.given = model.program, given
        self.extents = telling_extents(model.program)
        self.done: list[Mapping[str, int]] = []
        self.notes: dict[str, Finding] = {}
        self.open = set(self.extents)
        self.skipped: dict[Expr, Mapping[str, int]] = {}
        self.budget, self.telling, self.launched = MOST_POINTS, False, False
        self.passed_over = False
        self.undecided = ""

    def look_at(self, sizes: Mapping[str, int]) -> Report | None:
        """Look at every point at some sizes; return what is refuted there."""
        new = self.open & crossed(self.extents, sizes)
        cost = points_at(self.program, sizes)
        most = MOST_FIRST if new or not self.telling else self.budget
        # A loop that runs as often as is telling for the first time is worth more points than the
        # budget.
        if cost > most or (len(self.done) >= MOST_SIZES and not new):
            self._skip(sizes, new)
            return None
        self.budget -= cost
        try:
            with paused():
                found = self._findings(sizes)
        except TooMany:
            self._skip(sizes, new)
            return None
        except NoLaunch:
            self.done.append(sizes)
            return None
        except Undecidable as why:
            self.undecided = str(why)
            self.done.append(sizes)
            return None
        except ZeroDivisionError:
            message = "an index or a test divides by 0"
            fault = Finding("bounds", "refuted", message, sizes=dict(sizes))
            return Report("refuted", (fault,), named(sizes))
        refuted = [f for f in found if f.status == "refuted"]
        if refuted:
            return Report("refuted", tuple(refuted), named(sizes))
        self.notes.update({f.message: f for f in found})
        self.done.append(sizes)
        self.open -= new
        self.launched = True
        self.telling = self.telling or all(v for n, v in sizes.items() if n not in self.given)
        return None

    def _skip(self, sizes: Mapping[str, int], new: set[Expr]) -> None:
        self.launched = self.passed_over = True
        if starts(self.program, sizes):
            self.skipped = {**dict.fromkeys(new, sizes), **self.skipped}

    def _findings(self, sizes: Mapping[str, int]) -> list[Finding]:
        """Return the findings at these sizes, where the last block of the grid arrives last.

        At the first sizes, the first block arriving last at every other counter is tried as well.
        This one trial shows that the choice makes no difference, also where different blocks are
        the last to arrive at different counters.

        Raises:
            Undecidable: nothing is refuted, and a fact depends on data or on which block is last.
        """
        found: list[Finding] = []
        undecided: Undecidable | None = None
        flags = tuple(self.model.arrivals)
        choices: list[tuple[Local, ...]] = [()]
        # Which block arrives last is the machine's choice. What common memory holds must not depend
        # on it; `_lonely` refuses what names that block, and one other choice shows what it missed.
        if flags and not self.telling:
            choices += [flags, *([(flag,) for flag in flags] if len(flags) > 1 else [])]
        for first, data in product(choices, self._drawn(sizes)):
            facts = EnumeratedFacts(
                self.model, self.math, self.works, self.exchanges, sizes, first=first, data=data
            )
            try:
                for finding in facts.findings():
                    found.append(_with_data(finding, data))
            except Undecidable as why:
                undecided = why
            if any(f.status == "refuted" for f in found):
                return found
            if data:  # there are other numbers than those drawn
                undecided = Undecidable(f"a test depends on data: {', '.join(map(_name, data))}")
        for buffer in self.model.kept_by_last_blocks():
            undecided = undecided or Undecidable(f"{buffer.name} keeps what a last block stored")
        if undecided is not None:
            raise undecided
        return found

    def _drawn(self, sizes: Mapping[str, int]) -> list[Mapping[Buffer, Array]]:
        """Return elements of the inputs that tests load, such as launches may have."""
        live = LivePoints(self.math, self.program)
        tests = [e for site in self.model.tests for e in kir.expressions(site.node)]
        asked = [x for e in tests for x in loads(e) if live.is_kept(x)]
        buffers = list(dict.fromkeys([x.buffer for x in asked]))
        return [self._draw(buffers, sizes, seed) for seed in range(DRAWS if buffers else 1)]

    def _draw(
        self, buffers: Sequence[Buffer], sizes: Mapping[str, int], seed: int
    ) -> Mapping[Buffer, Array]:
        """Return random elements of inputs, those of the first draw in ascending order."""
        random = np.random.default_rng(seed)
        result: dict[Buffer, Array] = {}
        for buffer in buffers:
            shape = tuple([max(number(extent, sizes), 0) for extent in buffer.shape])
            low, high = -1, max([*sizes.values(), 1]) + 2
            known = [r for r in self.math.ranges if r.name == buffer.tensor]
            for declared in known:
                low, high = number(declared.low, sizes), number(declared.high, sizes)
            drawn = random.integers(low, max(high, low + 1), shape, np.int64)
            sort = not seed or any(r.ascending for r in known)
            result[buffer] = np.sort(drawn, axis=None).reshape(shape) if sort else drawn
        return result

    def verdict(self, hints: Sequence[Mapping[str, int]]) -> Report:
        """Return what holds where nothing was refuted."""
        scope = "; ".join(map(named, self.done))
        if self.undecided:
            return _unknown(self.undecided)
        asked = [filled(self.program, self.given, hint) for hint in hints]
        for sizes in [sizes for sizes in asked if sizes not in self.done]:
            if fulfils(self.program, sizes) and starts(self.program, sizes):
                where = f"it may fail at {named(sizes)}"
                return _unknown(f"{where}, where there are too many points to look at", scope)
        if self.done and not self.launched:
            message = "nothing is launched at these sizes"
            return Report("proved", (Finding("launch", "note", message),), scope)
        if not self.done and not self.passed_over:
            tests = ", ".join(
                [text for text, _ in (*self.program.conditions, *self.program.requires)]
            )
            return _unknown(f"no sizes were found that fulfil {tests}", named(self.given))
        if not self.telling and self.passed_over:
            message = "there are too many points to look at every one"
            return _unknown(message, scope or named(self.given))
        for extent in [e for e in self.extents if e in self.open and e in self.skipped]:
            where = f"at {named(self.skipped[extent])}, where a loop of extent '{extent}' runs"
            times = self.extents[extent]
            return _unknown(f"{where} {times} times, there are too many points", scope)
        return Report("proved", tuple(self.notes.values()), scope)


def _with_data(finding: Finding, data: Mapping[Buffer, Array]) -> Finding:
    """Return a finding that tells the elements of inputs with which it was found."""
    if finding.status != "refuted" or not data:
        return finding
    text = ", ".join([f"{_name(b)} = {array.tolist()}" for b, array in data.items()])
    return replace(finding, message=f"{finding.message}, where {text}")


def _name(buffer: Buffer) -> str:
    return buffer.tensor


def _unknown(message: str, scope: str = "all sizes") -> Report:
    return Report("unknown", (Finding("value", "unknown", message),), scope)


def named(sizes: Mapping[str, int]) -> str:
    """Return sizes as a text."""
    return ", ".join([f"{name}={value}" for name, value in sizes.items()]) or "its sizes"


# The interface of a program: what a caller passes, gets back, and may rely on.
#
# A proof is about the kernel that is called. Its parameters, their types, their order, the memory
# that they lie in and the space that buffers share must be those of the math, not only its values.
# Extents and strides depend on sizes; `symbolic` and `enumeration` hold them against the math.


ORDER = ("input", "output", "scalar", "size", "workspace")
"""The kinds of parameters, in the order in which they are passed."""


def interface_faults(model: Model, math: MathSnapshot) -> Iterator[tuple[str, str]]:
    """Yield (tensor or parameter, sentence) for each thing that is not as the math declares it."""
    program = model.program
    yield from _order(program)
    yield from _arrays(program, math, "input")
    yield from _arrays(program, math, "output")
    yield from _outputs(program, math)
    yield from _numbers(program, math)
    for param in program.params:
        yield from _parameter(param, math)
    yield from _conditions(program, math)
    yield from _names(model)
    inputs = {p.buffer: p.name for p in program.params if p.kind == "input"}
    for site in model.sites:
        if isinstance(site.node, kir.Allocate):
            yield from _allocated(model, site.node.storage)
        elif isinstance(site.node, kir.Store) and site.node.storage in inputs:
            yield from _overwrites(site.node, inputs[site.node.storage], math)


# Parameters


def _order(program: kir.Program) -> Iterator[tuple[str, str]]:
    places = []
    for param in program.params:
        if param.kind not in ORDER:
            yield param.name, f"parameter {param.name} is of the unknown kind '{param.kind}'"
        else:
            places.append(ORDER.index(param.kind))
    if places != sorted(places):
        found = ", ".join([f"{p.name} ({p.kind})" for p in program.params])
        yield "", f"the parameters are {found}; they are passed in the order {', '.join(ORDER)}"


def _arrays(program: kir.Program, math: MathSnapshot, kind: str) -> Iterator[tuple[str, str]]:
    found = [p.name for p in program.params if p.kind == kind]
    wanted = [t.name for t in math.tensors if t.role == kind and not t.inplace]
    if kind == "output":
        wanted = [name for name in math.outputs if name in wanted]
    yield from _listed(f"{kind} parameters", found, wanted)


def _outputs(program: kir.Program, math: MathSnapshot) -> Iterator[tuple[str, str]]:
    yield from _listed("outputs", [o.name for o in program.outputs], math.outputs)
    for output in program.outputs:
        tensor = math.tensor(output.name)
        if tensor is None:
            continue
        if output.inplace != tensor.inplace:
            yield (
                output.name,
                (
                    f"output {output.name} lies in the memory of {output.inplace or 'its own'}, "
                    f"the math has {tensor.inplace or 'its own'}"
                ),
            )
        place = output.inplace or output.name
        passed = next((p.buffer for p in program.params if p.name == place), None)
        if passed is not output.buffer:
            yield (
                output.name,
                (
                    f"output {output.name} is read from buffer {output.buffer.name}, which is not "
                    f"that of parameter {place}"
                ),
            )


def _numbers(program: kir.Program, math: MathSnapshot) -> Iterator[tuple[str, str]]:
    scalars = [p for p in program.params if p.kind == "scalar"]
    sizes = [p for p in program.params if p.kind == "size"]
    yield from _listed("scalars", [p.name for p in scalars], [s.name for s in math.scalars])
    yield from _listed("sizes", [p.name for p in sizes], [s.name for s in math.symbols])
    types = {s.name: s.dtype for s in math.scalars}
    types.update({s.name: dtypes.index for s in math.symbols})
    for param in (*scalars, *sizes):
        wanted = types.get(param.name, param.dtype)
        if param.dtype is not wanted:
            yield param.name, f"{param.kind} {param.name} is {param.dtype}, the math has {wanted}"
        if param.buffer is not None:
            yield param.name, f"{param.kind} {param.name} has a buffer"


def _listed(what: str, found: Sequence[str], wanted: Sequence[str]) -> Iterator[tuple[str, str]]:
    if list(found) != list(wanted):
        have, need = [", ".join(names) or "none" for names in (found, wanted)]
        yield "", f"the {what} are {have}; the math has {need}"


def _parameter(param: kir.Param, math: MathSnapshot) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with the buffer of an input, an output or workspace."""
    name, buffer = param.name, param.buffer
    if param.kind in ("scalar", "size") or param.kind not in ORDER:
        return
    if buffer is None:
        yield name, f"{param.kind} {name} has no buffer"
        return
    kinds = ("workspace", "counter") if param.kind == "workspace" else (param.kind,)
    if buffer.memory is not Memory.GLOBAL or buffer.kind not in kinds:
        yield name, f"{param.kind} {name} is passed as {buffer.memory.value} {buffer.kind} memory"
    if buffer.name != name:
        yield name, f"{param.kind} {name} has the buffer of another name, {buffer.name}"
    if param.dtype is not buffer.dtype:
        yield name, f"{param.kind} {name} is {param.dtype}, its buffer holds {buffer.dtype}"
    if buffer.kind == "counter" and buffer.dtype is not dtypes.int32:
        yield name, f"the counter {name} is {buffer.dtype}; blocks arrive at int32"
    if buffer.alias_of is not None or buffer.swizzles or buffer.stages != 1:
        yield name, f"{param.kind} {name} is no plain array: {_odd(buffer)}"
    tensor = math.tensor(name)
    if param.kind != "workspace" and tensor is not None:
        yield from _array(param, buffer, tensor)


def _odd(buffer: Buffer) -> str:
    if buffer.alias_of is not None:
        return f"it shares the space of {buffer.alias_of}"
    return "it is swizzled" if buffer.swizzles else f"it has {buffer.stages} stages"


def _array(param: kir.Param, buffer: Buffer, tensor: MathTensor) -> Iterator[tuple[str, str]]:
    name = param.name
    if buffer.tensor != name:
        yield name, f"{param.kind} {name} is passed as the array of {buffer.tensor}"
    if param.dtype is not tensor.dtype:
        yield name, f"{param.kind} {name} is {param.dtype}, the math has {tensor.dtype}"
    rank, wanted = len(param.shape), len(tensor.logical)
    if rank != wanted:
        yield name, f"{param.kind} {name} has {rank} axes, the math has {wanted}"


def _conditions(program: kir.Program, math: MathSnapshot) -> Iterator[tuple[str, str]]:
    """Yield conditions of a launch that the math does not have, and those that are missing."""
    found, wanted = [
        [condition for _, condition in c] for c in (program.conditions, math.conditions)
    ]
    for condition in found:
        if condition not in wanted:
            yield "", f"it asks for '{condition}', which the math does not assume"
    for condition in wanted:
        if condition not in found:
            yield "", f"it does not check '{condition}', which the math assumes"
    for declared in program.ranges:
        if declared not in math.ranges:
            yield declared.name, f"it asks for '{declared}', which the math does not declare"
    for declared in math.ranges:
        if declared not in program.ranges:
            yield declared.name, f"it does not check '{declared}', which the math declares"


# Buffers


def _overwrites(store: kir.Store, name: str, math: MathSnapshot) -> Iterator[tuple[str, str]]:
    """Yield a store to an input that is not one of the output in its place."""
    tensor = math.tensor(store.tensor)
    if tensor is None or tensor.inplace != name:
        yield store.tensor, f"{store.tensor} is stored to the input {name}, which the caller keeps"


def _names(model: Model) -> Iterator[tuple[str, str]]:
    """Yield names that two things have."""
    params = [p.name for p in model.program.params]
    arrays = {p.buffer for p in model.program.params}
    made = [b.name for b in model.buffers() if b not in arrays]
    seen: set[str] = set()
    for name in (*params, *made):
        if name in seen:
            yield name, f"two buffers or parameters are called {name}"
        seen.add(name)


def _allocated(model: Model, buffer: Buffer) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with a buffer that the program makes."""
    name = buffer.name
    if buffer in model.params:
        yield name, f"the parameter {name} is allocated in the program"
    elif buffer.memory is Memory.GLOBAL:
        yield name, f"{name} is allocated in GLOBAL memory, which only a caller can pass"
    if buffer.alias_of is None:
        return
    named = {b.name: b for b in model.buffers()}
    base = named.get(buffer.alias_of)
    if base is not None and _is_circular(buffer, named):
        yield name, f"{name} shares the space of {buffer.alias_of}, and that the space of {name}"
    elif buffer.memory is not Memory.SHARED or base is None or base.memory is not Memory.SHARED:
        yield (
            name,
            (
                f"{name} shares the space of {buffer.alias_of}; only two SHARED buffers of the "
                "program can"
            ),
        )


def _is_circular(buffer: Buffer, named: Mapping[str, Buffer]) -> bool:
    """Whether the buffers whose space one takes lead back to it."""
    base, seen = buffer, {buffer}
    while base.alias_of is not None and base.alias_of in named:
        base = named[base.alias_of]
        if base in seen:
            return True
        seen.add(base)
    return False
