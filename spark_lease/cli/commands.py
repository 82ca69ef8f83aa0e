"""The commands of `spark-lease`: purpose, arguments, help, and where each is implemented."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

EXIT_CODES = """exit codes of run and submit:
  the command's own · 99 standby, never started · 75 lease lost while running · 69 lease store unreachable
  0 also: the run key is done already · 78 configuration · 64 usage · 127 no such command · 128+n ended by signal n"""


def _ends(*codes: str) -> str:
    """The exit codes of a command that takes no lease: its own `codes`, and those that all such commands have."""
    return f"exit codes:\n  {' · '.join(('0', *codes))} · 69 lease store unreachable · 78 configuration · 64 usage\n\n"


_LOOKING = "name url table"
Argument = tuple[tuple[str, ...], dict[str, Any]]
"""The words and keywords of `add_argument`."""


def _argument(*names: str, **how: Any) -> Argument:
    return names, how


@dataclass(frozen=True, slots=True)
class Command:
    """`implemented`: module and function of this folder, imported when the command runs. `usage` follows its name."""

    meaning: str
    implemented: str
    help: str
    arguments: Sequence[Argument] = ()
    usage: str = "[options]"
    settings: str | None = ""
    """Settings in the `--help` of a command that takes no lease; "": those of one that does; None: it has none."""
    is_guard: bool = False
    starts_a_program: bool = False
    """True if the arguments after -- belong to a program that the command starts."""
    has_json: bool = True


_ENDS_WITH = _argument("--ends-with", default="", metavar="PID", help="end when PID, the parent process, ends")
_SPARK_SUBMIT = _argument("--spark-submit", default="", metavar="FILE", help="the spark-submit to use")
_LEASE = _argument("lease", nargs="?", metavar="LEASE", help="name of the lease; default: the setting `name`")
_REASON = _argument("--reason", default="", metavar="TEXT", help="shown to each contender that waits")


def _flag(name: str, help: str) -> Argument:
    return _argument(name, action="store_true", help=help)


def _for(standard: str, shown: str) -> Argument:
    how_long = f"how long: 90, 15m, 2h, 1d [{shown}]"
    return _argument("--for", dest="duration", metavar="TIME", default=standard, help=how_long)


_TABLES = "schema.table if need be, or the path or URL of a Delta table"

COMMANDS = {
    "run": Command(
        "run a command while the lease is held",
        "run:run",
        """examples:
  spark-lease run --lease nightly -- spark-submit job.py
  spark-lease run --lease nightly --if-held skip --lease-duration 60 -- ./load.sh 2026-11-20
  spark-lease run --lease nightly --run-key 2026-11-20 -- ./load.sh 2026-11-20

"""
        + EXIT_CODES,
        arguments=(_ENDS_WITH,),
        usage="--lease NAME [settings] -- COMMAND…",
        is_guard=True,
        starts_a_program=True,
        has_json=False,
    ),
    "submit": Command(
        "spark-submit an unmodified PySpark script, with the guard inside its driver",
        "submit:submit",
        """examples:
  spark-lease submit --lease nightly -- --master 'local[2]' job.py --day 2026-11-20
  spark-lease submit --lease nightly --url postgresql://lease@db/ops -- --master yarn job.py
  spark-lease submit --lease nightly --url … -- --master yarn --deploy-mode cluster job.py

With --deploy-mode cluster a standby waits here and uses no cluster resources. The driver notes its outcome beside
the lease, and this command ends with the same exit code. Ctrl-C does not stop the job in the cluster.

"""
        + EXIT_CODES,
        arguments=(_ENDS_WITH, _SPARK_SUBMIT),
        usage="--lease NAME [settings] -- [spark-submit options] app.py [arguments]",
        is_guard=True,
        starts_a_program=True,
        has_json=False,
    ),
    "demo": Command(
        "watch two take-overs on this machine: one master is killed, the next one frozen",
        "demo:demo",
        """Two sites submit one small job to the Spark that is installed here, with a lease in a file of their own.
The demo takes about a minute and a half, needs Java and pyspark, and leaves nothing behind.

exit codes:
  0 · 1 the demo did not end as it must · 78 no Spark, or no Java · 64 usage

examples:
  spark-lease demo
  spark-lease demo --folder /tmp/demo --json""",
        arguments=(_argument("--folder", metavar="DIR", help="keep logs and written data in a new folder"),),
        settings=None,
    ),
    "status": Command(
        "show who holds which lease",
        "status:status",
        """SINCE is the time of the grant. LEFT is the time until the lease runs out without a renewal; ? on a store
