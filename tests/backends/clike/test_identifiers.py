"""Identifiers: what is kept, what is mangled, and that different names stay different."""

import itertools
import re
import shutil
import subprocess

import pytest

from loopnest.backends.clike.identifiers import Names, identifier, symbol
from loopnest.backends.cpu.c_printer import _dialect as c_dialect
from loopnest.backends.cpu.c_printer import c_prelude, print_c
from loopnest.backends.cuda.printing.cuda_functions import cuda_dialect
from loopnest.kir import parse as parse_nest

HOSTILE = [
    "int", "double", "restrict", "template", "idx_t", "half_t", "threadIdx", "expf", "linux",
    "INT32_MAX", "uint8_t", "_x", "__x", "_X", "__CUDA_ARCH__", "ln_maxf", "LN_FN", "LN_OK", "main",
    "CUDART_PI", "and", "bool", "true", "errno", "assert", "LOOPNEST_COMPACT", "NULL",
]  # fmt: skip
LIBRARY = [
    "memcpy", "malloc", "powf", "sinf128", "lgamma_r", "atan2l", "norm3df", "rsqrt", "y0", "min",
    "omp_get_wtime", "time_t", "make_float4", "dim3", "std", "printf", "gamma",
]  # fmt: skip
PLAIN = [
    "x", "y", "T2", "T1_2", "i0", "N", "I", "D", "softmax", "row_sum", "bias_gelu", "acc", "gamma",
    "beta", "mean", "index", "weight", "h_t", "p_new",
]  # fmt: skip


@pytest.mark.parametrize("name", PLAIN)
def test_plain_names_are_kept(name):
    assert identifier(name) == name


@pytest.mark.parametrize("name", ["softmax", "row_sum", "bias_gelu", "gemm", "adam", "transpose"])
def test_plain_kernels_are_kept(name):
    assert symbol(name) == name


@pytest.mark.parametrize("name", HOSTILE)
def test_reserved_names_are_mangled(name):
    assert identifier(name) != name
    assert symbol(name) != name


@pytest.mark.parametrize("name", LIBRARY)
def test_kernels_are_no_library_functions(name):
    assert symbol(name) != name


def test_mangling_is_injective():
    words = [
        *HOSTILE,
        *LIBRARY,
        *PLAIN,
        "\u03b1",
        "_3b1_",
        "a\u03b1",
        "a_3b1_",
        "ln_x__3b1_",
        "ln_u__x",
    ]
    words += [w + end for w, end in itertools.product(words, ("_", "__", "f", "f_"))]
    words = list(dict.fromkeys(words))
    for mangle in (identifier, symbol):
        images = {}
        for word in words:
            assert images.setdefault(mangle(word), word) == word
            assert re.fullmatch(r"[A-Za-z_]\w*", mangle(word), re.ASCII)


def test_things_of_one_name_are_told_apart():
    names = Names()
    assert [names.of(kind, "x") for kind in ("buffer", "size", "index")] == ["x", "x_", "x__"]
    assert names.of("buffer", "x_") == "x___"
    assert names.of("size", "x") == "x_"
    assert names.of("buffer", "int") == "int_"
    assert names.of("size", "int_") == "int__"


def test_what_printed_bodies_call_is_no_identifier_of_a_user():
    for dialect in (c_dialect(64), cuda_dialect()):
        for function in [*dialect.functions.values(), *dialect.casts.values()]:
            name = function.partition("<")[0]
            assert identifier(name) != name


def test_headers_of_c_declare_no_identifier_that_is_kept():
    if not shutil.which("gcc"):
        pytest.skip("asks gcc's preprocessor")
    command = ["gcc", "-std=gnu11", "-fopenmp", "-x", "c", "-E", "-P", "-"]
    done = subprocess.run(command, input=c_prelude(), capture_output=True, text=True, check=True)
    text = re.sub(r"__attribute__ ?\(\((?:[^()]|\([^()]*\))*\)\)", "", done.stdout)
    text = re.sub(r"^ *#pragma.*$", "", text, flags=re.MULTILINE)  # it declares nothing
    functions = set(re.findall(r"(?:^|[ *])([A-Za-z]\w*) ?\([^;{}()]*\)[^;{}]*[;{]", text))
    assert {"omp_get_wtime", "ln_expf", "ln_scratch_new"} <= functions
    assert [n for n in functions if symbol(n) == n] == []
    command[-2:] = ["-dM", "-"]
    done = subprocess.run(command, input=c_prelude(), capture_output=True, text=True, check=True)
    macros = set(re.findall(r"#define ([A-Za-z]\w*)(?: |$)", done.stdout, re.MULTILINE))
    assert {"INT32_MAX", "linux"} <= macros
    assert [n for n in macros if identifier(n) == n] == []


def test_kernels_of_any_name_stand_in_one_file():
    from loopnest.backends.cpu.c_compiler import compile_c

    source = c_prelude()
    for name in dict.fromkeys([*LIBRARY, *HOSTILE, "\u03b1", "na\u00efve"]):
        nest = f"kernel {name}() -> (y: float32[4])\nfor i0 in 4:  # cpu_parallel\n  y[i0] = 1.0"
        source += print_c(parse_nest(nest), prelude=False)
    compile_c(source, optimize=1).function("min_")
