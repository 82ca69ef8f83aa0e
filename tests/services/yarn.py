"""A real YARN for the tests, with two node managers: Hadoop's own, in one JVM, from Maven Central.

    python -m tests.services.yarn FOLDER            # downloads what it needs, 60 MB
    python -m tests.services.yarn --serve FOLDER    # says where its configuration is, and runs until its input ends

Its containers are processes of this machine, in folders of their own.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from jobs.jars import resolve

FOLDER = Path(__file__).parents[2] / ".yarn"
MISSING = "YARN is not there: make yarn"
SPARKS = Path(pyspark.__file__).parent / "jars"
# Its version is that of Spark's Hadoop; the rest it needs, and does not name.
HADOOP = (
    "org.apache.hadoop:hadoop-client-minicluster:3.5.0,org.bouncycastle:bcpkix-jdk18on:1.79,"
    "org.junit.jupiter:junit-jupiter-api:5.11.4,org.assertj:assertj-core:3.26.3,org.mockito:mockito-core:4.11.0"
)
SETTINGS = {
    "yarn.nodemanager.vmem-check-enabled": "false",
    "yarn.nodemanager.pmem-check-enabled": "false",
    "yarn.nodemanager.resource.memory-mb": "4096",
    "yarn.nodemanager.disk-health-checker.enable": "false",
    "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage": "100",
    "yarn.scheduler.minimum-allocation-mb": "256",
    "yarn.scheduler.capacity.root.queues": "default",
    "yarn.scheduler.capacity.root.default.capacity": "100",
    "yarn.scheduler.capacity.maximum-am-resource-percent": "1.0",
}


@contextmanager
def running_yarn(folder: Path) -> Iterator[Path]:
    """The folder of its configuration, for HADOOP_CONF_DIR."""
    if not shutil.disk_usage(folder).free:  # root may write on, and the node managers start no container
        raise OSError(f"the disk of {folder} is full for all but root: YARN would run nothing")
    py4j = next(SPARKS.glob("py4j-*.jar"))
    with (folder / "yarn.log").open("w") as log:
        port, token, process = launch_gateway(
            jarpath=str(py4j),
            classpath=f"{SPARKS}/*:{FOLDER}/*",
            javaopts=["-Xmx512m", "-XX:TieredStopAtLevel=1"],
            redirect_stdout=log,
            redirect_stderr=log,
            die_on_exit=True,
            enable_auth=True,
            cwd=str(folder),
            return_proc=True,
        )
        gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auth_token=token, auto_convert=True))
        try:
            hadoop = gateway.jvm.org.apache.hadoop.yarn
            wanted = hadoop.conf.YarnConfiguration()
            for key, value in SETTINGS.items():
                wanted.set(key, value)
            yarn = hadoop.server.MiniYARNCluster("yarn", 2, 1, 1)
            yarn.init(wanted)
            yarn.start()
            (folder / "conf").mkdir()
            out = gateway.jvm.java.io.FileOutputStream(str(folder / "conf" / "yarn-site.xml"))
            yarn.getConfig().writeXml(out)
            out.close()
            yield folder / "conf"
        finally:
            process.kill()  # to stop it politely takes a quarter of a minute
            process.wait()
            process.stdin.close()  # Py4J closes the others, on a thread of its own
            gateway.close()


def command_line(conf: Path, file: Path) -> None:
    """Make `file` what `yarn` is on a machine of Hadoop's."""
    classes = f"{conf}:{SPARKS}/*"
    file.write_text(f'#!/bin/sh\nexec java -cp "{classes}" org.apache.hadoop.yarn.client.cli.ApplicationCLI "$@"\n')
    file.chmod(0o755)


if __name__ == "__main__" and sys.argv[1] == "--serve":
    with running_yarn(Path(sys.argv[2])) as served:
        command_line(served, Path(sys.argv[2], "yarn"))
        print(served, flush=True)
        sys.stdin.read()
elif __name__ == "__main__":
    resolve(Path(sys.argv[1]), HADOOP, "*.jar")
