"""The page in a real browser: opened from a file, sorted, pointed at, two runs compared; and what it is made of."""

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from compare_runs import WriteRun, counts
from eyas.compare.page import as_html, thinned
from eyas.compare.read import read_entries
from eyas.compare.table import compare_entries

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")


@pytest.fixture
def page(write_run: WriteRun, tmp_path: Path) -> Path:
    """Six runs over two keys, one of another verifier, and a job that failed."""
    for number, (lr, unroll, share) in enumerate(
        [("3e-4", 2, 0.2), ("1e-3", 2, 0.3), ("3e-3", 2, 0.25), ("3e-4", 3, 0.3), ("1e-3", 3, 0.42), ("3e-3", 3, 0.33)]
    ):
        options = [f"optimizer.lr={lr}", f"training.unroll_steps={unroll}"]
        write_run(
            f"s/lr_{lr}-unroll_{unroll}",
            *options,
            measured=counts(number, share),
            cost={"tokens": 10_000 * (1 + number)},
        )
    write_run("other/tiny", "verifier=tiny_llama", measured=counts(9, 0.1), weights="0ther")
    jobs = [
        {"name": "s/bad", "overrides": {"optimizer.lr": "1"}, "state": "failed", "reason": "step 3: loss <nan> & more"}
    ]
    (tmp_path / "outputs/s/sweep.json").write_text(json.dumps({"name": "s", "jobs": jobs}))
    file = tmp_path / "report" / "page.html"
    file.parent.mkdir()
    file.write_text(as_html(compare_entries(read_entries([str(tmp_path / "outputs")])), file))
    return file


class _Links(HTMLParser):
    """Everything that a page refers to."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value for name, value in attrs if name in ("src", "href") and value]


def test_the_page_needs_nothing_else_and_links_to_drafts_that_are_there(page: Path) -> None:
    text, links = page.read_text(), _Links()
    links.feed(text)
    assert len(links.found) == 7
    for link in links.found:
        assert (page.parent / link / "eyas.json").exists(), link
        assert not link.startswith("/")
    assert not re.search(r"@import|url\(|https?://(?!www\.w3\.org/2000/svg)", text)
    assert "step 3: loss &lt;nan&gt; &amp; more" in text
    assert len(text) < 200_000


def test_a_page_of_200_runs_is_under_2_mb(write_run: WriteRun, tmp_path: Path) -> None:
    directory = write_run("one", measured=counts(1, 0.3))
    head, *rows = (directory / "metrics.csv").read_text().splitlines()
    lines = [f"{step},{','.join(row.split(',')[1:])}" for step in range(700) for row in rows[:2]]
    (directory / "metrics.csv").write_text("\n".join([head, *lines]))
    for number in range(199):
        shutil.copytree(directory, tmp_path / "outputs" / f"run_{number}")
    file = tmp_path / "page.html"
    text = as_html(compare_entries(read_entries([str(tmp_path / "outputs")])), file)
    assert len(text.encode()) < 2_000_000


def test_a_curve_keeps_its_ends() -> None:
    points = [(float(step), float(step)) for step in range(1001)]
    few = thinned(points, 30)
    assert (len(few), few[0], few[-1]) == (30, points[0], points[-1])


def browse(*options: str) -> str:
    """Run Chromium to its end."""
    done = subprocess.run(
        [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", *options],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def scripted(page: Path, script: str) -> Path:
    """The page with a visitor in it, who acts when it is drawn, and writes down what went wrong."""
    copy = page.with_name("visited.html")
    visitor = f"""<script>
    const said = {{errors: []}};
    const tell = () => {{ document.body.dataset.said = JSON.stringify(said); }};
    const texts = selector => [...document.querySelectorAll(selector)].map(it => it.textContent.trim());
    const point = (x, y) => {{
      const at = document.elementFromPoint(x, y); // what a mouse would be over
      at.dispatchEvent(new PointerEvent("pointermove", {{clientX: x, clientY: y, bubbles: true}}));
    }};
    addEventListener("load", () => {{ try {{ {script} }} catch (error) {{ said.errors.push(String(error)); }} tell(); }});
    </script>"""
    text = page.read_text()
    errors = '<script>window.failed = []; addEventListener("error", it => failed.push(it.message));</script>'
    copy.write_text(text.replace("<head>", f"<head>{errors}").replace("</body>", f"{visitor}</body>"))
    return copy


VISIT = """
    said.headline = document.querySelector("h1").textContent;
    const head = [...document.querySelectorAll("table.ranked thead")][0];
    const click = label => [...head.querySelectorAll("button")].find(it => it.textContent === label).click();
    const order = () => texts("section:first-of-type table.ranked tbody th");
    said.byRank = order();
    click("lr"); said.byLr = order(); said.sort = head.querySelector("[aria-sort=descending] button").textContent;
    click("lr"); said.byLrUp = order();
    click("run"); said.byName = order();
    click("#");
    said.charts = [...document.querySelectorAll("section:first-of-type figcaption")].map(it => it.firstChild.textContent);

    const curve = document.querySelector("#curves svg"); curve.scrollIntoView({block: "center"});
    const box = curve.getBoundingClientRect();
    point(box.left + box.width * 0.9, box.top + box.height * 0.3);
    const tip = document.getElementById("tip");
    said.tip = [tip.hidden, tip.innerText, document.querySelectorAll("svg.dimmed").length];
    document.querySelector("#curve").value = "train/loss";
    document.querySelector("#curve").dispatchEvent(new Event("change"));
    said.curve = texts("#curves figcaption")[0];
    const lines = () => document.querySelectorAll("#curves path.line").length;
    said.lines = [lines()];
    document.querySelector("#chips button").click(); said.lines.push(lines());
    document.querySelector("#chips button").click(); said.lines.push(lines());

    const select = (id, label) => {
      const it = document.getElementById(id);
      it.value = [...it.options].find(option => option.textContent === label).value;
      it.dispatchEvent(new Event("change"));
    };
    select("one", "s/lr_3e-4-unroll_2"); select("other", "s/lr_1e-3-unroll_3");
    said.differences = [...document.querySelectorAll("#differences tbody tr")].map(row => [...row.cells].map(it => it.textContent));
    document.getElementById("everything").click();
    said.everything = document.querySelectorAll("#differences tbody tr").length;
    said.errors.push(...failed);
    scrollTo(0, 0);