without a clock, where one look cannot tell. IN DOUBT: not renewed for one and a half retry periods, by this command's
settings. With one LEASE, everything that is known of it is shown. With --json, null stands for what is not there or
not known.

--watch shows it live in a terminal. Without a terminal it prints one line for each change: with --json, one object.

exit codes:
  0 · 1 no such lease, or a record that cannot be read · 69 lease store unreachable (with --watch: at the start; later
  one line says so) · 130 --watch, ended by Ctrl-C · 78 configuration · 64 usage

examples:
  spark-lease status
  spark-lease status nightly --json
  spark-lease status --wide
  spark-lease status --watch
  spark-lease status nightly --watch --json --poll-period 0.5 >> changes.jsonl""",
        arguments=(
            _argument("leases", nargs="*", metavar="LEASE", help="only these leases; default: all"),
            _flag("--wide", "one wide table with everything that is known"),
            _flag("--watch", "keep showing it until Ctrl-C; no terminal: each change"),
        ),
        usage="[LEASE …] [options]",
        settings=f"{_LOOKING} poll_period",
    ),
    "doctor": Command(
        "check this machine and the lease store for what a lease needs",
        "doctor:doctor",
        """Each line is ok, warn or fail, with what to do. No lease is changed: rights are tried under another name in a
transaction that is rolled back, or with a file that is removed; in a broker's table it changes no row.

exit codes:
  0 no check failed · 1 a check failed, or the store does not answer · 78 configuration · 64 usage

examples:
  spark-lease doctor --lease nightly
  spark-lease doctor --json""",
        settings=f"{_LOOKING} lease_duration fence_url",
    ),
    "release": Command(
        "free a lease whose holder cannot give it back",
        "release:release",
        """A lease that has run out is freed. One that has not is taken from its holder if you type its name, or give it
by --yes: a master at work loses it at its next renewal and stops. No contender can take it before the moment at which
it would have run out. Where the store has no clock, or its clock was set back, the record is watched for its duration
first, unless --yes.

exit codes:
  0 free, or free in the seconds that are shown · 1 nothing was changed · 69 lease store unreachable, not known
  78 configuration · 64 usage

examples:
  spark-lease release nightly --force
  spark-lease release nightly --force --yes nightly --json""",
        arguments=(
            _LEASE,
            _flag("--force", "release it in place of its holder (required)"),
            _argument("--yes", metavar="LEASE", help="repeat the lease name: take it even before it runs out"),
        ),
        usage="LEASE --force [options]",
        settings=_LOOKING,
    ),
    "runs": Command(
        "list run keys: begun, ended, done",
        "store:runs",
        _ends("1 no such lease, or no entry")
        + "examples:\n  spark-lease runs nightly\n  spark-lease runs nightly --json",
        arguments=(_LEASE,),
        usage="LEASE [options]",
        settings=_LOOKING,
    ),
    "history": Command(
        "list who held a lease and when, and check that no two did at one time",
        "history:history",
        _ends("1 no such lease", "2 two held it at one time")
        + """examples:
  spark-lease history nightly
  spark-lease history nightly --since 7d --json
  spark-lease history nightly --since 2026-11-20T06:00 --html nightly.html""",
        arguments=(
            _LEASE,
            _argument("--since", metavar="TIME", help="a date or time in UTC, or an age: 90m, 36h, 7d"),
            _argument("--html", metavar="FILE", help="write it as one page with a picture, for a browser"),
        ),
        usage="LEASE [options]",
        settings=_LOOKING,
    ),
    "pause": Command(
        "keep every contender from taking a lease, for maintenance",
        "directives:pause",
        """The master keeps the lease and works on until it ends. With --now it stops at its next renewal, and the
command returns once the lease is free; with exit code 99 if the master still renews after two lease durations
(an ActiveMQ broker does not read a pause). A job that starts while the lease is paused is a standby:
exit code 99, or waiting. This pause takes the place of a pause or transfer that is there, and says so. Ctrl-C
while the command waits does not cancel it: `resume` does.

"""
        + _ends("1 no such lease", "99 its master renews on (--now)")
        + """examples:
  spark-lease pause nightly --reason 'schema change'
  spark-lease pause nightly --reason 'schema change' --for 2h --now""",
        arguments=(_LEASE, _REASON, _for("inf", "until it is resumed"), _flag("--now", "its master stops, too")),
        usage="LEASE [options]",
        settings=_LOOKING,
    ),
    "resume": Command(
        "cancel a pause or a transfer",
        "directives:resume",
        _ends("1 no such lease") + "examples:\n  spark-lease resume nightly",
        arguments=(_LEASE,),
        usage="LEASE [options]",
        settings=_LOOKING,
    ),
    "transfer": Command(
        "hand a lease over to one holder, or one site",
        "directives:transfer",
        """From now on only --to may take the lease: a holder, its label (`--holder`) or its site (`--site`). The
