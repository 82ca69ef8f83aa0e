"""Messages between two processes: whole, in order, with files, and an end that is noticed."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import subprocess
import sys

import pytest

from spark_lease.keeper.channel import Channel, Closed


def test_messages_stay_whole_and_in_order() -> None:
    one, two = Channel.pair()
    for number in range(50):
        one.send({"number": number, "long": "x" * 1000 * (number % 3)})
    received = [two.receive(1.0) for _ in range(50)]
    assert [each and each[0]["number"] for each in received] == list(range(50))
    assert two.receive(0.01) is None
    one.close()
    two.close()


def test_no_end_takes_the_number_of_a_closed_standard_stream() -> None:
    program = "from spark_lease.keeper.channel import Channel; print([each.fileno() > 2 for each in Channel.pair()])"
    closed = ["bash", "-c", 'exec "$@" <&- 2>&-', "bash", sys.executable, "-c", program]
    assert subprocess.run(closed, stdout=subprocess.PIPE, text=True, check=True).stdout == "[True, True]\n"


def test_one_that_waits_can_be_woken_and_misses_nothing_by_it() -> None:
    one, two = Channel.pair()
    with open(os.eventfd(0, os.EFD_NONBLOCK), "r+b", buffering=0) as woken:
        woken.write((1).to_bytes(8, sys.byteorder))
        assert two.receive(60.0, woken) is None
        assert two.receive(0.01, woken) is None  # once is enough
        woken.write((1).to_bytes(8, sys.byteorder))
        one.send({"number": 1})
        assert two.receive(60.0, woken) == ({"number": 1}, [])
    with pytest.raises(Closed):
        two.receive(60.0, woken)
    one.close()
    two.close()


def test_a_file_comes_with_its_message() -> None:
    one, two = Channel.pair()
    read, write = os.pipe()
    one.send({"a": 1}, [write])
    os.close(write)
    message = two.receive(1.0)
    assert message
    os.write(message[1][0], b"hello")
    os.close(message[1][0])
    assert os.read(read, 10) == b"hello"
    assert os.read(read, 10) == b""
    os.close(read)
    one.close()
    two.close()


def test_an_end_is_noticed_by_both_sides() -> None:
    one, two = Channel.pair()
    one.send({"last": "words"})
    one.close()
    assert two.receive(1.0) == ({"last": "words"}, [])
    with pytest.raises(Closed, match="gone"):
        two.receive(1.0)
    with pytest.raises(Closed):
        two.send({"too": "late"})
    two.close()


def test_last_words_are_heard_of_one_who_has_not_read_all() -> None:
    one, two = Channel.pair()
    two.send({"never": "read"})
    one.send({"last": "words"})
    one.close()
    assert two.receive(1.0) == ({"last": "words"}, [])
    with pytest.raises(Closed):
        two.receive(1.0)
    two.close()


def test_one_who_never_listens_holds_up_nobody() -> None:
    one, two = Channel.pair()
    with pytest.raises(Closed):
        for _ in range(100_000):
            one.send({"x": "y" * 1000})
    one.close()
    two.close()


@pytest.mark.parametrize("garbage", [b"{", b"[1]", b"\xff\xfe"])
def test_what_cannot_be_understood_counts_as_an_end(garbage: bytes) -> None:
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    left.send(garbage)
    channel = Channel(right)
    with pytest.raises(Closed, match="a message that is no"):
        channel.receive(1.0)
    left.close()
    channel.close()


def test_a_message_that_is_too_long_is_not_taken_for_a_shorter_one() -> None:
    one, two = Channel.pair()
    one.send({"x": "y" * 150_000})
    with pytest.raises(Closed, match="too long"):
        two.receive(1.0)
    one.close()
    two.close()


def test_a_descriptor_of_another_kind_is_refused() -> None:
    stream, other = socket.socketpair()
    read, write = os.pipe()
    for fd in (stream.fileno(), read, 987):
        with pytest.raises(Closed, match="descriptor"):
            Channel.inherited(fd)
    for fd in (read, write):
        os.close(fd)
    stream.close()
    other.close()


def test_what_a_signal_handler_raises_is_no_end_of_the_channel() -> None:
    """The usual time limit, and an OSError, like those that tell of an end."""

    def late(*_: object) -> None:
        raise TimeoutError("the job took too long")

    ours, theirs = Channel.pair()
    before = signal.signal(signal.SIGALRM, late)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(TimeoutError, match="too long"):
            ours.receive(20.0)
    finally:
        signal.signal(signal.SIGALRM, before)
        ours.close()
        theirs.close()


def test_a_message_is_heard_also_where_no_descriptor_is_free_for_its_file(caplog: pytest.LogCaptureFixture) -> None:
    one, other = Channel.pair()
    taken = [os.open(os.devnull, os.O_RDONLY)]
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        for _ in range(2):
            one.send({"hold": 7}, taken)
        resource.setrlimit(resource.RLIMIT_NOFILE, (taken[0] + 1, limits[1]))
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.dup(taken[0]))
        assert [other.receive(1), other.receive(1)] == [({"hold": 7}, [])] * 2
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        for fd in taken:
            os.close(fd)
        one.close()
        other.close()
    assert [each.message for each in caplog.records] == [
        "no descriptor is free (ulimit -n): what is started now may outlive a crash"
    ]
