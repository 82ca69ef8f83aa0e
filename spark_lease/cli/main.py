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
  the command's own · 99 standby, never started · 75 lease lost while running · 69 lease store unreachable
  0 also: the run key is done already · 78 configuration · 64 usage · 127 no such command · 128+n ended by signal n"""

_ENDS = """exit codes:
  0 · 1 no such lease, or no entry · 69 lease store unreachable · 78 configuration, or refused · 64 usage

"""

_LOOKING = "name url table"
_NEEDED = dict.fromkeys(("status", "release", "runs", "history", "pause", "resume", "transfer"), _LOOKING) | {
    "init": "url table create_table",
    "watch": f"{_LOOKING} poll_period",
    "doctor": f"{_LOOKING} lease_duration fence_url",
    "fence": f"{_LOOKING} fence_url",
}
"""The settings that `--help` shows of a command that takes no lease."""

_OR_FROM_SETTINGS = "name of the lease; default: the setting `name`"

_COMMANDS: dict[str, tuple[str, str, str]] = {
    "run": (
        "run a command while the lease is held",
        "spark_lease.cli.run:run",
        """examples:
  spark-lease run --lease nightly -- spark-submit job.py
  spark-lease run --lease nightly --if-held skip --lease-duration 60 -- ./load.sh 2026-11-20
  spark-lease run --lease nightly --run-key 2026-11-20 -- ./load.sh 2026-11-20

"""
        + _EXIT_CODES,
    ),
    "submit": (
        "spark-submit an unmodified PySpark script, with the guard inside its driver",
        "spark_lease.cli.submit:submit",
        """examples:
  spark-lease submit --lease nightly -- --master 'local[2]' job.py --day 2026-11-20
  spark-lease submit --lease nightly --url postgresql://lease@db/ops -- --master yarn job.py
  spark-lease submit --lease nightly --url … -- --master yarn --deploy-mode cluster job.py

With --deploy-mode cluster a standby waits here and takes nothing of the cluster. The driver notes its outcome beside
the lease, and this command ends with it. Ctrl-C does not end what the cluster runs.

"""
        + _EXIT_CODES,
    ),
    "demo": (
        "watch two take-overs on this machine: one master is killed, the next one frozen",
        "spark_lease.cli.demo:demo",
        """Two sites submit one small job to the Spark that is installed here, with a lease in a file of their own.
The demo takes about a minute and a half, needs Java and pyspark, and leaves nothing behind.

exit codes:
  0 · 1 the demo did not end as it must · 78 no Spark, or no Java · 64 usage

examples:
  spark-lease demo
  spark-lease demo --folder /tmp/demo --json""",
    ),
    "status": (
        "show who holds which lease",
        "spark_lease.cli.store:status",
        """SINCE is the time of the grant. LEFT is the time until the lease runs out without a renewal; ? on a store
without a clock, where one look cannot tell. IN DOUBT: not renewed for one and a half retry periods, by this command's
settings. With one LEASE, everything that is known of it is shown.

exit codes:
  0 · 1 no such lease, or a record that cannot be read · 69 lease store unreachable · 78 configuration · 64 usage

examples:
  spark-lease status
  spark-lease status nightly
  spark-lease status --wide
  spark-lease status nightly --json""",
    ),
    "watch": (
        "follow leases: live in a terminal, else one line per change",
        "spark_lease.cli.watch:watch",
        """exit codes:
  130 ended by Ctrl-C · 1 no such lease · 69 lease store unreachable at the start (later it is one line) · 78, 64

examples:
  spark-lease watch
  spark-lease watch nightly --json --poll-period 0.5 >> changes.jsonl""",
    ),
    "doctor": (
        "check this machine and the lease store for what a lease needs",
        "spark_lease.cli.doctor:doctor",
        """Each line is ok, warn or fail, with what to do. No lease is changed: rights are tried under another name in a
transaction that is rolled back, or with a file that is removed; in a broker's table without a row.

exit codes:
  0 no check failed · 1 a check failed, or the store does not answer · 78 configuration · 64 usage