master ends by itself, or must stop after --within. After a further --for, any contender may take the lease. Exit
code 78 also: the store does not know --to, without --anyway. Ctrl-C while the command
waits does not cancel it: `resume` does.

"""
        + _ends("1 no such lease", "99 not taken in time (--wait)")
        + """examples:
  spark-lease transfer nightly --to lyon
  spark-lease transfer nightly --to lyon --within 15m --for 10m --reason 'maintenance in paris' --wait""",
        arguments=(
            _LEASE,
            _REASON,
            _for("10m", "10m"),
            _argument("--to", required=True, metavar="HOLDER|SITE", help="the contender that may take it"),
            _argument("--within", metavar="TIME", default="1m", help="how long its master may go on [1m]"),
            _flag("--wait", "return once it has been taken; exit code 99 if it was not"),
            _flag("--anyway", "accept a holder or site that the store does not know"),
        ),
        usage="LEASE --to HOLDER|SITE [options]",
        settings=_LOOKING,
    ),
    "init": Command(
        "make the table of the leases, or add our columns to ActiveMQ's",
        "store:init",
        _ends()
        + """examples:
  spark-lease init --url postgresql://db/ops
  spark-lease init --url postgresql:// --print-sql""",
        arguments=(_flag("--print-sql", "print the statements and ask no database"),),
        settings="url table create_table",
        has_json=False,
    ),
    "fence": Command(
        "fence tables: only the newest master of a lease may write them",
        "fence:fence",
        """A TABLE with a / in it is a Delta table, by its path or URL; any other is PostgreSQL's.

add: PostgreSQL refuses every write to TABLE that does not carry the newest epoch of the lease. A Delta TABLE is
     claimed by each new master; those that the lease has written to are added by themselves.
drop: any session may write to TABLE again.
list: the fenced tables.
forget: stop claiming the Delta TABLE, for example because it was deleted. Without --on: clear the fence of the
     lease in the database, after the lease's own row was lost or restored, while no master is at work.

"""
        + _ends("1 nothing to forget, or a master holds the lease")
        + """examples:
  spark-lease fence add --lease nightly --on public.flights --fence-url postgresql://etl@db/warehouse
  spark-lease fence add --lease nightly --on flights '"My Table"' --print-sql
  spark-lease fence add --lease nightly --on /lake/flights s3://lake/carriers
  spark-lease fence drop --on public.flights
  spark-lease fence list --lease nightly --json
  spark-lease fence forget --lease nightly""",
        arguments=(
            _argument("action", choices=("add", "drop", "list", "forget"), help="see below"),
            _argument("--on", dest="tables", nargs="+", action="extend", default=[], metavar="TABLE", help=_TABLES),
            _flag("--allow-unleased", "add: sessions without an epoch may write as well"),
            _flag("--print-sql", "add: print the statements and ask no database"),
        ),
        usage="add|drop|list|forget [options]",
        settings=f"{_LOOKING} fence_url",
    ),
    "class-archive": Command(
        "keep Spark's classes in a file, so that drivers on this machine start sooner",
        "class_archive:class_archive",
        """A small Spark job runs once, and the classes that it loads are kept in a file of 100 to 200 MB in the cache
folder of this user. spark-lease submit uses it from then on, as long as neither Spark nor Java changes: make it
again after an upgrade, or in the build of a container's image, as the user that runs the job. Options after -- are
spark-submit's: with those of Delta, its classes are kept as well. Java keeps no classes while a folder with files
is on the class path: not with HADOOP_CONF_DIR, and not with files in Spark's own conf.

--print: print the options of the JVM, for a Spark that is started otherwise:
  export SPARK_SUBMIT_OPTS="$(spark-lease class-archive --print)"

exit codes:
  0 · 1 the job failed · 78 no Spark, no Java, or nothing to print · 64 usage

examples:
  spark-lease class-archive
  spark-lease class-archive -- --conf spark.driver.extraJavaOptions=-XX:+UseSerialGC
  spark-lease class-archive --remove""",
        arguments=(
            _SPARK_SUBMIT,
            _flag("--print", "print the options of a JVM that uses it"),
            _flag("--remove", "remove it"),
        ),
        usage="[options] [-- spark-submit options]",
        starts_a_program=True,
        settings=None,
    ),
    "config": Command(
        "show each setting, its value and where it came from",
        "store:config",
        """exit codes:
  0 · 78 configuration · 64 usage

examples:
  spark-lease config --lease-duration 6
  spark-lease config --json""",
    ),
}
