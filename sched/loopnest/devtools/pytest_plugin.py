"""The pytest plugin: the fixture `schedule_regression` and the option ``--update-goldens``.

::

    def test_softmax(schedule_regression):
        schedule_regression(softmax, "gpu")

The loop nest is compared with ``goldens/softmax@gpu.nest`` beside the test file, the results on
the interpreter and in C (where there is a compiler) with the oracle and with the kernel's
reference. Nothing but this module is loaded before a test asks for the fixture.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest

if TYPE_CHECKING:
    from loopnest.devtools.harness import Arguments
    from loopnest.devtools.kernel_def import KernelDef
    from loopnest.facade.kernel_class import Kernel
    from loopnest.tensor.fusion import Fusion

_SMALL = (37, 19, 23, 11)
"""Sizes for tests: no factor divides them."""
_ROUND = (64, 128, 512)
"""Sizes that satisfy most assumptions, where small ones do not."""


_LONGEST = 255
"""Bytes of a file's name."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option ``--update-goldens``."""
    parser.getgroup("loopnest").addoption(
        "--update-goldens",
        action="store_true",
        help="write the loop nests of schedule_regression anew instead of comparing them",
    )


@pytest.fixture
def schedule_regression(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> ScheduleRegression:
    """Compare a kernel's loop nest with its golden, and its results with oracle and reference."""
    base = tmp_path_factory.getbasetemp()
    run = base.parent if hasattr(request.config, "workerinput") else base  # of all processes
    return ScheduleRegression(
        request.path.parent / "goldens",
        bool(request.config.getoption("--update-goldens")),
        Claims(run / "loopnest-goldens"),
        request.node.nodeid,
    )


@dataclass(frozen=True)
class ScheduleRegression:
    """What the fixture gives.

    Args:
        folder: of the goldens.
        update: whether to write them.
        claims: which test has which golden.
        test: the one that runs.
    """

    folder: Path
    update: bool
    claims: Claims
    test: str

    def __call__(
        self,
        kernel: KernelDef,
        schedule: str | None = None,
        cost: Mapping[str, object] | None = None,
        **keywords: Any,
    ) -> Kernel:
        """Check one schedule of a kernel.

        Args:
            kernel: what ``@ln.kernel`` made.
            schedule: by name; the default where it is None.
            cost: limits of what it costs at the kernel's sizes, as those of `assert_cost`, beside
                those that the schedule was registered with.
            **keywords: sizes to run at (by default small ones), and parameters of math or schedule.

        Returns:
            The lowered kernel, for more checks.
        """
        __tracebackhide__ = True
        from loopnest.facade.kernel_class import lower

        name = kernel.resolve(schedule)
        known = kernel.parameters(name)
        params = {n: v for n, v in keywords.items() if n in known}
        sizes = {n: v for n, v in keywords.items() if n not in known}
        with _any_machine():
            fusion = kernel.fusion(name or None, **params)
        lowered = lower(fusion)
        full = {**kernel.sizes, **sizes}
        self._check_nest(golden_name(kernel.name, name, params), f"{lowered}\n", lowered, full)
        _check_costs(lowered, full, {**kernel.costs.get(name, {}), **(cost or {})})
        _check_results(kernel, fusion, lowered, params, sizes)
        return lowered

    def _check_nest(self, name: str, text: str, kernel: Kernel, sizes: Mapping[str, int]) -> None:
        __tracebackhide__ = True
        path = self.folder / f"{name}.nest"
        if len(os.fsencode(path.name)) > _LONGEST:
            pytest.fail(f"the golden's name is too long for a file: {path.name}", False)
        other = self.claims.other(path, self.test, text)
        if other is not None:
            pytest.fail(
                f"the golden {path} belongs to another nest of this run, that of {other}; two "
                "kernels of one name, schedule and parameters cannot share it: rename one",
                False,
            )
        if self.update:
            self.folder.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
            return
        if not path.is_file():
            pytest.fail(f"there is no golden {path}; write it with pytest --update-goldens", False)
        golden = path.read_text(encoding="utf-8")
        if golden != text:
            pytest.fail(
                f"the loop nest of {name} differs from its golden\n\n{_diff(golden, text, path)}\n"
                + "".join([f"cost: {moved}\n" for moved in _moved(golden, kernel, sizes)])
                + "".join([f"note: {note}\n" for note in kernel.notes])
                + "if the new one is right, write it with pytest --update-goldens",
                False,
            )


def _moved(golden: str, kernel: Kernel, sizes: Mapping[str, int]) -> list[str]:
    """Return which costs are others than those of the golden, at sizes, in words."""
    from loopnest import kir
    from loopnest.base.errors import LoopnestError
    from loopnest.costs import profile
    from loopnest.costs.cost_limits import moved_costs
    from loopnest.devtools.schedule_check import cost_sizes
    from loopnest.facade.kernel_class import Kernel as Made
    from loopnest.kir.lowered import Lowered

    try:
        before = Made(Lowered(kir.parse(golden), (), (), ()))
        own: dict[str, Any] = {**cost_sizes(kernel, sizes)}
        return moved_costs(profile(before, **own), profile(kernel, **own))
    except LoopnestError:  # a damaged golden, or sizes that it cannot be counted at
        return []


def _check_costs(kernel: Kernel, sizes: Mapping[str, int], limits: Mapping[str, Any]) -> None:
    """Hold a kernel to the limits of what it costs; those of machine code where there is NVRTC."""
    __tracebackhide__ = True
    from loopnest.base.errors import CostError, NotSupported
    from loopnest.costs import assert_cost
    from loopnest.devtools.schedule_check import cost_sizes

    try:
        if limits:
            assert_cost(kernel, cost_sizes(kernel, sizes), **limits)
    except CostError as error:
        pytest.fail(str(error), False)
    except NotSupported:
        return


@contextmanager
def _any_machine() -> Iterator[None]:
    """Let defaults of schedules follow from no particular machine: goldens are compared on all."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOOPNEST_MACHINE", "any")
        yield


@dataclass(frozen=True)
class Claims:
    """Which test compares which nest with a golden, among all processes of one test run.

    Args:
        folder: of this run alone.
    """

    folder: Path

    def other(self, golden: Path, test: str, text: str) -> str | None:
        """Claim `golden` for the nest `text`; return the test that has claimed it for another."""
        from filelock import FileLock

        name = sha256(os.fsencode(golden)).hexdigest()
        claim = self.folder / name
        self.folder.mkdir(exist_ok=True)
        with FileLock(self.folder / f"{name}.lock"):
            if not claim.is_file():
                claim.write_text(f"{test}\n{text}", encoding="utf-8")
                return None
            first, _, claimed = claim.read_text(encoding="utf-8").partition("\n")
        return None if claimed == text else first


def golden_name(kernel: str, schedule: str, params: Mapping[str, Any]) -> str:
    """Return the file name of a golden, without suffix: parameters that are set give another nest.

    Different names and values give different file names: what is no letter, digit, ``_``, ``-``,
    ``+`` or ``.`` of ASCII stands as ``%2F``, by its bytes in UTF-8; a string that looks like
    another literal, as ``"1"``, keeps its quotes.

    >>> golden_name("softmax", "gpu", {"lanes": 8, "mode": "a/b"})
    'softmax@gpu,lanes=8,mode=a%2Fb'
    """
    label = _escaped(kernel) + (f"@{_escaped(schedule)}" if schedule else "")
    set_ones = [f"{_escaped(name)}={_escaped(_shown(value))}" for name, value in params.items()]
    return ",".join([label, *set_ones])


def _shown(value: object) -> str:
    """Return a parameter's value as text that no value of another type has."""
    if not isinstance(value, str):
        return str(value)
    from loopnest.scalar import dtypes

    if value in [dtype.name for dtype in dtypes.ALL]:
        return repr(value)
    try:
        ast.literal_eval(value)
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        return repr(value) if value[:1] in ("'", '"') else value
    return repr(value)


def _escaped(text: str) -> str:
    return quote(text, safe="+", errors="surrogateescape").replace("~", "%7E")


def _diff(golden: str, text: str, path: Path) -> str:
    from difflib import unified_diff

    name = f"{path.parent.name}/{path.name}"
    lines = unified_diff(golden.splitlines(), text.splitlines(), name, "now", lineterm="")
    return "\n".join(lines) + "\n"


def _check_results(
    kernel: KernelDef,
    fusion: Fusion,
    lowered: Kernel,
    params: Mapping[str, Any],
    sizes: Mapping[str, int],
) -> None:
    __tracebackhide__ = True
    from loopnest.devtools.harness import judge, small_targets
    from loopnest.devtools.schedule_check import references
    from loopnest.facade.kernel_class import compile

    arguments = _arguments(kernel, fusion, sizes)
    wanted = references(kernel, fusion, arguments, params)
    problems: list[str] = []
    for target in small_targets():
        quick = {"optimize": 1} if target == "c" else {}  # small sizes: gcc's time is the test's
        function = compile(lowered, target=target, **quick)
        actual = function(*arguments.fresh(), **arguments.keywords(fusion))
        for source, arrays in wanted.items():
            for verdict in judge(fusion, arguments.sizes, actual, arrays):
                if not verdict.ok:
                    problems.append(f"on target {target}, against {source}: {verdict}")
    if problems:
        pytest.fail("\n".join(problems), False)


def _arguments(kernel: KernelDef, fusion: Fusion, given: Mapping[str, int]) -> Arguments:
    """Return arguments of small sizes: the first choice that meets the kernel's assumptions."""
    from loopnest.base.errors import LaunchError
    from loopnest.devtools.harness import make_arguments

    names = [symbol.name for symbol in fusion.symbols]
    for name in given:
        if name not in names:
            pytest.fail(
                f"{kernel.name} has no size or parameter '{name}'; its sizes are "
                f"{', '.join(names) or 'none'}",
                False,
            )
    choices = [dict(zip(names, cycle(_SMALL), strict=False))]
    choices += [dict.fromkeys(names, size) for size in _ROUND]
    for sizes in choices:
        try:
            return make_arguments(fusion, {**sizes, **given}, kernel.ranges)
        except LaunchError:
            continue
    return make_arguments(fusion, {**kernel.sizes, **given}, kernel.ranges)
