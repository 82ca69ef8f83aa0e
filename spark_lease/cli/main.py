"""`spark-lease`: parses the command line, and imports of the rest only what the command needs."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from ..errors import SparkLeaseError
from .settings import USAGE, Parser, add_settings

_EXIT_CODES = """exit codes of run and submit:
  the command's own · 99 standby, never started · 75 lease lost while running · 69 lock store unreachable
  0 also: its run key is done already · 78 configuration · 64 usage · 127 no such command · 128+n ended by signal n"""

_ENDS = """exit codes:
  0 · 1 no such lease, or nothing of it · 69 lock store unreachable · 78 configuration, or not to be done · 64 usage

"""

_COMMANDS: dict[str, tuple[str, str, str]] = {
    "run": (
        "run a command while the lease is held",
        "spark_lease.cli.run:run",
        """examples:
  spark-lease run --lease nightly -- spark-submit jobs/flights.py
  spark-lease run --lease nightly --if-held skip --lease-duration 60 -- ./load.sh 2026-11-20
  spark-lease run --lease nightly --run-key 2026-11-20 -- ./load.sh 2026-11-20

"""
        + _EXIT_CODES,
    ),
    "submit": (
        "spark-submit an unmodified PySpark script, with the guard inside its driver",
        "spark_lease.cli.submit:submit",
        """examples:
  spark-lease submit --lease nightly -- --master 'local[2]' jobs/flights.py --days 3
  spark-lease submit --lease nightly --url postgresql://lease@db/ops -- --master yarn jobs/flights.py
  spark-lease submit --lease nightly --url … -- --master yarn --deploy-mode cluster jobs/flights.py

With --deploy-mode cluster a standby waits here, not in the cluster, and the outcome is read from beside the lease.
Ctrl-C does not end what the cluster runs.

"""
        + _EXIT_CODES,
    ),
    "demo": (
        "watch two take-overs on this machine: one master is killed, the next one frozen",
        "spark_lease.cli.demo:demo",
        """Two sites submit one small job to the Spark that is installed here, with a lease in a file of their own. It
takes about a minute and a half, needs Java and pyspark, and leaves nothing behind.

exit codes:
  0 · 1 it did not end as it has to · 78 no Spark, or no Java · 64 usage

examples:
  spark-lease demo
  spark-lease demo --folder /tmp/demo --json""",
    ),
    "status": (
        "who holds which lease",
        "spark_lease.cli.store:status",
        """SINCE is the time of the grant, LEFT until it runs out without a renewal; ? where one look at a store without
a clock cannot tell. IN DOUBT: not renewed for one and a half retry periods, those of this command's settings in
proportion to the duration in the record. Of one lease that is named, all that is known.

exit codes:
  0 · 1 no such lease, or a record that cannot be read · 69 lock store unreachable · 78 configuration · 64 usage

examples:
  spark-lease status
  spark-lease status nightly
  spark-lease status --wide
  spark-lease status nightly --json""",
    ),
    "watch": (
        "what becomes of leases: live in a terminal, else one line per change",
        "spark_lease.cli.watch:watch",
        """exit codes:
  130 ended by Ctrl-C · 1 there is no such lease · 69 lock store unreachable at the start (later it is a line) · 78, 64

examples:
  spark-lease watch
  spark-lease watch nightly --json --poll-period 0.5 >> changes.jsonl""",
    ),
    "doctor": (
        "is all there that a lease needs, here and in its store",
        "spark_lease.cli.doctor:doctor",
        """Each line is ok, warn or fail, with what to do. No lease is changed: what this user may do is tried under
another name in a transaction that is rolled back, or with a file that is removed; in a broker's table with no row.

exit codes:
  0 nothing fails · 1 something does, also a store that does not answer · 78 configuration · 64 usage

examples:
  spark-lease doctor --lease nightly
  spark-lease doctor --json""",
    ),
    "release": (
        "give a lease back in place of a holder that cannot",
        "spark_lease.cli.release:release",
        """A lease that has run out is freed. One that has not is taken from its holder if its name is typed, or given
by --yes: a master at work loses it at its next renewal and is ended, and nobody can take it before the moment at
which it would have run out. Where the store has no clock, the record is watched for its duration first, unless --yes.

exit codes:
  0 free, or free in the seconds that it says · 1 nothing was changed · 69 lock store unreachable, nobody knows
  78 configuration · 64 usage

