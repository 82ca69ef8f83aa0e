"""A lease that a notebook holds: its kernel is restarted, politely and by force, in the middle of a hold."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

from spark_lease.system.processes import look, tree
from tests.support.drivers import until

HOLD = """
from spark_lease import hold_lease
hold = hold_lease("n", url={!r}, lease_duration=60, poll_period=0.05, keeper="process")
lease = hold.__enter__()
print(lease.epoch, end="")
"""


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[KernelManager]:
    manager = KernelManager(transport="ipc", connection_file=str(tmp_path / "kernel.json"))  # of this very Python
    manager.start_kernel()
    yield manager
    manager.shutdown_kernel(now=True)
    manager.context.destroy()


def run(kernel: KernelManager, cell: str) -> str:
    client: BlockingKernelClient = kernel.blocking_client()
    client.start_channels()
    client.wait_for_ready(timeout=60)
    said: list[str] = []
    client.execute_interactive(
        cell, timeout=60, output_hook=lambda message: said.append(message["content"].get("text", ""))
    )
    client.stop_channels()
    return "".join(said)


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("force", [False, True], ids=["politely", "by force"])
def test_a_restarted_kernel_leaves_nothing_and_the_lease_is_free(kernel: KernelManager, url: str, force: bool) -> None:
    first = int(run(kernel, HOLD.format(url)))
    before = tree(kernel.provisioner.pid)
    assert len(before) == 3  # the kernel, its keeper and the sweeper
    kernel.restart_kernel(now=force)
    second = int(run(kernel, HOLD.format(url)))
    assert first < second < first + 30_000  # long before the lease would have run out
    until(lambda: not any((now := look(each.pid)) and now.alive and now.started == each.started for each in before))
