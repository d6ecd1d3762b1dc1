"""`loopnest.verify`: prove that a kernel computes its math, or show where it does not."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from loopnest import kir
from loopnest.base.errors import VerifyError, kind_of
from loopnest.base.gc_pause import paused
from loopnest.base.recursion import deep
from loopnest.kir.legal_program import made_twice, program_faults
from loopnest.kir.legal_tiles import tile_faults
from loopnest.kir.tiles import without_tiles
from loopnest.proofs.bounded_proof import enumerated, named
from loopnest.proofs.collectives.collective_contract import is_declared
from loopnest.proofs.data_indices import Unbounded
from loopnest.proofs.empty_launches import empty_sizes, of_the_host
from loopnest.proofs.interface_checks import interface_faults
from loopnest.proofs.live_points import LivePoints
from loopnest.proofs.obligations import CollectiveMath, Work, collective_math_of, work_of
from loopnest.proofs.point_arrays import NoLaunch, Undecidable, number
from loopnest.proofs.program_model import Model, Site, equal_sizes
from loopnest.proofs.quasi_affine import NotAffine
from loopnest.proofs.report import ALL_SIZES, Finding, Report
from loopnest.proofs.single_launches import order_faults, single_launches, together
from loopnest.proofs.size_choice import fulfils, never_launched, small_sizes
from loopnest.proofs.symbolic import NotProved, broken_contract, prove
from loopnest.proofs.template_matching import Mismatch
from loopnest.proofs.witness import Witness
from loopnest.scalar.expr import Symbol
from loopnest.scalar.facts import Facts
from loopnest.scalar.simplify import Simplifier
from loopnest.tensor.computed_ranges import distinct_data
from loopnest.tensor.math_snapshot import MathSnapshot

_log = logging.getLogger("loopnest")

_UNBOUND = ("outside of its loop", "before it is defined", "before it is stored")
"""How the faults of a nest end that names or tests what has no value there."""


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
        from loopnest.proofs.barrier_necessity import necessity  # which asks for obligations

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


def program_of(k: Any, name: str) -> tuple[kir.Program, MathSnapshot]:
    """Return the program of a kernel, and its math.

    Raises:
        VerifyError: no kernel, or one without math; `name` is the function that was called.
    """
    lowered = getattr(k, "_lowered", k)
    program, make = getattr(lowered, "program", None), getattr(lowered, "math", None)
    if not isinstance(program, kir.Program) or make is None:
        raise VerifyError(
            f"{name}({k!r})", "it is no kernel that carries its math", "pass what ln.lower returns"
        )
    return program, make()


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
        if fault.endswith(_UNBOUND):
            wrong.append(Finding("scope", "refuted", fault))
    if wrong:
        return Report("refuted", tuple(wrong))
    program = without_tiles(program)
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
    return _decided(model, math, works, exchanges, given)


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


def obligations(
    model: Model, math: MathSnapshot
) -> tuple[list[Work], list[CollectiveMath], list[Finding]]:
    """Return the stores and collectives with what the math demands, and what it does not know."""
    works: list[Work] = []
    exchanges: list[CollectiveMath] = []
    problems: list[Finding] = []
    witness, live = Witness(model, {}, (1, 1, 1), (1, 1, 1)), LivePoints(math, model.program)
    problems += [
        witness.statement("scope", f"it uses {name}, which is not defined there", node)
        for node, name in model.undefined
    ]
    problems += _counters(model, witness)
    problems += _conversions(model, witness)
    for site in model.sites:
        try:
            if site.within is not None:
                continue
            if isinstance(site.node, kir.Collective):
                exchanges.append(collective_math_of(math, site))
            elif isinstance(site.node, kir.Store):
                works.append(work_of(model, math, live, site))
        except Mismatch as found:
            problems.append(_problem(witness, site, found))
    return works, exchanges, problems


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


def _counters(model: Model, witness: Witness) -> Iterator[Finding]:
    """Yield uses of counters that are no arrivals, and arrivals at what is no counter."""
    counters = model.counters
    for access in model.accesses:
        node, name = access.site.node, access.buffer.name
        if isinstance(node, kir.Arrive):
            if access.buffer.kind != "counter":
                yield witness.bare(
                    "arrival", f"it arrives at {name}, which is no counter", access.site
                )
        elif access.buffer in counters or access.buffer.kind == "counter":
            yield witness.bare("arrival", f"it uses the counter {name}", access.site)


def _conversions(model: Model, witness: Witness) -> Iterator[Finding]:
    """Yield where a value becomes one of another type: only the store of a tensor may round it."""
    for site in model.sites:
        match site.node:
            case kir.Let(var=var, value=value) | kir.Shuffle(var=var, value=value):
                name, found = var.name, var.dtype
            case kir.Store(storage=storage, value=value) if site.within is not None:
                name, found = storage.name, storage.dtype
            case _:
                continue
        if found is not value.dtype:
            message = f"{name} is {found} and takes a {value.dtype}"
            yield witness.bare("value", message, site)


def _problem(witness: Witness, site: Site, found: Mismatch) -> Finding:
    status: Literal["refuted", "unknown"] = "refuted" if found.refutes else "unknown"
    subject = "store" if isinstance(site.node, kir.Store) else "collective"
    return witness.bare(found.kind, f"the {subject} {found.message}", site, status)


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
