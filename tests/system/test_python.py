"""Python beside this program: where `sys.executable` is the program itself, it must not start copies of itself."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = f"""#!{sys.executable}
import os, sys
from pathlib import Path
with Path(__file__).with_name("starts").open("a") as starts:
    starts.write("started\\n")
sys.executable = __file__
from spark_lease import hold_lease
if os.environ.get("FROZEN"):
    sys.frozen = True
with hold_lease("n", url=f"sqlite:///{{__file__}}.db", lease_duration=6):
    print("worked")
"""


@pytest.mark.parametrize(("frozen", "starts"), [("", 2), ("1", 1)])
def test_a_program_that_is_its_own_python_works_once(tmp_path: Path, frozen: str, starts: int) -> None:
    program = tmp_path / "program"
    program.write_text(PROGRAM)
    program.chmod(0o755)
    environ = os.environ | {"FROZEN": frozen}
    done = subprocess.run([program], env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "worked\n"), done.stderr
    assert "cannot start the keeper process, renewing from threads instead" in done.stderr
    assert done.stderr.count("runs this program again: it ends here") == starts - 1
    assert (tmp_path / "starts").read_text().count("started") == starts
