"""The folder of an export: what its manifest says, and what `ln.load` refuses."""

from __future__ import annotations

import hashlib
import json
import re

import numpy as np
import pytest

import loopnest as ln
from kernels.row_sum import row_sum
from kernels.softmax import softmax
from loopnest.base.pickling import SCHEMA
from loopnest.certificate import check_certificate


def doubled(name="twice"):
    with ln.Fusion(name) as f:
        x = f.input("x", ("N",), ln.float32)
        f.output(x * 2.0, "y")
        f.assume("N > 0")
    return ln.lower(f)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Return a folder with an export, and its digest."""
    folder = tmp_path_factory.mktemp("export") / "twice"
    return folder, doubled().export(folder)


@pytest.fixture
def copy(made, tmp_path):
    """Return a copy of the export, to damage it."""
    for path in made[0].iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path


def refused(folder, text, **options):
    """Expect that an export cannot be loaded, and why."""
    call = re.escape(f"load({str(folder)!r}): ")
    with pytest.raises(ln.CompileError, match=f"^{call}{text}$"):
        ln.load(folder, **options)


def rewrite(folder, **changes):
    """Change fields of a manifest."""
    path = folder / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_the_manifest_says_what_is_exported(made):
    folder, digest = made
    text = (folder / "manifest.json").read_bytes()
    found = json.loads(text)
    assert hashlib.sha256(text).hexdigest() == digest
    assert [p["name"] for p in found["parameters"]] == ["x", "y", "N"]
    assert found["parameters"][0] == {
        "name": "x", "kind": "input", "c": "x", "c_type": "float", "shape": ["N"],
        "elements": "N", "dtype": "float32",
    }  # fmt: skip
    assert found["assumptions"] == ["N > 0"]
    assert found["proof"] == {"status": "proved", "scope": "all sizes", "findings": []}
    assert found["certificate"] == "twice.certificate"
    _, report = check_certificate((folder / "twice.certificate").read_text())
    assert str(report) == "proved for all sizes"
    assert found["statuses"]["100"] == "the assumption 'N > 0' does not hold"
    assert found["files"].keys() == {p.name for p in folder.iterdir() if p.name != "manifest.json"}
    for name, wanted in found["files"].items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == wanted
    assert (folder / "twice.nest").read_text() == str(doubled()) + "\n"


def test_launch_formulas_are_in_the_manifest(tmp_path):
    row_sum.lower("gpu").export(tmp_path, prove=False)
    found = json.loads((tmp_path / "manifest.json").read_text())
    assert found["certificate"] is None
    assert found["variants"][0]["requires"] == ["D % 4 == 0"]
    assert found["variants"][0]["launches"] == [
        {"grid_x": "N", "block_x": "128", "shared_bytes": "16", "cooperative": False}
    ]
    assert found["proof"] is None


def test_a_loaded_kernel_is_the_kernel(made):
    folder, digest = made
    run = ln.load(folder, digest=digest)
    assert run(np.array([1, 2], np.float32)).tolist() == [2, 4]
    assert str(run.kernel) == str(doubled())
    assert ln.verify(run.kernel).ok
    with pytest.raises(ln.LaunchError, match=r"the assumption 'N > 0' does not hold for N = 0"):
        run(np.zeros(0, np.float32))


def test_an_export_replaces_an_older_one(tmp_path):
    doubled("first").export(tmp_path, prove=False)
    doubled("second").export(tmp_path, prove=False)
    assert {p.name.split(".")[0] for p in tmp_path.iterdir()} == {"second", "libsecond", "manifest"}


def test_a_digest_that_is_another(made):
    folder, digest = made
    refused(
        folder,
        f"its digest is {digest}, not 0123; it is another export; trust it, or get the right one",
        digest="0123",
    )


def test_no_export(tmp_path):
    refused(
        tmp_path,
        r"there is no manifest\.json to read \(No such file or directory\); name a folder that "
        r"k\.export made",
    )


def test_damaged_files(copy):
    (copy / "twice.h").write_text("/* nothing */\n")
    found = hashlib.sha256(b"/* nothing */\n").hexdigest()
    wanted = json.loads((copy / "manifest.json").read_text())["files"]["twice.h"]
    refused(
        copy,
        rf"twice\.h has the digest {found}, where manifest\.json says {wanted}; it is damaged, or "
        r"of another export; export the kernel again",
    )
    (copy / "twice.h").unlink()
    refused(
        copy,
        r"twice\.h cannot be read \(No such file or directory\); export the kernel again",
    )


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"format": 1}', '{"files": 3}', "\udcff", "[" * 100_000], ids=range(6)
)
def test_a_damaged_manifest(copy, text):
    (copy / "manifest.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    refused(copy, r"manifest\.json is damaged; export the kernel again")


def test_other_versions(copy):
    rewrite(copy, version=2)
    refused(
        copy,
        rf"it was made by loopnest [\w.]+ \(version 2, kernels of schema {SCHEMA}\); this is "
        rf"version 1, schema {SCHEMA}: export the kernel again with this one",
    )
    rewrite(copy, version=1, schema=3)
    refused(
        copy,
        rf"it was made by loopnest [\w.]+ \(version 1, kernels of schema 3\); this is version 1, "
        rf"schema {SCHEMA}: export the kernel again with this one",
    )
    rewrite(copy, format="another")
    refused(copy, r"manifest\.json is no manifest of a kernel; export the kernel again")


def test_a_file_outside_of_the_folder(copy):
    rewrite(copy, files={"../twice.h": "0"})
    refused(
        copy,
        r"manifest\.json names '\.\./twice\.h', which is no file of it; export the kernel again",
    )


def test_a_library_that_is_another(copy, tmp_path):
    other = tmp_path / "other"
    doubled("triple").export(other, prove=False)
    library = (other / "libtriple.so").read_bytes()
    (copy / "libtwice.so").write_bytes(library)
    files = json.loads((copy / "manifest.json").read_text())["files"]
    rewrite(copy, files={**files, "libtwice.so": hashlib.sha256(library).hexdigest()})
    refused(
        copy,
        r"its library does not fit its manifest, or this machine: function "
        r"ln_call_twice_variant0_32: kernel\.c does not define it; export the kernel on this "
        r"machine",
    )


@pytest.mark.parametrize("name", ["a\0b", "\ud800"])
def test_a_file_of_no_possible_name(copy, name):
    rewrite(copy, files={name: "0"})
    refused(copy, rf"{re.escape(name)} cannot be read \([^\n]+\); export the kernel again")


@pytest.mark.parametrize(
    "changes",
    [
        {"built": 3},
        {"built": {"code": {"0_32": [1], "0_64": [2]}}},
        {"nest": {}},
        {"target": ""},
        {"files": [["a", "b"]]},
        {"files": [[1, 2]]},
    ],
)
def test_a_manifest_that_lacks_something(copy, changes):
    rewrite(copy, **changes)
    refused(copy, r"manifest\.json is damaged; export the kernel again")


def test_a_manifest_that_does_not_fit(copy):
    rewrite(copy, built={"code": {"0_32": "a"}})
    refused(copy, "its manifest does not fit its files; export it again")
    rewrite(copy, target="rocm")
    refused(copy, "it is for target 'rocm', which is none")


def test_folders_that_will_not_do(tmp_path):
    kernel = doubled()
    (tmp_path / "own.txt").write_text("mine")
    call = re.escape(f"twice.export({str(tmp_path)!r}, target='c'): ")
    hint = "name a new folder, an empty one, or one that an export made"
    with pytest.raises(ln.LaunchError, match=f"^{call}the folder holds other files; {hint}$"):
        kernel.export(tmp_path)
    file = tmp_path / "own.txt"
    call = re.escape(f"twice.export({str(file)!r}, target='c'): ")
    with pytest.raises(
        ln.LaunchError, match=f"^{call}there is a file of that name; name a folder$"
    ):
        kernel.export(file)
    with pytest.raises(ln.LaunchError, match=r"^twice\.export\('3', target='c'\): 3 is no path; "):
        kernel.export(3)
    assert file.read_text() == "mine"


def test_a_text_that_is_no_kernel(copy):
    rewrite(copy, nest={"full": "libtwice.so"})
    refused(
        copy,
        r"its kernel cannot be read: parse, line 1: it is '.ELF[\s\S]*'; expected "
        r"'# loopnest program \d+', as this version writes it",
    )


def test_paths_that_no_system_takes(tmp_path):
    class Bytes:
        def __fspath__(self):
            return b"a"

    for path, why in ((tmp_path / ("x" * 300), "File name too long"), ("a\0b", ".*null byte.*")):
        call = re.escape(f"twice.export({str(path)!r}, target='c'): ")
        with pytest.raises(ln.LaunchError, match=f"^{call}it cannot be written \\({why}\\)$"):
            doubled().export(path, prove=False)
        hint = r"name a folder that k\.export made"
        refused(path, rf"there is no manifest\.json to read \({why}\); {hint}")
    with pytest.raises(ln.CompileError, match=rf"Bytes is no path; {hint}$"):
        ln.load(Bytes())


def test_targets_that_will_not_do(tmp_path):
    with pytest.raises(
        ln.CompileError,
        match=r"target 'interpret' exports nothing; use \"c\" or \"cuda\"$",
    ):
        doubled().export(tmp_path, target="interpret")
    assert not list(tmp_path.iterdir())


def test_a_kernel_that_is_refuted_stays(tmp_path):
    wrong = ln.Kernel.parse(doubled().text(full=True).replace("value=x[i0] * 2.0", "value=x[i0]"))
    assert ln.verify(wrong).status == "refuted"
    with pytest.raises(ln.VerifyError, match=r"the kernel is refuted: .*; mend it first$"):
        wrong.export(tmp_path)
    assert not list(tmp_path.iterdir())


def test_softmax_is_proved_in_its_manifest(tmp_path):
    softmax.lower("cpu").export(tmp_path)
    found = json.loads((tmp_path / "manifest.json").read_text())
    assert (found["proof"]["status"], found["proof"]["scope"]) == ("proved", "all sizes")
