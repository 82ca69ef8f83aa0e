"""A small init for a container whose first process is `spark-lease`.

The kernel drops every signal that a container's own processes, timers or pipes send to its pid 1 to kill it
(pid_namespaces(7)). A process that a lease must end must not be pid 1. So pid 1 forks: the child does the work. When
the child has ended, pid 1 ends too, and with pid 1 the kernel ends everything in the container.
"""

import contextlib
import os
import signal

from .processes import shell_code

_FORWARDED = {
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGWINCH,
}


def leave_pid_1() -> None:
    """Return in a child if this process is pid 1, which then ends with the child's exit code; else do nothing.

    Call it while this process has one thread.
    """
    if os.getpid() != 1:
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {*_FORWARDED, signal.SIGCHLD})
    if child := os.fork():
        os._exit(_mind(child))
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _mind(child: int) -> int:
    """Forward signals to the child and reap all that ends, until the child has ended; return its exit code."""
    while True:
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == child:
                    return shell_code(os.waitstatus_to_exitcode(ended[1]))
        info = signal.sigwaitinfo({*_FORWARDED, signal.SIGCHLD})
        if info.si_signo in _FORWARDED and not came_from_a_terminal(info):
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, info.si_signo)


def came_from_a_terminal(info: signal.struct_siginfo) -> bool:
    """True if the kernel has sent the signal, to the whole foreground group of a terminal (sigaction(2), si_code)."""
    return info.si_code > 0
