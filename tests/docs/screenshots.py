"""Makes the screenshots of the documentation from real runs: the history page, `status --watch`, and the demo.
Folder and name of the machine that makes them are replaced.

make docs-pictures                  two minutes; needs Chromium and Java
"""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import time
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.docs.snippets import DOCS
from tests.services.browser import MISSING, installed, running_browser
from tests.support.command import COMMAND

ROOT, PICTURES = DOCS.parent, DOCS / "_static"
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")
_STYLE = """<style>
rect { fill: #0d1117 } text { font: 13px ui-monospace, Menlo, Consolas, monospace; fill: #e6edf3; white-space: pre }
.later { opacity: 0; animation: appear 0.01s linear forwards }
@keyframes appear { to { opacity: 1 } }
@media (prefers-reduced-motion: reduce) { .later { animation-delay: 0s !important } }
</style>"""


def terminal(lines: list[str], at: list[float] | None = None) -> str:
    """Lines as a terminal shows them; with `at`, each appears so many seconds after the picture."""
    width, height = 24 + 7.9 * max(map(len, lines)), 24 + 19 * len(lines)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img">'
    texts = []
    for number, line in enumerate(lines):
        later = f' class="later" style="animation-delay: {at[number]:.1f}s"' if at else ""
        texts.append(f'<text x="12" y="{28 + 19 * number}"{later} xml:space="preserve">{escape(line)}</text>')
    return "\n".join([head, _STYLE, f'<rect width="{width:g}" height="{height:g}" rx="8"/>', *texts, "</svg>\n"])


def recorded(words: list[str], environment: dict[str, str], until: float | None = None) -> list[tuple[float, str]]:
    """What a command writes to a terminal of its own: seconds since its start, and the text. It ends after `until`."""
    pid, terminal = pty.fork()
    if not pid:
        os.execvpe(words[0], words, environment | {"COLUMNS": "110", "LINES": "30", "TERM": "xterm"})
    start, said = time.monotonic(), []
    try:
        while piece := os.read(terminal, 65536):
            said.append((time.monotonic() - start, piece.decode(errors="replace")))
            if until and time.monotonic() - start > until:
                os.kill(pid, signal.SIGINT)
    except OSError:  # the terminal's other end was closed
        pass
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code not in (0, 130):
        sys.exit(f"{words} ended with {code}: {said[-1:]}")
    return said


def history(environment: dict[str, str], folder: Path) -> None:
    for holder, site, command in [
        ("paris-1", "paris", "sleep 3"),
        ("lyon-1", "lyon", "sleep 2; exit 3"),
        ("paris-1", "paris", "sleep 2; kill -9 $$"),
        ("lyon-1", "lyon", "sleep 4"),
    ]:
        words = ["run", "--lease", "nightly", "--holder", holder, "--site", site, "--", "sh", "-c", command]
        subprocess.run([COMMAND, *words], env=environment, capture_output=True)
        time.sleep(1)  # so that the page shows a gap
    page = folder / "history.html"
    subprocess.run(
        [COMMAND, "history", "nightly", "--html", str(page)], env=environment, check=True, capture_output=True
    )
    page.write_text(elsewhere(page.read_text(), folder))
    with running_browser(installed() or sys.exit(MISSING)) as browser:
        for scheme in ("light", "dark"):
            view = browser.new_context(viewport={"width": 1000, "height": 560}, color_scheme=scheme).new_page()
            view.goto(page.as_uri())
            view.screenshot(path=str(PICTURES / f"history-{scheme}.png"), full_page=True)


def elsewhere(text: str, folder: Path) -> str:
    return re.sub(rf"\b{re.escape(os.uname().nodename)}\b", "etl", text.replace(str(folder), "/home/etl"))


def watch(environment: dict[str, str], folder: Path) -> None:
    words = [COMMAND, "run", "--lease", "nightly", "--holder", "paris-1", "--", "sleep", "30"]
    with subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as job:
        time.sleep(2)  # until it holds the lease, more or less: this is a picture
        said = "".join(text for _, text in recorded([COMMAND, "status", "--watch"], environment, until=3))
        job.terminate()
    screen = next(each for each in reversed(said.split("\x1b[H\x1b[J")) if "LEASE" in each)
    (PICTURES / "watch.svg").write_text(terminal(["$ spark-lease status --watch", *_lines(elsewhere(screen, folder))]))


def animation(name: str, shown: str, words: list[str], environment: dict[str, str], *, faster: float) -> None:
    """What a command prints, every line at its time."""
    lines, at, unfinished = [f"$ {shown}"], [0.0], ""
    for second, text in recorded(words, environment):
        *ended, unfinished = (unfinished + elsewhere(text, ROOT)).split("\n")
        for line in ended:
            line = _ESCAPES.sub("", line.rstrip("\r").rpartition("\r")[2])  # what was written over is gone
            if line or lines[-1]:
                lines.append(line)
                at.append(second / faster)
    (PICTURES / f"{name}.svg").write_text(terminal(lines, at))


def _lines(text: str) -> list[str]:
    return _ESCAPES.sub("", text).rstrip("\n").split("\n")


if __name__ == "__main__":
    with TemporaryDirectory() as home:
        url = f"sqlite:///{home}/leases.db"
        environment = {**os.environ, "HOME": home, "SPARK_LEASE_URL": url}
        history(environment, Path(home))
        watch(environment, Path(home))
        animation("demo", "spark-lease demo", [COMMAND, "demo"], environment, faster=10)
    drill = [sys.executable, "-m", "jobs.drill", "--days", "30"]
    animation("drill", "make run ARGS='--days 30'", drill, {**os.environ}, faster=20)
    print("wrote", *sorted(each.name for each in PICTURES.iterdir()))
