"""`spark-lease submit`: runs spark-submit with the launcher as its application and the script as an argument.

spark-submit runs in a namespace of its own if possible; else it replaces this process."""

import argparse
import os

from ..config.settings import ENV, SPARK, URLS, VERBOSE, Config
from ..config.sources import Layer, camel, from_spark
from ..errors import ConfigError, SparkLeaseError
from ..guard.held import refuse_own
from ..keeper.supervisor import contained
from ..logs import say
from ..outcome import announce, begin_outcome, outcome_of, refused
from ..submit.class_archive import use_archive
from ..submit.cluster import submit_to_cluster
from ..submit.command_line import (
    LAUNCHER,
    bare_url,
    conf_of,
    find_spark_submit,
    is_for_cluster,
    local_file,
    name_of,
    refuse_what_java_misreads,
    set_spark_home,
    split,
)
from ..submit.contained import Submission
from ..system.processes import need_linux
from .settings import end_with, flags, name_given, need_name, outcome_file, resolved


def submit(arguments: argparse.Namespace) -> int:
    """Replaces this process, unless spark-submit is contained, runs in a cluster, or cannot be started."""
    config, file = None, outcome_file(arguments)
    try:
        begin_outcome(file)
        options, script, rest = split(arguments.guarded)
        set_spark_home(arguments.spark_submit)
        found = resolved(arguments, from_spark(conf_of(options)))
        config = found.config
        begin_outcome(file := config.outcome_file)
        if is_for_cluster(options) or "--properties-file" not in options:
            need_name(config.name)
        refuse_own(config)
        end_with(arguments.ends_with)
        need_linux()
        if is_for_cluster(options):
            return submit_to_cluster(found, arguments.spark_submit, options, script, rest)
        launched = [str(LAUNCHER), str(local_file(script)), *rest]
        program, environ = find_spark_submit(arguments.spark_submit)
        environ |= {VERBOSE: "yes"} if arguments.verbose else {}
        use_archive(program, environ)
        command = [program, *name_of(script, options), *options, *as_conf(flags(arguments), environ), *launched]
        refuse_what_java_misreads(command)
        supervisor = contained(command, _contain(config), own_group=False)
    except KeyboardInterrupt:
        outcome = outcome_of(config, "interrupted", 130, name=name_given(arguments))
    except SparkLeaseError as error:
        say(str(error))
        outcome = refused(config, error, name=name_given(arguments))
    else:
        if supervisor:
            return Submission(config, supervisor).run(environ)
        os.execvpe(program, command, environ)
    announce(outcome, file)
    return outcome.exit_code


def _contain(config: Config) -> str:
    """The setting `contain`, as far as it fits a driver. Raises ConfigError if it is required and does not fit."""
    others = {"keeper = thread": config.keeper == "thread", f"on_lost = {config.on_lost}": config.on_lost != "exit"}
    problem = next((setting for setting, there in others.items() if there), "")
    if problem and config.contain == "required":
        raise ConfigError("contain", f"is required, and does not go with {problem}")
    return "off" if problem or not config.enabled else config.contain


def as_conf(layer: Layer, environ: dict[str, str]) -> list[str]:
    """The flags as spark.lease.* keys, the last the strongest; a password goes into `environ`, hidden from users."""
    options: list[str] = []
    for key, (_, value) in layer.values.items():
        if key in URLS:
            value, password = bare_url(key, str(value))
            if password:
                environ[ENV + URLS[key].upper()] = password
        options += ["--conf", f"{SPARK}{camel(key)}={value}"]
    return options
