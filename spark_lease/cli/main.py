"""`spark-lease`: parses the command line, and imports only the modules that the command needs."""

import argparse
import errno
import importlib
import io
import os
import signal
import sys
from collections.abc import Sequence

from ..errors import SparkLeaseError
from .commands import COMMANDS, EXIT_CODES
from .settings import USAGE, Parser, add_settings

_OUTPUT_FAILS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Errors of a write to standard output, for example if the disk is full."""


def parser() -> argparse.ArgumentParser:
    top = Parser(
        prog="spark-lease",
        description="Only one of several redundant Spark applications may write: leader election for PySpark jobs.",
        epilog="`spark-lease COMMAND --help` has examples, `--help-all` every setting.\n\n" + EXIT_CODES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--verbose", "-v", action="store_true", help="log more, each renewal for one")
    top.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, command in COMMANDS.items():
        parser = commands.add_parser(
            name,
            help=command.meaning,
            description=command.meaning[0].upper() + command.meaning[1:] + ".",
            usage=_usage(name),
            epilog=command.help,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        for names, how in command.arguments:
            parser.add_argument(*names, **how)
        if command.has_json:
            parser.add_argument("--json", action="store_true", help="for programs")
        parser.add_argument(
            "--verbose", "-v", action="store_true", default=argparse.SUPPRESS, help="log more, each renewal for one"
        )
        if command.settings is not None:
            add_settings(parser, command.settings)
    return top


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import version  # slow, and needed only here

        print(f"spark-lease {version('spark_lease')}", flush=True)
        parser.exit()


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. A user's mistake prints one sentence and no traceback."""
    if not sys.stdout:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115  for the life of the process
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal may know less than UTF-8
            stream.reconfigure(errors="replace")
    given = list(sys.argv[1:] if argv is None else argv)
    name = next((each for each in given if not each.startswith("-")), "")
    command = COMMANDS.get(name)
    code: int = 128 + signal.SIGPIPE
    try:
        code = _carry_out(given, name)
        sys.stdout.flush()
        return code
    except SparkLeaseError as error:
        from ..logs import say  # not needed for `--help`

        say(str(error))
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `spark-lease status | head`: if the command had not ended by then, it does not say 0
        _close_stdout()
        return code
    except OSError as error:
        if error.errno not in _OUTPUT_FAILS or (command and command.is_guard):
            raise
        _close_stdout()
        from ..logs import say  # as above

        say(f"cannot write to standard output: {error.strerror}. The command itself has taken effect")
        return os.EX_IOERR


def _carry_out(given: Sequence[str], name: str) -> int:
    guarded, command = list[str](), COMMANDS.get(name)
    if "--" in given and command and command.starts_a_program:
        cut = given.index("--")
        given, guarded = given[:cut], [*given[cut + 1 :]]
    elif command and command.is_guard and not {"-h", "--help", "--help-all"} & {*given}:
        return _what_is_missing(name, f"Write -- before what to {name}")
    arguments, unknown = parser().parse_known_args(given)
    command = COMMANDS[arguments.command]
    if unknown:
        of_it = f"spark-lease {arguments.command}"
        # Print no values: one may be a password.
        options = [each.partition("=")[0] for each in unknown if each.startswith("-")]
        is_name = command.is_guard and (not options or "--name" in options)
        hint = "The lease is named by --lease NAME\n" if is_name else ""
        from ..logs import say  # not needed for `--help`

        say(f"{of_it}: unknown: {' '.join(options or unknown)}\n{hint}See {of_it} --help", prefix="")
        return USAGE
    if command.is_guard and not guarded:
        return _what_is_missing(name, f"Nothing follows --: write after it what to {name}")
    _begin(arguments)
    arguments.guarded = guarded
    module, _, function = command.implemented.partition(":")
    code: int = getattr(importlib.import_module(f".{module}", __package__), function)(arguments)
    return code


def _close_stdout() -> None:
    """Discard output that is not written yet: else writing it would fail once more as Python ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _begin(arguments: argparse.Namespace) -> None:
    import logging  # not needed for `--help`

    from ..logs import log_to_stderr

    log_to_stderr(logging.DEBUG if arguments.verbose else logging.INFO)
    if COMMANDS[arguments.command].is_guard:
        # If our parent ignores SIGCHLD, we inherit that, and would never learn that the command has ended.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        from ..system.container_init import leave_pid_1

        leave_pid_1()


def _what_is_missing(command: str, advice: str) -> int:
    from ..logs import say  # as above

    say(f"usage: {_usage(command)}\n{advice}", prefix="")
    return USAGE


def _usage(command: str) -> str:
    return f"spark-lease {command} {COMMANDS[command].usage}"
