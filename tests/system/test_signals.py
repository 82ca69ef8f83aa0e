"""Signals around a fork, in processes of their own: a runner of tests has handlers itself."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

START = """
    import os, signal, sys, threading, time
    from spark_lease.system.signals import HandledSignals

    class Told(BaseException):
        pass

    def told(number, frame):
        raise Told

    handled = HandledSignals(told)
    handled.begin()
"""


def run(script: str) -> str:
    """What it prints, without a word of complaint."""
    code = textwrap.dedent(START) + textwrap.dedent(script)
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert ended.stderr == ""
    return ended.stdout


def test_a_child_is_ended_by_a_signal_that_comes_with_its_birth() -> None:
    """As `Pool.terminate` sends it; with a handler in Python it was forgotten now and then, and waited for."""
    said = run(
        """
        for _ in range(300):
            child = os.fork()
            if not child:
                time.sleep(5)  # which the signal ends
                os._exit(3)
            os.kill(child, signal.SIGTERM)
            if (code := os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])) != -signal.SIGTERM:
                print("a child outlived it:", code)
                break
        """
    )
    assert said == ""


def test_no_signal_stays_blocked_whatever_comes_amid_forks() -> None:
    """A handler that raises there is heard by nobody; it must not keep the signals from being let through again."""
    said = run(
        """
        import random
        sys.unraisablehook = lambda _: None

        class Alarm(Exception):
            pass

        def alarm(number, frame):
            raise Alarm

        signal.signal(signal.SIGALRM, alarm)
        for _ in range(1000):
            child = -1
            try:
                signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-5, 1.5e-3))
                if not (child := os.fork()):
                    os._exit(0)
                signal.setitimer(signal.ITIMER_REAL, 0)
            except Alarm:
                pass
            try:
                os.waitpid(child, 0)
            except (Alarm, ChildProcessError):
                pass
            if blocked := signal.pthread_sigmask(signal.SIG_BLOCK, ()):
                print(blocked)
                break
        """
    )
    assert said == ""


def test_a_child_has_the_handlers_that_were_there_before() -> None:
    said = run(
        """
        outer, old = HandledSignals(told), signal.getsignal(signal.SIGTERM)
        outer.begin()
        if not (child := os.fork()):
            print(signal.getsignal(signal.SIGTERM).name, signal.pthread_sigmask(signal.SIG_BLOCK, ()), flush=True)
            os._exit(0)
        os.waitpid(child, 0)
        outer.end()
        print(signal.getsignal(signal.SIGTERM) == old, signal.pthread_sigmask(signal.SIG_BLOCK, ()))
        """
    )
    assert said == "SIG_DFL set()\nTrue set()\n"


UNHEARD = """
    def unheard(number=signal.SIGTERM):  # as one that comes just before the main thread waits: it is not interrupted
        signal.pthread_kill(threading.get_ident(), number)

    def sleep(seconds):
        started = time.monotonic()
        try:
            time.sleep(seconds)
        except Told:
            print("told", "early" if time.monotonic() - started < seconds else "late")
"""


def test_a_signal_is_heard_that_came_just_before_a_call_that_blocks() -> None:
    said = run(
        UNHEARD
        + """
    def look():
        time.sleep(0.2)  # the main thread sleeps by then, which nothing tells
        unheard()
        for _ in range(50):
            handled.look()
            time.sleep(0.02)

    threading.Thread(target=look).start()
    sleep(10)
    sleep(1)  # and is sent once only
    """
    )
    assert said == "told early\n"


def test_who_has_heard_it_hears_it_once() -> None:
    said = run(
        """
        for _ in range(20):
            try:
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(5)
            except Told:
                print(end="x")
            for _ in range(3):
                handled.look()
        """
    )
    assert said == "x" * 20


def test_who_holds_it_back_for_a_while_hears_it_once() -> None:
    """It reaches another thread then; what wakes the main one must not be there once more when it is let through."""
    said = run(
        UNHEARD
        + """
    held_back = threading.Event()

    def look():
        held_back.wait()
        os.kill(os.getpid(), signal.SIGTERM)
        for _ in range(20):
            handled.look()
            time.sleep(0.02)

    thread = threading.Thread(target=look)
    thread.start()
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    held_back.set()
    sleep(10)
    thread.join()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    sleep(1)
    """
    )
    assert said == "told early\n"


def test_a_handler_of_the_programs_own_has_dealt_with_it() -> None:
    said = run(
        UNHEARD
        + """
    calls = []
    ours = signal.signal(signal.SIGTERM, lambda *_: calls.append(1))
    signal.raise_signal(signal.SIGTERM)
    for _ in range(3):
        handled.look()
    signal.signal(signal.SIGTERM, ours)
    for _ in range(3):
        handled.look()
    print(calls)
    """
    )
    assert said == "[1]\n"


def test_a_program_that_uses_the_waking_signal_is_not_sent_any() -> None:
    said = run(
        UNHEARD
        + """
    signal.signal(signal.SIGURG, lambda *_: print("urgent", flush=True))

    def look():
        time.sleep(0.2)  # the main thread sleeps by then, which nothing tells
        unheard()
        for _ in range(3):
            handled.look()

    threading.Thread(target=look).start()
    sleep(1)
    """
    )
    assert said == "told late\n"


EVENT_LOOPS = {
    "made before": (["new_loop()", "handled.begin()", "handled.end()"], True),
    "made inside": (["handled.begin()", "new_loop()", "handled.end()"], True),
    "closed inside": (["new_loop()", "handled.begin()", "loop.close()", "handled.end()"], False),
    "made and closed": (["handled.begin()", "new_loop()", "loop.close()", "handled.end()"], False),
    "nested": (["new_loop()", "handled.begin()", "inner.begin()", "handled.end()", "inner.end()"], True),
    "none, nested": (["handled.begin()", "inner.begin()", "handled.end()", "inner.end()"], False),
}


@pytest.mark.parametrize("name", EVENT_LOOPS)
def test_an_event_loop_keeps_its_own_descriptor(name: str) -> None:
    start = """
import asyncio
handled.end()
inner, descriptor = HandledSignals(told), 0

def new_loop():
    global loop, descriptor
    loop = asyncio.new_event_loop()
    loop.add_signal_handler(signal.SIGUSR1, print)
    descriptor = loop._csock.fileno()
"""
    check = """
now = signal.set_wakeup_fd(-1)
print(now == descriptor, now == -1, signal.getsignal(signal.SIGURG) is signal.SIG_DFL)
"""
    lines, is_kept = EVENT_LOOPS[name]
    assert run("\n".join([start, *lines, check])) == f"{is_kept} {not is_kept} True\n"
