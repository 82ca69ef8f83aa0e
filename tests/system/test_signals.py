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


def test_pysparks_handler_of_ctrl_c_does_not_replace_ours() -> None:
    said = run(
        """
        from spark_lease.system.signals import keep_sigint
        heard = []

        def hearing(name):
            def hear(number, frame):
                heard.append(name)
                handler.pass_on(number, frame)
            handler = HandledSignals(hear)
            handler.begin()
            return handler

        def interrupt():
            heard.clear()
            try:
                signal.raise_signal(signal.SIGINT)
            except KeyboardInterrupt:
                print(*heard)

        def pysparks(number, frame):
            heard.append("pyspark")
            raise KeyboardInterrupt

        pysparks.__module__ = "pyspark.core.context"
        handled.end()
        outer, inner = hearing("outer"), hearing("inner")
        interrupt()
        signal.signal(signal.SIGINT, pysparks)
        keep_sigint()
        keep_sigint()
        interrupt()
        if not (child := os.fork()):
            interrupt()  # a block of its parent is not its own
            sys.stdout.flush()
            os._exit(0)
        os.waitpid(child, 0)
        inner.end()
        interrupt()
        outer.end()
        print(signal.getsignal(signal.SIGINT) is pysparks)
        signal.signal(signal.SIGINT, lambda number, frame: print("its own"))
        outer.begin()
        keep_sigint()
        signal.raise_signal(signal.SIGINT)
        """
    )
    assert said.splitlines() == [
        "inner outer",
        "inner outer pyspark",
        "pyspark",
        "outer pyspark",
        "True",
        "its own",
    ]


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


def test_guards_that_end_in_any_order_give_back_what_was_there() -> None:
    said = run(
        """
        old = handled._old[signal.SIGTERM]
        later = HandledSignals(told)
        later.begin()
        handled.end()
        print(signal.getsignal(signal.SIGTERM) == later._on_signal, later.are_heard)
        later.end()
        print(signal.getsignal(signal.SIGTERM) is old)
        """
    )
    assert said == "True True\nTrue\n"


def test_a_guard_that_ends_on_another_thread_passes_signals_on() -> None:
    said = run(
        """
        handled.end()
        outer, told_of = HandledSignals(told), threading.Event()
        signal.signal(signal.SIGTERM, lambda *_: told_of.set())
        outer.begin()
        ending = threading.Thread(target=outer.end)
        ending.start()
        ending.join()
        os.kill(os.getpid(), signal.SIGTERM)
        print(told_of.wait(10))
        following = HandledSignals(told)
        following.begin()
        print(signal.getsignal(signal.SIGHUP) == following._on_signal)
        """
    )
    assert said == "True\nTrue\n"


@pytest.mark.parametrize("before", ["signal.SIG_DFL", "signal.SIG_IGN", "handler"])
def test_a_handler_of_the_program_that_goes_on_calling_ours_calls_what_was_there_before(before: str) -> None:
    said = run(
        """
        handled.end()
        handler = lambda *_: print("as before", flush=True)
        signal.signal(signal.SIGTERM, BEFORE)
        handled = HandledSignals(told)
        handled.begin()
        ours = signal.getsignal(signal.SIGTERM)
        signal.signal(signal.SIGTERM, lambda *args: (print("mine", flush=True), ours(*args)))
        handled.end()
        if not os.fork():
            os.kill(os.getpid(), signal.SIGTERM)
            print("alive", flush=True)
            os._exit(0)
        print(os.WIFSIGNALED(os.wait()[1]))
        """.replace("BEFORE", before)
    )
    assert (
        said
        == {
            "signal.SIG_DFL": "mine\nTrue\n",
            "signal.SIG_IGN": "mine\nalive\nFalse\n",
            "handler": "mine\nas before\nalive\nFalse\n",
        }[before]
    )


def test_a_handler_that_the_program_has_put_in_the_place_stays() -> None:
    said = run(
        """
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print(handled.are_heard)
        handled.end()
        print(signal.getsignal(signal.SIGTERM).name)
        """
    )
    assert said == "False\nSIG_IGN\n"


def test_what_the_program_blocks_later_stays_blocked_by_a_fork() -> None:
    said = run(
        """
        handled.end()
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        if not (child := os.fork()):
            print(signal.pthread_sigmask(signal.SIG_BLOCK, ()) == {signal.SIGTERM}, flush=True)
            os._exit(0)
        os.waitpid(child, 0)
        print(signal.pthread_sigmask(signal.SIG_BLOCK, ()) == {signal.SIGTERM})
        """
    )
    assert said == "True\nTrue\n"