examples:
  spark-lease release nightly --force
  spark-lease release nightly --force --yes nightly --json""",
    ),
    "runs": (
        "which run keys were begun, ended and done",
        "spark_lease.cli.store:runs",
        _ENDS + "examples:\n  spark-lease runs nightly\n  spark-lease runs nightly --json",
    ),
    "history": (
        "who held a lease when, and that no two did at one time",
        "spark_lease.cli.history:history",
        """exit codes:
  0 · 1 there is no such lease · 2 two held it at one time · 69 lock store unreachable · 78 configuration · 64 usage

examples:
  spark-lease history nightly
  spark-lease history nightly --since 7d --json
  spark-lease history nightly --since 2026-11-20T06:00 --html nightly.html""",
    ),
    "pause": (
        "keep every contender from taking a lease, for maintenance say",
        "spark_lease.cli.wishes:pause",
        """Its master keeps it, and works on until it ends; with --now it stops at its next renewal, and the command
returns once nobody has the lease, with exit code 99 if its master still renews after two lease durations (a broker
heeds no wishes). A job that starts while the lease is paused is a standby (exit 99, or waiting).

"""
        + _ENDS
        + """examples:
  spark-lease pause nightly --reason 'schema change'
  spark-lease pause nightly --reason 'schema change' --for 2h --now""",
    ),
    "resume": (
        "take back a pause or a transfer",
        "spark_lease.cli.wishes:resume",
        _ENDS + "examples:\n  spark-lease resume nightly",
    ),
    "transfer": (
        "have a lease taken by one holder, or one site, next",
        "spark_lease.cli.wishes:transfer",
        """The master finishes cleanly, or stops --within that time. Then only a contender whose holder, its label
(`--holder`) or its site (`--site`) is the one that is named takes the lease; after another --for, anybody.
With --wait the exit code is 99 if it was not taken by then; 78 also for somebody who is not known, without --anyway.

"""
        + _ENDS
        + """examples:
  spark-lease transfer nightly --to lyon
  spark-lease transfer nightly --to lyon --within 15m --for 10m --reason 'maintenance in paris' --wait""",
    ),
    "init": (
        "make the table of the leases, or add our columns to ActiveMQ's",
        "spark_lease.cli.store:init",
        _ENDS
        + """examples:
  spark-lease init --url postgresql://db/ops
  spark-lease init --url postgresql:// --print-sql""",
    ),
    "fence": (
        "tables that are written only under a lease",
        "spark_lease.cli.fence:fence",
        """A TABLE with a / in it is a Delta table, by its path or URL; any other is PostgreSQL's.

add: nobody writes to the TABLE of PostgreSQL who does not carry the newest epoch of the lease; each new master
     claims the Delta TABLE (what the lease has written to is added by itself)
drop: everybody may write to it again          list: the tables that are fenced
forget: the Delta TABLE is gone for good, or not to be claimed any more; without --on: clear the fence of the
     lease in the database, after the lease's own row was lost or restored and no master is at work

"""
        + _ENDS
        + """examples:
  spark-lease fence add --lease nightly --on public.flights --fence-url postgresql://etl@db/warehouse
  spark-lease fence add --lease nightly --on flights '"My Table"' --print-sql
  spark-lease fence add --lease nightly --on /lake/flights s3://lake/carriers
  spark-lease fence drop --on public.flights
  spark-lease fence list --json
  spark-lease fence forget --lease nightly""",
    ),
    "config": (
        "each setting, its value and where it came from",
        "spark_lease.cli.store:config",
        """exit codes:
  0 · 78 configuration · 64 usage

examples:
  spark-lease config --lease-duration 6
  spark-lease config --json""",
    ),
}


