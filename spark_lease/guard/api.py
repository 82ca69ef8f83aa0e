"""The public functions: `hold_lease` around a block, `@leased` on a main."""

import contextlib
import functools
import inspect
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, ParamSpec, TypeVar, Unpack, overload

from ..config.settings import Config
from ..config.sources import Layer, from_arguments, from_environment, from_file, from_spark, resolve
from ..errors import AlreadyDone, ConfigError, LeaseLost, SparkLeaseError
from ..lease import Lease
from ..monitoring.events import OnEvent
from ..outcome import exit_code_of, is_all_done
from ..spark.jvm import submitted_conf
from ..spark.warm_standby import WarmUp
from .block import Guard
from .held import held_names, refuse_own
from .typed import Settings

log = logging.getLogger(__name__)

_P = ParamSpec("_P")
_R = TypeVar("_R")

INTERRUPTED = 128 + signal.SIGINT


def hold_lease(
    name: str | None = None,
    *,
    on_event: OnEvent | None = None,
    warm_up: WarmUp | None = None,
    **settings: Unpack[Settings],
) -> Guard:
    """`with hold_lease("nightly-flights") as lease:` runs the block as the only master, or not at all.

    `settings` are those of `config/settings.py`. A setting that is not given comes from spark.lease.*, the environment,
    the TOML file or the defaults, in this order. Entering waits as `acquire_timeout` and `if_held` say, and raises
    LeaseHeldByOther, AlreadyDone (for the `run_key`), StoreError, Fenced or ConfigError. Leaving stops Spark if Spark
    is busy, then releases the lease; work that an idle Spark does later has no lease.

    Raises LeaseLost, `from` the exception of the block, if the lease was lost before the block ended. With
    `on_lost = "exit"` (default) the process then ends within `stop_budget`, if need be by SIGKILL of its JVM and exit
    code 75. With "stop" Spark is stopped and the process lives on. A callable is called with the LeaseLost on a thread
    of its own, and decides what happens after Spark is stopped. SIGTERM and SIGHUP end the block, if it is in the main
    thread, and raise SystemExit(128 + n) after the release; so does a Ctrl-C that the block has caught. `on_event`
    gets each `LeaseEvent` (standby, held, in doubt, certain, lost, ended) on a thread of its own.

    `warm_up` makes this process a warm standby (`standby = "warm"`, unless `standby` says otherwise): while another is
    master, `warm_up` is called on a thread of its own, and again every `warm_max_age` seconds. `warm_up()` may make the
    session as the block will; `warm_up(spark)` gets a session with spark-submit's configuration. It may read; a write
    to Delta raises NotMaster. The block begins as soon as the lease is free, even if `warm_up` has not returned.
    """
    if warm_up:
        settings = {"standby": "warm", **settings}
    return Guard(load_config(from_arguments({"name": name, **settings})), on_event=on_event, warm_up=warm_up)


@overload
def leased(name: Callable[_P, _R], /) -> Callable[..., _R]: ...


@overload
def leased(
    name: str | None = None,
    *,
    on_event: OnEvent | None = None,
    warm_up: WarmUp | None = None,
    **settings: Unpack[Settings],
) -> Callable[[Callable[..., _R]], Callable[..., _R]]: ...


def leased(
    name: Any = None, *, on_event: OnEvent | None = None, warm_up: WarmUp | None = None, **settings: Unpack[Settings]
) -> Any:
    """Run a program's main under the lease `name`. `@leased` alone takes the name from the settings.

    A main with a parameter `lease` gets the lease there, as a keyword, unless the caller passes a value for it. If
    `lease` is the first parameter, callers must pass the others by name: else TypeError, unless `lease` is annotated
    with another type. A framework that reads the signature (Typer, Prefect) does not see `lease`.

    Settings and waiting are those of `hold_lease`. Because the end of main ends the program, an error that keeps main
    from running becomes an exit code: 0 already done, 99 standby, 75 lost, 69 no store, 78 configuration, 128 + n a
    signal. With `on_lost` other than "exit" the errors are raised instead.
    """

    if callable(name):
        return leased()(name)

    def decorate(main: Callable[..., _R]) -> Callable[..., _R]:
        _refuse_what_is_no_main(main)
        signature = inspect.signature(main)
        found = signature.parameters.get("lease")
        wants_lease = found is not None and found.kind in (found.POSITIONAL_OR_KEYWORD, found.KEYWORD_ONLY)

        @functools.wraps(main)
        def guarded(*args: Any, **kwargs: Any) -> _R:
            config, own_error = None, None
            passes = wants_lease and "lease" not in signature.bind_partial(*args, **kwargs).arguments
            _refuse_in_its_place(signature, args)
            # A call with wrong arguments raises TypeError now, not after hours as a standby.
            signature.bind(*args, **kwargs, **({"lease": None} if passes else {}))
            try:
                guard = hold_lease(name, on_event=on_event, warm_up=warm_up, **settings)
                config = guard.config
                with guard as lease:
                    try:
                        if passes:
                            kwargs["lease"] = lease
                        result = main(*args, **kwargs)
                        _refuse_work_to_come(result)
                        return result
                    except SparkLeaseError as error:
                        own_error = error
                        raise
            except (SparkLeaseError, KeyboardInterrupt) as error:
                on_lost = config.on_lost if config else settings.get("on_lost", "exit")
                if on_lost != "exit" or (error is own_error and not (config and is_all_done(error, config))):
                    raise
                level = logging.WARNING if isinstance(error, AlreadyDone) else logging.ERROR
                log.log(level, "%s", str(error) or f"{config.name if config else name}: interrupted")
                if isinstance(error, LeaseLost):
                    end_process(error.exit_code)
                code = exit_code_of(error, config) if isinstance(error, SparkLeaseError) else INTERRUPTED
                raise SystemExit(code) from error

        if wants_lease and _is_ours(signature.parameters["lease"]):
            guarded.__signature__ = _without_lease(signature)  # type: ignore[attr-defined]
            guarded.__annotations__ = {k: v for k, v in guarded.__annotations__.items() if k != "lease"}
        return guarded

    return decorate


