"""What drives a GPU, on a driver library that has none: calls, arguments, results.

Each runs in a process of its own, which finds `fake_libcuda.c` in the place of NVIDIA's driver.
"""

from __future__ import annotations

import ctypes
import gc
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from loopnest.backends.cuda.cuda_target import scalar_argument
from loopnest.backends.cuda.driver import dlpack
from loopnest.backends.cuda.driver import gpu_driver as drivers
from loopnest.backends.cuda.driver.gpu_driver import pack
from loopnest.backends.cuda.toolchain import cuda_toolkit
from loopnest.base.errors import CompileError, LaunchError
from loopnest.scalar import dtypes

HELPERS = Path(__file__).parents[2] / "helpers"
ML_TYPES = [dtypes.bfloat16, dtypes.float8_e4m3fn, dtypes.float8_e5m2]

PRELUDE = """
    import sys
    sys.path.insert(0, {folder!r})
    import numpy as np
    from helpers import cuda_cases as cases
    import loopnest as ln
    from loopnest.facade.kernel_class import Kernel, compile
    from loopnest.kir.lowered import Lowered
    from loopnest.backends.cuda.driver import gpu_driver as driver
    from loopnest.kir import parse as parse_nest

    def kernel_of(program):
        return Kernel(Lowered(program, (), (), ()))

    scale = kernel_of(parse_nest('''
        kernel scale(x: float32[N, D], alpha: float32, shift: float16, count: int32) -> (y: float32[N, D])
        for i0 in N:  # grid_x
          for i1 in D:  # block_x
            y[i0, i1] = x[i0, i1] * alpha + float32(shift) + float32(count)
    '''))
    x = np.arange(15, dtype=np.float32).reshape(3, 5)
    scalars = dict(alpha=2.0, shift=0.5, count=3)
"""  # noqa: E501


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    pytest.importorskip("cuda.core")
    compiler = shutil.which("gcc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("no gcc for the fake driver")
    folder = tmp_path_factory.mktemp("driver")
    command = [compiler, "-O1", "-w", "-shared", "-fPIC", HELPERS / "fake_libcuda.c"]
    target = folder / "libcuda.so.1"
    subprocess.run([*command, "-o", target, "-ldl"], check=True)
    (folder / "libcuda.so").symlink_to(target)
    missing = _linked_by_pycuda() - _symbols(target, "--defined-only")
    if missing:
        rest = folder / "rest.c"
        rest.write_text("\n".join([f"int {name}(void) {{ return 801; }}" for name in missing]))
        subprocess.run([*command, rest, "-o", target, "-ldl"], check=True)
    return folder


def _linked_by_pycuda():
    """Return what pycuda wants of the driver: unlike the others it is linked with it."""
    spec = importlib.util.find_spec("pycuda")
    files = [] if spec is None else Path(spec.origin).parent.glob("_driver*.so")
    return {name for file in files for name in _symbols(file, "--undefined-only")
            if name.startswith("cu") and not name.startswith("curand")}  # fmt: skip


def _symbols(file, which):
    listed = subprocess.run(["nm", "-D", which, file], capture_output=True, text=True, check=True)
    return {line.split()[-1].partition("@")[0] for line in listed.stdout.splitlines()}


def run(library, tmp_path, script, package=None, **environment):
    """Run a script on the fake driver; return what it printed and the lines of the log."""
    log = tmp_path / "log"
    setup = textwrap.dedent(PRELUDE).format(folder=str(HELPERS.parent))
    hidden = ("pycuda",) if package == "core" else ()
    setup += "".join([f"sys.modules[{name!r}] = None\n" for name in hidden])
    done = subprocess.run(
        [sys.executable, "-c", setup + textwrap.dedent(script)],
        env={
            **os.environ,
            "LD_LIBRARY_PATH": str(library),
            "FAKE_CUDA_LOG": str(log),
            "PYTHONWARNINGS": "error",  # of what the packages will no longer take
            **environment,
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines(), log.read_text().splitlines() if log.exists() else []


def installed(package):
    names = {"core": "cuda.core", "pycuda": "pycuda"}
    probe = [
        sys.executable,
        "-c",
        f"import importlib.util as u, sys; sys.exit(u.find_spec({names[package]!r}) is None)",
    ]
    return subprocess.run(probe, check=False, capture_output=True).returncode == 0


@pytest.fixture(params=["core", "pycuda"])
def package(request):
    if not installed(request.param):
        pytest.skip(f"{request.param} is not installed")
    return request.param


def test_each_launcher_has_an_extra():
    project = tomllib.loads((HELPERS.parents[1] / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    for name, below in (("cuda-core", "nvrtc"), ("pycuda", "cuda-core")):
        more, launcher = extras[name]
        assert more == f"loopnest[{below}]"
        assert re.match(rf"{name}>=\d", launcher)
    assert f"cuda-core>={'.'.join(map(str, drivers.LEAST_CORE))}" in extras["cuda-core"]
    for install in (drivers.INSTALL, cuda_toolkit.INSTALL):
        (named,) = re.findall(r"loopnest\[([\w-]+)\]", install)
        assert named in extras


CLASSES = {"core": "Driver", "pycuda": "PycudaDriver"}


def test_a_launch_on_arrays_of_the_host(library, tmp_path, package):
    script = """
        found = driver.find_driver()
        print(type(found).__name__, found.device.name, found.device.arch)
        fn = compile(scale, target="auto")
        print(fn.target, np.array_equal(fn(x, **scalars), x * 2 + 3.5))
        print(np.array_equal(fn(x, stream=64, **scalars), x * 2 + 3.5))
    """
    out, log = run(library, tmp_path, script, package)
    assert out == [f"{CLASSES[package]} Fake H100 sm_90", "cuda True", "True"]
    launches = [line for line in log if line.startswith("launch")]
    assert launches[0] == "launch scale (3, 1, 1) (5, 1, 1) 0 (nil)"
    assert launches[1] == "launch scale (3, 1, 1) (5, 1, 1) 0 0x40"
    assert "load ELF" in [line.strip("\x02") for line in log]
    assert log.count("retain 0") >= 1
    assert len([line for line in log if line.startswith("allocate 60")]) == 4
    assert log.count("free (nil)") == 2
    assert log.count("free") == 2  # on a stream that may be gone: waits


def test_a_cooperative_launch(library, tmp_path, package):
    script = """
        fn = compile(kernel_of(cases.neighbours()), target="cuda")
        x = np.arange(128, dtype=np.float32)
        print(np.array_equal(fn(x), np.roll(x, -1)))
    """
    out, log = run(library, tmp_path, script, package)
    assert out == ["True"]
    assert "together neighbours (4, 1, 1) (32, 1, 1) 0 (nil)" in log
    assert "occupancy 32 0" in log
    assert "zero 4 (nil)" in log


def test_the_rest_of_the_interface(library, tmp_path, package):
    script = """
        gpu = driver.find_driver()
        with gpu.current():
            place = gpu.allocate(64, 5)
            assert place % 256 == 0
            a, b = np.arange(16, dtype=np.int32), np.empty(16, np.int32)
            gpu.upload(place, a, 0)
            gpu.download(b, place, 0)
            assert (a == b).all()
            gpu.zero(place, 32, 3)
            gpu.download(b, place, 3)
            assert (b[:8] == 0).all() and (b[8:] == a[8:]).all()
            gpu.upload(place, a[:0], 0)
            for stream in (0, 3):
                a = np.full(16, stream, np.int32)
                gpu.upload(place, a, stream)
                a[:] = -1  # it may be changed, wherever its memory lies
                gpu.download(b, place, stream)
                assert (b == stream).all()
            gpu.wait(5, 6)
            gpu.wait(5, 5)
            gpu.synchronize(5)
            done = []
            assert gpu.timed(lambda: done.append(1), 4) == 0.0025 and done == [1]
            code = scale.cubin("sm_90")
            function = gpu.load(code, "scale")
            gpu.allow_shared(function, 98304)
            assert gpu.resident_blocks(function, 128, 98304) == 2
            gpu.free(place, 5)
            gpu.free(gpu.allocate(16, 0), None)
            try:
                gpu.load(code, "nothing")
            except ln.LaunchError as error:
                print(error)
    """
    out, log = run(library, tmp_path, script, package)
    assert "attribute 8 98304" in log  # MAX_DYNAMIC_SHARED_SIZE_BYTES
    assert "record 0x6" in log
    assert "wait 0x5" in log
    assert "synchronize 0x5" in log
    assert log.count("record 0x4") == 2
    assert "allocate 64 0x5" in log
    assert log.count("free 0x5") == 1
    assert log.count("free") == 1
    told = {"core": "FAKE: This indicates that a named symbol was not found. ",
            "pycuda": "cuModuleGetFunction failed: a fake error"}  # fmt: skip
    (refused,) = out
    assert refused.startswith(f"the CUDA driver: {told[package]}")


def test_more_streams_than_are_kept(library, tmp_path, package):
    script = """
        gpu = driver.find_driver()
        with gpu.current():
            for number in [*range(100, 101 + driver.KEPT_STREAMS), 100]:
                gpu.wait(5, number)
        assert gpu.stream.cache_info().currsize == driver.KEPT_STREAMS
    """
    _, log = run(library, tmp_path, script, package)
    numbers = [int(line.split()[1], 16) for line in log if line.startswith("record")]
    assert numbers == [*range(100, 101 + drivers.KEPT_STREAMS), 100]


def test_results_on_the_gpu(library, tmp_path, package):
    script = """
        import gc
        fn = compile(scale, target="cuda")
        class There:
            def __init__(self, values):
                self.values = values
                place = values.__array_interface__["data"]
                self.__cuda_array_interface__ = dict(
                    shape=values.shape, typestr=values.dtype.str, data=place, version=3)
        y = fn(There(x), **scalars)
        print(type(y).__name__, y.__dlpack_device__(), np.array_equal(y.numpy(), x * 2 + 3.5))
        z = fn(y, **scalars)
        print(np.array_equal(z, (x * 2 + 3.5) * 2 + 3.5))
        out = There(np.zeros_like(x))
        print(fn(y, out=out, **scalars) is out, np.array_equal(out.values, z.numpy()))
    """
    out, _ = run(library, tmp_path, script, package)
    assert out == ["DeviceArray (2, 0) True", "True", "True True"]


def test_a_gpu_without_memory_pools(library, tmp_path, package):
    script = """
        fn = compile(scale, target="cuda")
        print(np.array_equal(fn(x, **scalars), x * 2 + 3.5))
    """
    out, log = run(library, tmp_path, script, package, FAKE_CUDA_NO_POOLS="1")
    assert out == ["True"]
    assert log.count("allocate 60") == 2
    assert log.count("free") == 2


def test_the_pool_keeps_a_share_of_the_memory(library, tmp_path, package):
    _, log = run(library, tmp_path, "compile(scale, target='cuda')(x, **scalars)", package)
    assert [line for line in log if line.startswith("pool")] == [f"pool 0xb 4 {2 << 30}"]


def test_a_driver_older_than_the_compiler(library, tmp_path, package):
    script = """
        try:
            compile(scale, target="cuda")
        except ln.CompileError as error:
            print(error)
    """
    (out,), _ = run(library, tmp_path, script, package, FAKE_CUDA_VERSION="11080")
    assert "this driver is too old for: it supports CUDA 11.8; update the driver" in out


@pytest.fixture
def gpu(monkeypatch):
    """A GPU for packages that are made up."""
    handles = SimpleNamespace(
        cu=None, core=SimpleNamespace(Stream=SimpleNamespace(from_handle=int))
    )
    monkeypatch.setattr(drivers, "open_device", lambda: (None, handles))
    for name in ("pycuda", "pycuda.driver"):
        monkeypatch.setitem(sys.modules, name, None)
    return monkeypatch


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("raise ImportError('libcurand.so.10: cannot\\n open it')",
         "ImportError: libcurand.so.10: cannot open it"),
        ("raise RuntimeError", "RuntimeError"),
        ("def init(): raise RuntimeError('cuInit failed: no device')",
         "RuntimeError: cuInit failed: no device"),
    ],
)  # fmt: skip
def test_a_pycuda_that_does_not_work_is_passed_over(text, found, gpu, tmp_path, caplog):
    (tmp_path / "pycuda").mkdir()
    (tmp_path / "pycuda" / "__init__.py").write_text("")
    (tmp_path / "pycuda" / "driver.py").write_text(text)
    gpu.delitem(sys.modules, "pycuda")
    gpu.delitem(sys.modules, "pycuda.driver")
    gpu.syspath_prepend(str(tmp_path))
    assert type(drivers._open()).__name__ == "Driver"
    assert caplog.messages == [
        f"kernels are launched by cuda-core: pycuda is installed but does not work ({found})"
    ]


@pytest.mark.parametrize(
    ("text", "found", "told"),
    [
        ("raise OSError('libnvJitLink.so.13: no such file')",
         "the package cuda-core cannot be imported (libnvJitLink.so.13: no such file)", True),
        ("raise ModuleNotFoundError('no module named cuda.pathfinder')",
         "the package cuda-core cannot be imported (no module named cuda.pathfinder)", False),
        ("__version__ = '0.7.0'", "cuda-core is 0.7.0, older than 1.1", False),
        ("__version__ = '1.0.1'", "cuda-core is 1.0.1, older than 1.1", False),
    ],
)  # fmt: skip
def test_without_a_cuda_core_that_works_there_is_no_gpu(
    text, found, told, monkeypatch, tmp_path, caplog
):
    cuda = pytest.importorskip("cuda")
    (tmp_path / "core").mkdir()
    (tmp_path / "core" / "__init__.py").write_text(text)
    monkeypatch.setattr(cuda, "__path__", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "cuda.core", raising=False)
    monkeypatch.delattr(cuda, "core", raising=False)
    monkeypatch.setattr(drivers, "_load", lambda: None)
    with pytest.raises(CompileError, match=f"^the GPU: {re.escape(found)}$"):
        drivers.open_device()
    monkeypatch.delitem(sys.modules, "cuda.core", raising=False)
    assert caplog.messages == [f"no GPU is used: {found}"] * told


def test_a_gpu_that_the_driver_refuses_is_none(gpu):
    def refuse():
        raise LaunchError("the CUDA driver", "CUDA_ERROR_DEVICE_UNAVAILABLE: busy")

    gpu.setattr(drivers, "_found", [])
    gpu.setattr(drivers, "_obstacle", [])
    gpu.setattr(drivers, "_open", refuse)
    assert drivers.obstacle() == "the CUDA driver: CUDA_ERROR_DEVICE_UNAVAILABLE: busy"


def test_without_a_driver(tmp_path):
    """Where NVIDIA's driver is missing, a sentence says so."""
    reason = drivers.obstacle()
    if reason is None:
        pytest.skip("this machine has a GPU")
    assert reason in ("no NVIDIA driver was found", "no GPU was found") or "cuda" in reason


# Arguments


def test_arguments_have_the_types_of_the_signature():
    assert type(scalar_argument(True, dtypes.bool_)) is ctypes.c_bool
    assert scalar_argument(-1, dtypes.int64).value == -1
    assert scalar_argument(1.5, dtypes.float64).value == 1.5
    assert scalar_argument(0.5, dtypes.float16).value == 0x3800
    assert scalar_argument(0.5, dtypes.bfloat16).value == 0x3F00


def test_packed_arguments_lie_at_multiples_of_their_size():
    arguments = [
        ctypes.c_bool(True), ctypes.c_void_p(0x1122), ctypes.c_uint16(7), ctypes.c_float(1.0),
        ctypes.c_int64(-1), ctypes.c_int32(3),
    ]  # fmt: skip
    packed = pack(arguments)
    assert packed == (
        b"\x01" + bytes(7) + b"\x22\x11" + bytes(6) + b"\x07\x00" + bytes(2) + b"\x00\x00\x80\x3f"
        + b"\xff" * 8 + b"\x03\x00\x00\x00"
    )  # fmt: skip
    assert pack([]) == b""


# DLPack, on arrays of the host: the protocol is the same


class Lent:
    """An array that speaks DLPack as a GPU's would."""

    def __init__(self, array, versioned):
        self.array, self.versioned, self.streams = array, versioned, []

    def __dlpack__(self, stream=None, **version):
        if version and not self.versioned:
            raise TypeError("no max_version")
        self.streams.append(stream)
        return self.array.__dlpack__(**version)


@pytest.mark.parametrize("versioned", [False, True])
def test_arrays_are_taken(versioned):
    array = np.arange(12, dtype=np.float32).reshape(3, 4)[:, ::2]
    lent = Lent(array, versioned)
    found = dlpack.take(lent, 0)
    assert (found.address, found.shape, found.strides) == (array.ctypes.data, (3, 2), (4, 2))
    assert (found.dtype, found.read_only) == (np.float32, False)
    dlpack.take(lent, 77)
    assert lent.streams == [1, 77]


def test_read_only_arrays_say_so():
    array = np.arange(3)
    array.flags.writeable = False
    assert dlpack.take(Lent(array, True), 0).read_only


@pytest.mark.parametrize(
    "dtype", ["bool", "int32", "int64", "float16", "float32", "float64", "uint8", "complex64"]
)
def test_types_are_taken(dtype):
    assert dlpack.take(Lent(np.zeros(2, dtype), True), 0).dtype == np.dtype(dtype)


@pytest.mark.parametrize("dtype", [d for d in dtypes.ALL if d not in ML_TYPES], ids=str)
def test_arrays_are_given(dtype, monkeypatch):
    monkeypatch.setattr(dlpack, "CUDA", dlpack.HOST)
    array = np.arange(6).reshape(2, 3).astype(dtype.numpy)
    before = len(dlpack._given)

    class Given:
        def __dlpack_device__(self):
            return (dlpack.HOST, 0)

        def __dlpack__(self, **_):
            return dlpack.give(array.ctypes.data, array.shape, dtype, 0, array)

    taken = np.from_dlpack(Given())
    np.testing.assert_array_equal(taken, array)
    assert np.shares_memory(taken, array)
    assert len(dlpack._given) == before + 1
    del taken
    gc.collect()
    assert len(dlpack._given) == before


@pytest.mark.parametrize("dtype", ML_TYPES, ids=str)
def test_types_that_numpy_lacks_are_given_under_their_own_code(dtype):
    code = {"bfloat16": 4, "float8_e4m3fn": 10, "float8_e5m2": 12}[dtype.name]
    assert dlpack.element_code(dtype) == (code, 8 * dtype.size)
    assert dlpack._numpy_type(dlpack._Type(code, 8 * dtype.size, 1)) == dtype.numpy


def test_a_capsule_that_nobody_takes_lets_go(monkeypatch):
    before = len(dlpack._given)
    capsule = dlpack.give(0, (), dtypes.bfloat16, 0, None)
    assert len(dlpack._given) == before + 1
    del capsule
    gc.collect()
    assert len(dlpack._given) == before
