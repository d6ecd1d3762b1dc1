"""What `import loopnest` gives, and what it costs."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import loopnest as ln
import loopnest.graph as G
from loopnest.facade import language

NAMES = (
    *("add", "sub", "mul", "div", "pow", "mod", "neg", "abs", "exp", "exp2", "log", "log2"),
    *("log1p", "sqrt", "rsqrt", "reciprocal", "sin", "cos", "tan", "tanh", "sigmoid", "erf"),
    *(
        "relu",
        "gelu",
        "silu",
        "floor",
        "ceil",
        "round",
        "trunc",
        "maximum",
        "minimum",
        "eq",
        "ne",
        "lt",
    ),
    *("le", "gt", "ge", "logical_and", "logical_or", "logical_not", "where", "clamp", "fma"),
    *("cast", "isnan", "iota", "full", "sum", "prod", "max", "min", "any", "all", "mean", "var"),
    *("welford", "broadcast", "permute", "squeeze", "expand", "matmul", "evaluate"),
    *("Fusion", "TensorView"),
    *("bool", "int32", "int64", "float16", "bfloat16", "float32", "float64", "IterDomain"),
    *("TensorDomain", "IterKind", "ParallelType", "Swizzle", "LOCAL", "SHARED", "GLOBAL"),
    *("LoopnestError", "ScheduleError", "LoweringError", "CompileError", "LaunchError"),
    *("KernelFault", "VerifyError", "NotSupported", "InternalError", "DefinitionError"),
)


@pytest.mark.parametrize("name", NAMES)
def test_name_is_public(name: str) -> None:
    assert name in ln.__all__
    assert name in dir(ln)
    assert not isinstance(getattr(ln, name), ModuleType)


def test_every_public_name_exists() -> None:
    assert len(set(ln.__all__)) == len(ln.__all__)
    for name in ln.__all__:
        getattr(ln, name)


def declared(module: ModuleType) -> dict[str, str]:
    """Return the module of each name that only type checkers import, as `module` has it."""
    assert module.__file__ is not None
    tree = ast.parse(Path(module.__file__).read_text())
    blocks = {ast.unparse(node.test): node for node in tree.body if isinstance(node, ast.If)}
    block = blocks["TYPE_CHECKING"]
    statements = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    assert statements == block.body
    assert not any(alias.asname for node in statements for alias in node.names)
    return {alias.name: str(node.module) for node in statements for alias in node.names}


def test_lazy_names_are_what_type_checkers_see() -> None:
    """Each loaded first of all from the place that is declared, none at once."""
    of_tools = declared(ln)
    assert of_tools.pop("*") == language.__name__
    code = f"""
import loopnest as ln
from importlib import import_module
declared = {of_tools | declared(language)}
assert set(ln.__all__) - set(vars(ln)) == set(declared)
for name, module in declared.items():
    loaded = getattr(ln, name)
    assert loaded is getattr(import_module(module), name), name
    assert vars(ln)[name] is loaded, name
"""
    python(code)


def test_the_language_has_no_name_of_the_tools() -> None:
    assert set(ln.__all__) - set(language.__all__) == set(declared(ln)) - {"*"}
    for name in language.__all__:
        assert getattr(ln, name) is getattr(language, name)
    with pytest.raises(AttributeError, match=r"^module 'loopnest' has no attribute 'profile'$"):
        language.profile  # noqa: B018


def test_public_functions_say_what_they_do() -> None:
    for name in ln.__all__:
        value = getattr(ln, name)
        if callable(value):
            assert value.__doc__, name
            assert value.__name__ == name


def test_unknown_name() -> None:
    with pytest.raises(AttributeError, match=r"^module 'loopnest' has no attribute 'nothing'$"):
        ln.nothing  # noqa: B018


def python(code: str) -> str:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_no_module_has_the_name_of_a_public_function() -> None:
    """Loading the module would set it as the attribute in place of the function."""
    assert ln.__file__ is not None
    package = Path(ln.__file__).parent
    modules = {path.stem for path in package.rglob("*.py")}
    modules |= {path.parent.name for path in package.rglob("__init__.py") if path.parent != package}
    assert modules & {*ln.__all__, *G.__all__} == {"kir"}  # which is a module for users, too


def test_no_two_modules_or_classes_have_one_name() -> None:
    assert ln.__file__ is not None
    paths = [p for p in Path(ln.__file__).parent.rglob("*.py") if p.name != "__init__.py"]
    names = [path.stem for path in paths]
    assert sorted(names) == sorted(set(names))
    classes = [
        node.name
        for path in paths
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef)
    ]
    assert sorted(classes) == sorted(set(classes))


def test_import_is_light() -> None:
    heavy = ("ml_dtypes", "islpy", "rich", "click", "cuda", "hypothesis", "pytest")
    code = f"import sys, loopnest; print([m for m in {heavy} if m in sys.modules])"
    assert python(code) == "[]"


def test_import_loads_what_every_program_needs_alone() -> None:
    """Where Python cannot keep what it has compiled, each module costs some milliseconds."""
    ours = "sorted(m for m in sys.modules if m.startswith('loopnest.'))"
    loaded = "['loopnest.base', 'loopnest.base.errors', 'loopnest.facade', "
    loaded += "'loopnest.facade.language', 'loopnest.scalar', 'loopnest.scalar.dtypes', "
    loaded += "'loopnest.scalar.enums']"
    assert python(f"import sys, loopnest; dir(loopnest); print({ours})") == loaded
    code = f"import sys, loopnest as ln; ln.Fusion; ln.exp; print({ours})"
    assert "loopnest.tensor.ops.recurrences" not in python(code)


def test_a_name_of_another_package_leads_to_ours() -> None:
    for ours in ln._CALLED_ELSEWHERE.values():
        assert ours in ln.__all__
    with pytest.raises(AttributeError, match=r"no attribute 'clip'; it is called ln\.clamp here$"):
        ln.clip  # noqa: B018