examples:
  spark-lease doctor --lease nightly
  spark-lease doctor --json""",
    ),
    "release": (
        "free a lease whose holder cannot give it back",
        "spark_lease.cli.release:release",
        """A lease that has run out is freed. One that has not is taken from its holder if you type its name, or give it
by --yes: a master at work loses it at its next renewal and stops. No contender can take it before the moment at which
it would have run out. Where the store has no clock, the record is watched for its duration first, unless --yes.

exit codes:
  0 free, or free in the seconds that are shown · 1 nothing was changed · 69 lease store unreachable, not known
  78 configuration · 64 usage

examples:
  spark-lease release nightly --force
  spark-lease release nightly --force --yes nightly --json""",
    ),
    "runs": (
        "list run keys: begun, ended, done",
        "spark_lease.cli.store:runs",
        _ENDS + "examples:\n  spark-lease runs nightly\n  spark-lease runs nightly --json",
    ),
    "history": (
        "list who held a lease and when, and check that no two did at one time",
        "spark_lease.cli.history:history",
        """exit codes:
  0 · 1 no such lease · 2 two held it at one time · 69 lease store unreachable · 78 configuration · 64 usage

examples:
  spark-lease history nightly
  spark-lease history nightly --since 7d --json
  spark-lease history nightly --since 2026-11-20T06:00 --html nightly.html""",
    ),
    "pause": (
        "keep every contender from taking a lease, for maintenance",
        "spark_lease.cli.directives:pause",
        """The master keeps the lease and works on until it ends. With --now it stops at its next renewal, and the
command returns once the lease is free; with exit code 99 if the master still renews after two lease durations
(an ActiveMQ broker does not read a pause). A job that starts while the lease is paused is a standby:
exit code 99, or waiting.

"""
        + _ENDS
        + """examples:
  spark-lease pause nightly --reason 'schema change'
  spark-lease pause nightly --reason 'schema change' --for 2h --now""",
    ),
    "resume": (
        "take back a pause or a transfer",
        "spark_lease.cli.directives:resume",
        _ENDS + "examples:\n  spark-lease resume nightly",
    ),
    "transfer": (
        "hand a lease over to one holder, or one site",
        "spark_lease.cli.directives:transfer",
        """The master ends by itself, or stops --within that time. Then only the named contender takes the lease: by its
holder, its label (`--holder`) or its site (`--site`). After another --for, any contender may. With --wait the exit
code is 99 if it was not taken by then. Exit code 78 also: the name is not known, and --anyway was not given.

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
        "fence tables: only the newest master of a lease may write them",
        "spark_lease.cli.fence:fence",
        """A TABLE with a / in it is a Delta table, by its path or URL; any other is PostgreSQL's.

add: PostgreSQL refuses every write to TABLE that does not carry the newest epoch of the lease. A Delta TABLE is
     claimed by each new master; those that the lease has written to are added by themselves.
drop: any session may write to TABLE again.
list: the fenced tables.
forget: the Delta TABLE is gone for good, or is not to be claimed any more. Without --on: clear the fence of the
     lease in the database, after the lease's own row was lost or restored, while no master is at work.

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
    "class-archive": (
        "keep Spark's classes in a file, so that drivers on this machine start sooner",
        "spark_lease.cli.class_archive:class_archive",
        """A small Spark job runs once, and the classes that it loads are kept in a file of 100 to 200 MB in the cache
folder of this user. spark-lease submit uses it from then on, as long as neither Spark nor Java changes: make it
again after an upgrade, or in the build of a container's image, as the user that runs the job. Options after -- are
spark-submit's. Java keeps no classes while a folder with files is on the class path: not with HADOOP_CONF_DIR, and
not with files in Spark's own conf.

--print: print the options of the JVM, for a Spark that is started otherwise:
  export SPARK_SUBMIT_OPTS="$(spark-lease class-archive --print)"

exit codes:
  0 · 1 the job failed · 78 no Spark, no Java, or nothing to print · 64 usage