"""


@needs_chromium
def test_a_visit(page: Path) -> None:
    dom = browse("--window-size=1280,1400", "--virtual-time-budget=2000", "--dump-dom", scripted(page, VISIT).as_uri())
    found = re.search(r'data-said="([^"]*)"', dom)
    assert found, dom[-2000:]
    said: dict[str, Any] = json.loads(found[1].replace("&quot;", '"').replace("&lt;", "<").replace("&amp;", "&"))
    assert said["errors"] == []
    best = "s/lr_1e-3-unroll_3"
    assert said["headline"].startswith(f"{best} beats s/lr_")
    assert said["byRank"][0] == best
    assert len(said["byRank"]) == 6
    assert said["sort"] == "lr"
    assert [name.split("-unroll")[0] for name in said["byLr"]] == ["s/lr_3e-3"] * 2 + ["s/lr_1e-3"] * 2 + [
        "s/lr_3e-4"
    ] * 2
    assert said["byLrUp"] == said["byLr"][::-1] or said["byLrUp"][0].startswith("s/lr_3e-4")
    assert said["byName"] == sorted(said["byRank"])
    assert said["charts"] == ["Accepted at position", "Against training.unroll_steps", "Against optimizer.lr"]
    hidden, tip, dimmed = said["tip"]
    assert not hidden
    assert "step 20" in tip
    assert "other/tiny" in tip
    assert dimmed >= 1
    assert said["curve"].startswith("loss per target, training")
    assert said["lines"] == [7, 6, 7]
    assert said["differences"][:2] == [["training.unroll_steps", "2", "3"], ["optimizer.lr", "0.0003", "0.001"]]
    assert said["everything"] > 150


@needs_chromium
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1280, "dark"), (700, "light"), (700, "dark")])
def test_it_is_drawn_at_both_widths_in_both_schemes(page: Path, tmp_path: Path, width: int, scheme: str) -> None:
    shot = tmp_path / f"{width}-{scheme}.png"
    dark = ["--blink-settings=preferredColorScheme=0"] if scheme == "dark" else []
    browse(f"--window-size={width},2600", *dark, f"--screenshot={shot}", page.as_uri())
    from matplotlib.image import imread

    pixels = imread(shot)
    assert pixels.shape[:2] == (2600, width)
    assert (pixels[5, 5, :3].mean() > 0.5) == (scheme == "light")
    assert (
        len({tuple(pixel) for pixel in pixels[::7, ::7, :3].reshape(-1, 3).round(1).tolist()}) > 15
    )  # not an empty page