def parser() -> argparse.ArgumentParser:
    top = Parser(
        prog="spark-lease",
        description="Only one of several redundant Spark applications may write: leader election for PySpark jobs.",
        epilog="`spark-lease COMMAND --help` has examples and every setting.\n\n" + _EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--verbose", "-v", action="store_true", help="log every renewal")
    top.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, (meaning, _, examples) in _COMMANDS.items():
        command = commands.add_parser(
            name,
            help=meaning,
            description=meaning[0].upper() + meaning[1:] + ".",
            epilog=examples,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        _arguments_of(name, command)
    return top


def _arguments_of(name: str, command: argparse.ArgumentParser) -> None:
    if name in ("run", "submit"):
        command.usage = _usage(name)
        command.add_argument(
            "--ends-with",
            default="",
            metavar="PID",
            help="end when process PID ends, which started this command (Linux)",
        )
    if name == "submit":
        command.add_argument("--spark-submit", default="", metavar="FILE", help="the spark-submit to use")
    if name == "demo":
        command.add_argument(
            "--folder", metavar="DIR", help="keep what the two say, and what they write, in a new folder"
        )
    if name in ("status", "watch"):
        command.add_argument("leases", nargs="*", metavar="LEASE", help="default: all of them")
    if name == "status":
        command.add_argument("--wide", action="store_true", help="all that is known of each, in one wide table")
    if name == "release":
        command.add_argument("lease", nargs="?", metavar="LEASE")
        command.add_argument("--force", action="store_true", help="release it in place of its holder (required)")
        command.add_argument(
            "--yes", metavar="LEASE", help="its name again: release it even if it may not have run out"
        )
    if name in ("runs", "history"):
        command.add_argument("lease", nargs="?", metavar="LEASE")
    if name == "history":
        command.add_argument("--since", metavar="TIME", help="a date or time in UTC, or an age: 90m, 36h, 7d")
        command.add_argument("--html", metavar="FILE", help="write it as one page with a picture, for a browser")
    if name in ("pause", "resume", "transfer"):
        command.add_argument("lease", metavar="LEASE")
    if name in ("pause", "transfer"):
        command.add_argument("--reason", default="", help="told to each contender that is kept from taking it")
        standard, words = ("inf", "until it is resumed") if name == "pause" else ("10m", "10m")
        command.add_argument(
            "--for", dest="duration", metavar="TIME", default=standard, help=f"90, 15m, 2h, 1d [{words}]"
        )
    if name == "pause":
        command.add_argument("--now", action="store_true", help="its master gives it up at once")
    if name == "transfer":
        command.add_argument("--to", required=True, metavar="HOLDER|SITE", help="who may take it")
        command.add_argument("--within", metavar="TIME", default="1m", help="how long its master may go on [1m]")
        command.add_argument("--wait", action="store_true", help="return once it has been taken, exit 99 if it was not")
        command.add_argument("--anyway", action="store_true", help="also to a holder or site that is not known here")
    if name == "init":
        command.add_argument("--print-sql", action="store_true", help="print the statements and ask no database")
    if name == "fence":
        command.add_argument("action", choices=("add", "drop", "list", "forget"))
        command.add_argument(
            "--on",
            dest="tables",
            nargs="+",
            action="extend",
            default=[],
            metavar="TABLE",
            help="schema.table if need be, or the path or URL of a Delta table",
        )
        command.add_argument(
            "--allow-unleased", action="store_true", help="add: sessions without an epoch may write as well"
        )
        command.add_argument("--print-sql", action="store_true", help="add: print the statements and ask no database")
    if name not in ("run", "submit", "init"):
        command.add_argument("--json", action="store_true", help="for programs")
    command.add_argument("--verbose", "-v", action="store_true", default=argparse.SUPPRESS, help="log every renewal")
    if name != "demo":
        add_settings(command)


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import version  # slow, and for this alone

        print(f"spark-lease {version('spark_lease')}")
        parser.exit()


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. A user's mistake is one sentence and no traceback."""
    words = list(sys.argv[1:] if argv is None else argv)
    guarded: list[str] = []
    if "--" in words:
        cut = words.index("--")
        words, guarded = words[:cut], words[cut + 1 :]
    elif words[:1] in (["run"], ["submit"]) and not {"-h", "--help", "--help-all"} & {*words}:
        return _what_is_missing(words[0])
    arguments = parser().parse_args(words)
    if arguments.command in ("run", "submit") and not guarded:
        return _what_is_missing(arguments.command)
    _begin(arguments)
    arguments.guarded = guarded
    module, _, function = _COMMANDS[arguments.command][1].partition(":")
    try:
        code: int = getattr(importlib.import_module(module), function)(arguments)
        return code
    except SparkLeaseError as error:
        print(f"spark-lease: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `spark-lease status | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _begin(arguments: argparse.Namespace) -> None:
    import logging  # what `--help` has no use for

    from ..logs import log_to_stderr

    log_to_stderr(logging.DEBUG if arguments.verbose else logging.INFO)
    if arguments.command in ("run", "submit"):
        from ..system.container_init import leave_pid_1

        leave_pid_1()


def _what_is_missing(command: str) -> int:
    print(f"usage: {_usage(command)}\nWhat to {command} comes after --", file=sys.stderr)
    return USAGE


def _usage(command: str) -> str:
    what = "COMMAND…" if command == "run" else "[spark-submit options] app.py [arguments]"
    return f"spark-lease {command} --lease NAME [settings] -- {what}"