examples:
  spark-lease class-archive
  spark-lease class-archive -- --conf spark.driver.extraJavaOptions=-XX:+UseSerialGC
  spark-lease class-archive --remove""",
    ),
    "config": (
        "show each setting, its value and where it came from",
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
        epilog="`spark-lease COMMAND --help` has examples, `--help-all` every setting.\n\n" + _EXIT_CODES,
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
    command.usage = _usage(name)
    if name in ("run", "submit"):
        command.add_argument(
            "--ends-with",
            default="",
            metavar="PID",
            help="end when process PID ends, for example the parent",
        )
    if name in ("submit", "class-archive"):
        command.add_argument("--spark-submit", default="", metavar="FILE", help="the spark-submit to use")
    if name == "class-archive":
        command.add_argument("--print", action="store_true", help="print the options of a JVM that uses it")
        command.add_argument("--remove", action="store_true", help="remove it")
    if name == "demo":
        command.add_argument("--folder", metavar="DIR", help="keep logs and written data in a new folder")
    if name in ("status", "watch"):
        command.add_argument("leases", nargs="*", metavar="LEASE", help="only these leases; default: all")
    if name == "status":
        command.add_argument("--wide", action="store_true", help="one wide table with everything that is known")
    if name == "release":
        command.add_argument("lease", nargs="?", metavar="LEASE", help=_OR_FROM_SETTINGS)
        command.add_argument("--force", action="store_true", help="release it in place of its holder (required)")
        command.add_argument("--yes", metavar="LEASE", help="its name again: take it even if it has not run out")
    if name in ("runs", "history"):
        command.add_argument("lease", nargs="?", metavar="LEASE", help=_OR_FROM_SETTINGS)
    if name == "history":
        command.add_argument("--since", metavar="TIME", help="a date or time in UTC, or an age: 90m, 36h, 7d")
        command.add_argument("--html", metavar="FILE", help="write it as one page with a picture, for a browser")
    if name in ("pause", "resume", "transfer"):
        command.add_argument("lease", metavar="LEASE", help="name of the lease")
    if name in ("pause", "transfer"):
        command.add_argument("--reason", default="", metavar="TEXT", help="shown to each contender that waits")
        standard, words = ("inf", "until it is resumed") if name == "pause" else ("10m", "10m")
        command.add_argument(
            "--for", dest="duration", metavar="TIME", default=standard, help=f"how long: 90, 15m, 2h, 1d [{words}]"
        )
    if name == "pause":
        command.add_argument("--now", action="store_true", help="its master stops, too")
    if name == "transfer":
        command.add_argument("--to", required=True, metavar="HOLDER|SITE", help="the contender that may take it")
        command.add_argument("--within", metavar="TIME", default="1m", help="how long its master may go on [1m]")
        command.add_argument(
            "--wait", action="store_true", help="return once it has been taken; exit code 99 if it was not"
        )
        command.add_argument(
            "--anyway", action="store_true", help="also if the lease store knows no such holder or site"
        )
    if name == "init":
        command.add_argument("--print-sql", action="store_true", help="print the statements and ask no database")
    if name == "fence":
        command.add_argument("action", choices=("add", "drop", "list", "forget"), help="see below")
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
    if name not in ("demo", "class-archive"):
        add_settings(command, _NEEDED.get(name, ""))


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
    given = {
        "run": "--lease NAME [settings] -- COMMAND…",
        "submit": "--lease NAME [settings] -- [spark-submit options] app.py [arguments]",
        "status": "[LEASE …] [options]",
        "watch": "[LEASE …] [options]",
        "release": "LEASE --force [options]",
        "runs": "LEASE [options]",
        "history": "LEASE [options]",
        "pause": "LEASE [options]",
        "resume": "LEASE [options]",
        "transfer": "LEASE --to HOLDER|SITE [options]",
        "fence": "add|drop|list|forget [options]",
        "class-archive": "[options] [-- spark-submit options]",
    }
    return f"spark-lease {command} {given.get(command, '[options]')}"
