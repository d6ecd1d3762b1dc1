"""``loopnest judge``: what is wrong with code that only looks right."""

import json
import re

import pytest
from click.testing import CliRunner

torch = pytest.importorskip("torch")

from loopnest.devtools.cli import Source, command_line  # noqa: E402 - torch is asked for first

pytestmark = pytest.mark.filterwarnings("ignore")  # torch's own, of several versions

MODEL = """
import torch
from torch import nn

N, D = 12, 40

class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.scale = nn.Parameter(torch.randn(width))

    def forward(self, x):
        return (x * self.scale).sum(0) / x.shape[0]

def get_inputs():
    return [torch.randn(N, D)]

def get_init_inputs():
    return [D]
"""
FUNCTION = """
import torch

def reference(x, w):
    return torch.softmax(x @ w, -1), x.exp()

def get_inputs():
    return [torch.randn(6, 8), torch.randn(8, 4)]
"""
RIGHT = """
import torch

class ModelNew(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.zeros(width))

    def forward(self, x):
        BODY
"""
MEAN = "return x.mean(0) * self.scale"
ALL = [
    *("inputs as given", "zeros are wrong", "fresh inputs 1", "fresh inputs 2"),
    *("new values where others lay", "11 in place of 12", "1 in place of 12"),
]
WRONG = {
    "a factor": ("return x.mean(0) * self.scale * 1.001", ALL[:1] + ALL[2:], "largest error"),
    "zeros": ("return x.new_zeros(x.shape[1])", ALL[:1] + ALL[2:], "40 of 40 elements differ"),
    "memory that nobody wrote": (
        "y = torch.empty(x.shape[1]); y[:39] = (x.mean(0) * self.scale)[:39]; return y",
        ALL[:1] + ALL[2:],
        r"largest error inf at \[39\], .*; 1 of 40 elements differ",
    ),
    "results that are kept": (
        "self.kept = getattr(self, 'kept', x.mean(0) * self.scale); return self.kept",
        ALL[2:],
        "40 of 40 elements differ",
    ),
    "results that are kept by address": (
        "kept = self.__dict__.setdefault('kept', {}); key = x.data_ptr(), x.shape; "
        "first = (x, x.mean(0) * self.scale); return kept.setdefault(key, first)[1]",
        ALL[4:5],
        "40 of 40 elements differ",
    ),
    "an argument that is changed": (
        "return x.mul_(self.scale).mean(0)", ALL[:1] + ALL[2:], "it changes argument 0",
    ),
    "sizes that are even": (
        "return (x[0::2] + x[1::2]).sum(0) * self.scale / len(x)",
        ALL[5:],
        r"it fails with RuntimeError: The size of tensor a \(\d+\) must match .*",
    ),
    "another shape": ("return x.mean(0)[None]", ALL[:1] + ALL[2:], r"its shape is \(1, 40\), .*"),
    "another type": ("return x.mean(0).double()", ALL[:1] + ALL[2:], "its type is torch.float64.*"),
}  # fmt: skip


@pytest.fixture
def judged(tmp_path):
    def judge(reference, candidate, *options):
        files = tmp_path / "reference.py", tmp_path / "candidate.py"
        for file, text in zip(files, (reference, candidate), strict=True):
            file.write_text(text)
        group = command_line(False, "loopnest")
        arguments = ["judge", *map(str, files), *options]
        return CliRunner().invoke(group, arguments, obj=Source(script=False))

    return judge


def test_a_right_candidate(judged):
    found = judged(MODEL, RIGHT.replace("BODY", MEAN))
    assert found.exit_code == 0, found.output
    assert found.stdout.splitlines() == [f"{name}: right" for name in ALL]


def test_functions(judged):
    candidate = (
        "import torch\n"
        "def candidate(x, w):\n"
        "    y = x @ w\n"
        "    e = torch.exp(y - y.amax(-1, keepdim=True))\n"
        "    return e / e.sum(-1, keepdim=True), torch.exp2(x * 1.4426950408889634)\n"
    )
    found = judged(FUNCTION, candidate)
    names = [line.partition(":")[0] for line in found.stdout.splitlines()]
    assert names[5:] == [f"{n} in place of {m}" for m in (8, 6, 4) for n in (m - 1, 1)]
    assert found.exit_code == 0, found.output


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_candidate(case, judged):
    body, checks, told = WRONG[case]
    found = judged(MODEL, RIGHT.replace("BODY", body), "--json")
    rows = {row["name"]: row["fault"] for row in json.loads(found.stdout)}
    assert [*rows] == ALL
    assert [name for name, fault in rows.items() if fault] == checks
    assert re.search(told, rows[checks[0]]), rows[checks[0]]
    assert found.exit_code == 1
    assert f"error: candidate.py: {len(checks)} of 7 checks found something wrong" in found.stderr


def test_the_switches_of_torch_are_put_back(judged):
    before = torch.are_deterministic_algorithms_enabled()
    judged(MODEL, RIGHT.replace("BODY", "raise ValueError('no')"))
    assert torch.are_deterministic_algorithms_enabled() == before


def test_inputs_that_tell_nothing(judged):
    reference = FUNCTION.replace("torch.softmax(x @ w, -1), x.exp()", "x - x")
    found = judged(reference, "def candidate(x, w):\n    return x * 0\n")
    assert found.exit_code == 1
    fault = "zeros are wrong: zeros lie within the bound, so these inputs tell nothing"
    assert fault in found.stdout.splitlines()


def test_a_reference_without_math(judged):
    reference = FUNCTION.replace("torch.softmax(x @ w, -1), x.exp()", "torch.linalg.pinv(x)")
    found = judged(reference, "import torch\ncandidate = lambda x, w: torch.linalg.pinv(x)\n")
    assert found.exit_code == 1
    assert found.stdout.startswith("inputs as given: undecided: assert_close(reference): ")


@pytest.mark.parametrize(
    ("reference", "candidate", "told"),
    [
        ("x = 1", "x = 1", "reference.py: it does not define get_inputs()"),
        (
            "def get_inputs():\n    return []\n",
            "x = 1",
            "reference.py: it defines neither Model nor reference()",
        ),
        (FUNCTION, "x = 1", "candidate.py: it defines neither ModelNew nor candidate()"),
    ],
)
def test_files_that_do_not_fit(judged, reference, candidate, told):
    found = judged(reference, candidate)
    assert found.exit_code == 1
    assert found.stderr.strip() == f"error: {told}"


def test_a_file_that_is_not_there(tmp_path):
    group, file = command_line(False, "loopnest"), tmp_path / "none.py"
    found = CliRunner().invoke(group, ["judge", str(file), str(file)], obj=Source(script=False))
    assert found.exit_code == 1
    assert str(file) in found.stderr
