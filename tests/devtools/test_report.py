"""`loopnest report`: pages that stand alone, and work in a browser by pointer and by keyboard."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from helpers.command_line import ROOT, SOFTMAX, call
from loopnest.base.errors import ScheduleError
from loopnest.facade import kernel_class

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)
PARTS = ["Math", "Domains", "Nest", "Boxes", "Tiles", "Passes", "Code", "Profile", "Why", "Proof"]


class Balanced(HTMLParser):
    """Reads a page; tags must close in the order in which they open."""

    OPEN = frozenset({"meta", "input", "br"})

    def __init__(self) -> None:
        super().__init__()
        self.around: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        known = dict(attrs)
        self.ids += [known["id"] or ""] if "id" in known else []
        self.links += [str(known[key]) for key in ("src", "href") if key in known]
        if tag not in self.OPEN:
            self.around.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.around.pop() == tag


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("report") / "two.html"
    found = call("report", f"{SOFTMAX}:softmax@gpu", "--beside", "gpu_warp", "-o", str(path))
    assert found.exit_code == 0, found.output
    size = path.stat().st_size / 1e6
    assert found.output.endswith(f"{path}: {size:.1f} MB about softmax@gpu and softmax@gpu_warp\n")
    return path.read_text("utf-8")


def test_the_page_stands_alone(page: str) -> None:
    reader = Balanced()
    reader.feed(page)
    assert reader.around == []
    assert reader.links == []
    assert len(reader.ids) == len(set(reader.ids))
    assert "@import" not in page
    assert not re.findall(r"url\(", page)


def test_it_shows_both_schedules(page: str) -> None:
    assert page.count("<h2>softmax@gpu ") == page.count("<h2>softmax@gpu_warp ") == len(PARTS)
    assert page.count("proved for all sizes") == 2
    assert page.count("must move: ratio") == 2
    assert page.count("<summary>CUDA</summary>") == 2
    for name in ("split", "barriers", "renumber"):
        assert page.count(f'data-name="{name}"') in (0, 2)
    assert '<b data-t="largest_acc">largest_acc</b>[0] = -inf' in page
    assert '<span class="added">' in page


def test_the_page_of_gemm_is_small(tmp_path: Path) -> None:
    path = tmp_path / "gemm.html"
    found = call("report", str(ROOT / "kernels" / "gemm.py") + ":gemm@gpu_async", "-o", str(path))
    assert found.exit_code == 0, found.output
    text = path.read_text("utf-8")
    assert len(text) < 2e6
    assert text.count("stages over the iterations of") == 2
    assert "Too large" not in text


SCRIPT = """
<script>
const told = { errors: window.faults, shown: [] };
const visible = () => tabs.filter(
  (tab) => !document.getElementById(tab.getAttribute("aria-controls")).hidden
).map((tab) => tab.textContent);
told.first = visible();
for (const tab of tabs) { tab.click(); told.shown.push(visible().join()); }
tabs[0].click();
const press = (key) => document.activeElement.dispatchEvent(
  new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
press("ArrowRight"); press("ArrowRight"); told.right = visible();
press("End"); told.end = visible(); press("ArrowRight"); told.round = visible();
const name = document.querySelector("#panel-Nest b[data-t=total_acc]");
name.dispatchEvent(new MouseEvent("mouseover", { bubbles: true }));
const lit = [...document.querySelectorAll(".lit")];
told.names = [...new Set(lit.map((one) => one.dataset.t))];
told.places = [...new Set(lit.map((one) => one.closest("[role=tabpanel]").id))];
tabs[2].click();
document.querySelectorAll("#panel-Nest li")[5].focus();
told.focused = document.querySelectorAll(".lit").length > 0;
const slider = document.querySelector("[data-stages]");
slider.value = 0; slider.dispatchEvent(new Event("input"));
told.stage = document.getElementById("stage-name-1").textContent;
told.stages = document.querySelectorAll('[data-stage="1"]:not([hidden])').length;
told.wide = document.documentElement.scrollWidth <= window.innerWidth;
const result = document.createElement("pre");
result.id = "told"; result.textContent = JSON.stringify(told); document.body.append(result);
</script>
"""
FAULTS = "<script>window.faults = []; window.onerror = (text) => window.faults.push(text);</script>"


@pytest.mark.skipif(not BROWSER, reason="no Chromium is installed")
@pytest.mark.parametrize("size", ["1400,900", "500,900"])
def test_it_works_in_a_browser(page: str, tmp_path: Path, size: str) -> None:
    path = tmp_path / "page.html"
    path.write_text(
        page.replace("<head>", f"<head>{FAULTS}").replace("</body>", f"{SCRIPT}</body>")
    )
    command = [BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", f"--window-size={size}",
               f"--user-data-dir={tmp_path / 'profile'}", "--enable-logging=stderr", "--dump-dom",
               path.as_uri()]  # fmt: skip
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    found = re.search(r'<pre id="told">(.*?)</pre>', ran.stdout, re.DOTALL)
    assert found is not None, ran.stderr[-2000:]
    told = json.loads(found[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
    assert told["errors"] == []
    assert "CONSOLE" not in ran.stderr
    assert told["first"] == ["Math"]
    assert told["shown"] == PARTS
    assert (told["right"], told["end"], told["round"]) == (["Nest"], ["Proof"], ["Math"])
    assert told["names"] == ["total_acc"]
    assert {"panel-Nest", "panel-Code"} <= set(told["places"])
    assert told["focused"]
    assert told["stages"] == 1
    assert told["stage"]
    assert told["wide"]


@pytest.mark.parametrize("named", [":softmax@gpu", ":softmax", ""])
def test_a_schedule_that_there_is_not(named: str) -> None:
    found = call("report", f"{SOFTMAX}{named}", "--beside", "fast")
    assert found.exit_code == 1
    assert re.fullmatch(
        r"error: softmax@fast: kernel softmax has no schedule 'fast'; its schedules are [\w, ]+\n",
        found.output,
    )


@pytest.mark.parametrize(
    ("name", "why"),
    [("none/page.html", "No such file or directory"), (".", "Is a directory")],
)
def test_a_page_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, why: str
) -> None:
    """It is said before the kernel is lowered."""
    monkeypatch.setattr(kernel_class, "lower", None)
    path = tmp_path / name
    found = call("report", f"{SOFTMAX}:softmax@cpu", "-o", str(path))
    assert found.exit_code == 1
    assert found.output == f"error: {path}: it cannot be written: {why}\n"
    assert not list(tmp_path.iterdir())


def test_a_place_that_was_looked_at_is_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: object, **__: object) -> None:
        raise ScheduleError("softmax@cpu", "stop")

    monkeypatch.setattr(kernel_class, "lower", stopped)
    old, new, link = [tmp_path / name for name in ("old.html", "new.html", "link.html")]
    old.write_text("a page")
    link.symlink_to(tmp_path / "gone.html")
    for path in (old, new, link):
        found = call("report", f"{SOFTMAX}:softmax@cpu", "-o", str(path))
        assert found.output == "error: softmax@cpu: stop\n"
    assert sorted(tmp_path.iterdir()) == [link, old]
    assert old.read_text() == "a page"
    assert link.is_symlink()


def test_a_device_that_there_is_not(tmp_path: Path) -> None:
    found = call("report", f"{SOFTMAX}:softmax@cpu", "--device", "9000", "-o", f"{tmp_path}/a.html")
    assert (found.exit_code, found.output) == (
        1,
        "error: report(device='9000'): no device is called '9000'; "
        "use one of A100, H100, H200, B200, RTX 4090\n",
    )
    assert not [*tmp_path.iterdir()]


def test_jinja2_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    found = call("report", f"{SOFTMAX}:softmax@cpu")
    assert found.exit_code == 1
    assert "report: jinja2 is not installed; pip install 'loopnest[report]'" in found.output