def _refuse_what_is_no_main(main: Callable[..., Any]) -> None:
    """Raise TypeError if `main` is a callable whose work would run unguarded."""
    what = getattr(main, "__qualname__", None) or getattr(main, "name", main)
    if inspect.iscoroutinefunction(main) or inspect.isgeneratorfunction(main) or inspect.isasyncgenfunction(main):
        raise TypeError(f"{what} is async or a generator: {_CALL_IT_INSIDE}")
    if isinstance(main, type):
        raise TypeError(f"{what} is a class: decorate the function that does the work")
    if "click" in sys.modules and isinstance(main, sys.modules["click"].Command):
        # Its click group has this command already, and calls it without our wrapper.
        raise TypeError(f"{what} is a click command: put @leased below @click.command(), next to the function")


def _refuse_in_its_place(signature: inspect.Signature, args: Sequence[Any]) -> None:
    """Raise TypeError if a positional argument would be taken for the lease.

    `main("2026-01-02")` of `def main(lease, day="2026-01-01")` would process the default day, and record it as done. A
    parameter `lease` that is annotated with another type belongs to the program.
    """
    given = signature.bind_partial(*args).arguments.get("lease")
    if given is None or isinstance(given, Lease):
        return
    if _is_ours(signature.parameters["lease"]):
        kind = type(given).__name__
        raise TypeError(f"a {kind} was given in the place of the lease: give all but the lease by name")


def _is_ours(parameter: inspect.Parameter) -> bool:
    return parameter.annotation is parameter.empty or "Lease" in str(parameter.annotation)


def _without_lease(signature: inspect.Signature) -> inspect.Signature:
    """The signature for callers: without `lease`, and with keyword-only parameters after it."""
    found = list(signature.parameters.values())
    at = list(signature.parameters).index("lease")
    behind = [
        each.replace(kind=each.KEYWORD_ONLY) if each.kind is each.POSITIONAL_OR_KEYWORD else each
        for each in found[at + 1 :]
        if each.kind is not each.VAR_POSITIONAL
    ]
    return signature.replace(parameters=[*found[:at], *behind])


_CALL_IT_INSIDE = "decorate a main that calls asyncio.run, or use hold_lease around asyncio.run"


def _refuse_work_to_come(result: object) -> None:
    """Raise TypeError if main returned unfinished work (a coroutine, a generator): it would run after the release."""
    if not (inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result)):
        return
    if inspect.iscoroutine(result) or inspect.isgenerator(result):
        result.close()
    elif "asyncio" in sys.modules and isinstance(result, sys.modules["asyncio"].Future):
        result.cancel()
    kind = type(result).__name__
    raise TypeError(f"the main returned a {kind}, whose work would run without the lease: {_CALL_IT_INSIDE}")


def end_process(code: int) -> NoReturn:
    """End a program at once after its lease was lost.

    Python's own exit may hang for ever on a lock that a thread held when Python ended that thread; by then no code of
    ours runs any more.
    """
    with contextlib.suppress(OSError, ValueError, AttributeError):
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def load_config(strongest: Layer) -> Config:
    """The settings for a guard in this process, from all sources. Raises ConfigError."""
    layers = [from_spark(submitted_conf()), from_environment(), from_file()]
    if held_names():  # a run key from outside belongs to the outermost lease
        layers = [Layer(each.origin, {k: v for k, v in each.values.items() if k != "run_key"}) for each in layers]
    config = resolve(strongest, *layers).config
    if not config.name:
        how = 'hold_lease("nightly-flights"), @leased("nightly-flights"), --lease or SPARK_LEASE_NAME'
        raise ConfigError("name", f"a lease needs a name: {how}")
    refuse_own(config)
    return config
