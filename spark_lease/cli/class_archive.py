"""`spark-lease class-archive`: keep Spark's classes in a file, so that drivers on this machine start sooner."""

import argparse
import json

from ..clock import BootClock
from ..errors import ConfigError
from ..logs import say
from ..submit.class_archive import archive_of, make_archive, options_of, remove_archives
from ..submit.command_line import find_spark_submit, is_for_cluster


def class_archive(arguments: argparse.Namespace) -> int:
    program, environ = find_spark_submit(arguments.spark_submit)
    if arguments.print:
        archive = archive_of(program, environ)
        if not archive:
            raise ConfigError("class-archive", "there is none for this Spark and Java: make it without --print")
        print(options_of(archive))
        return 0
    if arguments.remove:
        removed = [str(each) for each in remove_archives(program, environ)]
        print(json.dumps({"removed": removed}) if arguments.json else f"removed: {', '.join(removed) or 'nothing'}")
        return 0
    if is_for_cluster(arguments.guarded):
        raise ConfigError("class-archive", "is made on this machine, so its job must run here: -- --deploy-mode client")
    say("running a small Spark job, to keep the classes that it loads; about half a minute ...")
    clock = BootClock()
    began = clock.now()
    archive = make_archive(program, arguments.guarded, environ)
    seconds, size = clock.now() - began, archive.stat().st_size
    if arguments.json:
        print(json.dumps({"archive": str(archive), "bytes": size, "seconds": round(seconds, 1)}))
    else:
        print(f"{archive}, {size / 1e6:.0f} MB, made in {seconds:.0f} s: spark-lease submit uses it from now on")
    return 0
