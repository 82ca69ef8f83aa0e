"""What a type checker says of calls: wrong settings are errors, and the list of settings is the configuration's."""

from __future__ import annotations

import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from typing import Literal, get_args, get_origin, get_type_hints

import pytest

from spark_lease.config.settings import SETTINGS
from spark_lease.config.sources import configure
from spark_lease.guard.typed import Settings

CALLS = """
from spark_lease import Lease, current_lease, hold_lease, leased

with hold_lease("n", url="local", lease_duration=60, if_held="skip", on_lost=print) as lease:
    epoch: int = lease.check()
    {call}

@leased("n", keeper="thread")
def main(lease: Lease) -> str:
    return lease.name

name: str = main()
"""
HINTS = get_type_hints(Settings)


def test_the_settings_are_those_of_the_configuration() -> None:
    assert list(HINTS) == [key for key in SETTINGS if key != "name"]


@pytest.mark.parametrize("key", [key for key in HINTS if hasattr(SETTINGS[key]["parse"], "words")])
def test_the_words_of_a_choice_are_those_of_the_configuration(key: str) -> None:
    assert get_args(HINTS[key]) == SETTINGS[key]["parse"].words


def test_what_fits_the_types_is_taken() -> None:
    for key, hint in HINTS.items():
        for each in get_args(hint) or (hint,):
            if get_origin(each) is Literal or isinstance(each, str):
                for word in get_args(each) or (each,):
                    configure(name="n", **{key: word})


@pytest.mark.parametrize(
    ("call", "says"),
    [
        ("pass", ""),
        ('hold_lease("n", acquire_timeout="ten")', 'Argument "acquire_timeout" to "hold_lease" has incompatible type'),
        ('hold_lease("n", lease_durtion=4)', 'Unexpected keyword argument "lease_durtion" for "hold_lease"'),
        ('hold_lease("n", if_held="skipp")', 'Argument "if_held" to "hold_lease" has incompatible type'),
        ('leased("n", lease_durtion=4)', "No overload variant of"),
    ],
)
def test_a_wrong_setting_is_an_error_for_mypy(tmp_path: Path, call: str, says: str) -> None:
    # A name of its own: to mypy's cache, files of one name, size and second are one file.
    job = tmp_path / f"job_{sha256(call.encode()).hexdigest()[:8]}.py"
    job.write_text(CALLS.format(call=call))
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path.parent / "mypy"), job.name]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode == 0) == (not says), done.stdout
    assert says in done.stdout
