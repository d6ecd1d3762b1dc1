"""Certificates: a kernel proved again from its text, in a process that knows no schedule."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import loopnest as ln
from kernels.gemm import gemm
from kernels.layernorm_backward import layernorm_backward
from kernels.softmax import softmax
from loopnest.base.errors import LoopnestError, VerifyError
from loopnest.certificate import VERSION, check_certificate, main

ALONE = """
import sys
from loopnest.certificate import main
status = main(sys.argv[1:])
print([m for m in sys.modules if m.startswith(("loopnest.lowering", "loopnest.schedule"))])
sys.exit(status)
"""


def doubled() -> ln.Kernel:
    with ln.Fusion("doubled") as f:
        x = f.input("x", ("N",), ln.float32)
        f.output(x * 2.0, "y")
    return ln.lower(f)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "doubled.cert"
    assert doubled().certificate(path).all_sizes
    return path


@pytest.mark.parametrize(
    "kernel", [gemm.lower("gpu"), softmax.lower("gpu"), layernorm_backward.lower("gpu")], ids=repr
)
def test_another_process_proves_it_without_lowering_or_schedules(
    kernel: ln.Kernel, tmp_path: Path
) -> None:
    path = tmp_path / "kernel.cert"
    kernel.certificate(path)
    done = subprocess.run(
        [sys.executable, "-c", ALONE, str(path)], capture_output=True, text=True, check=True
    )
    head, *_, loaded = done.stdout.splitlines()
    assert re.match(rf"{path}: proved for all sizes \(\d+\.\d s\)$", head)
    assert loaded == "[]"


def test_it_says_what_is_computed(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(file)]) == 0
    head, *rest = capsys.readouterr().out.splitlines()
    assert head.startswith(f"{file}: proved for all sizes (")
    assert rest[0] == "  kernel doubled(x: float32[N]) -> (y: float32[N])"
    assert rest[1:] == ["  y: float32[N] = x[#0] * 2.0"]


def test_the_module_is_a_command(file: Path) -> None:
    command = [sys.executable, "-m", "loopnest.certificate", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"{file}: proved for all sizes")
    assert done.stderr == ""


def refused(text: str) -> str:
    with pytest.raises(LoopnestError) as error:
        check_certificate(text, "doubled.cert")
    return str(error.value)


def test_any_changed_byte_is_refused(file: Path) -> None:
    text = file.read_text("utf-8")
    start = text.index("\nclaim ") + 1
    changed = (
        "doubled.cert: it was changed since it was written: its digest is not that of its text"
    )
    for place in range(start, len(text), max(len(text) // 97, 1)):
        other = "x" if text[place] != "x" else "y"
        message = refused(text[:place] + other + text[place + 1 :])
        assert message == f"{changed}; write it again with k.certificate(path)"
    assert refused(text[:-1]).startswith(changed)
    assert refused(text + "\n").startswith(changed)


def test_another_version_is_refused(file: Path) -> None:
    text = file.read_text("utf-8").replace(f"certificate {VERSION}", "certificate 7", 1)
    assert refused(text) == (
        "doubled.cert: it is a certificate of version 7; this loopnest reads version 1; use the "
        "loopnest that wrote it"
    )
    assert refused("# something else\n") == (
        "doubled.cert: it is no certificate of loopnest; write it again with k.certificate(path)"
    )
    assert refused("").startswith("doubled.cert: it is no certificate of loopnest")


def test_a_wrong_kernel_with_a_right_digest_is_refused(file: Path) -> None:
    from loopnest import certificate

    rest = file.read_text("utf-8").split("\n", 2)[2]
    wrong = rest.replace("2.0", "3.0", 1)
    assert wrong != rest
    head = f"# loopnest certificate {VERSION}\nsha256 {certificate._digest(wrong)}\n"
    assert refused(head + wrong).startswith(
        "doubled.cert: it claims 'proved for all sizes', and its kernel is refuted"
    )
    claimed = rest.replace("claim proved for all sizes", "claim proved for N=3", 1)
    head = f"# loopnest certificate {VERSION}\nsha256 {certificate._digest(claimed)}\n"
    assert refused(head + claimed) == (
        "doubled.cert: it claims 'proved for N=3', what is found is 'proved for all sizes'; write "
        "it again with k.certificate(path)"
    )


def test_what_cannot_be_written(tmp_path: Path) -> None:
    path = str(tmp_path / "none" / "x.cert")
    message = (
        f"doubled.certificate({path!r}): the file cannot be written: No such file or directory; "
        "name a file in a folder that is there"
    )
    with pytest.raises(VerifyError, match=f"^{re.escape(message)}$"):
        doubled().certificate(path)
    message = "doubled.certificate(3): an int is no path; pass a str or a Path"
    with pytest.raises(VerifyError, match=f"^{re.escape(message)}$"):
        doubled().certificate(3)  # type: ignore[arg-type]


def test_files_that_are_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    binary, missing = tmp_path / "b.cert", tmp_path / "missing.cert"
    binary.write_bytes(b"\xff\xfe")
    assert main([str(binary), str(missing)]) == 1
    assert capsys.readouterr().err == (
        f"error: {binary}: it is no text in UTF-8\nerror: {missing}: No such file or directory\n"
    )
    assert main([]) == 2
