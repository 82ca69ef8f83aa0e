"""The settings as keyword arguments, for type checkers and editors. `config/settings.py` says what each means."""

from collections.abc import Callable, Sequence
from typing import Literal, TypedDict

from ..errors import LeaseLost


class Settings(TypedDict, total=False):
    """The settings that `hold_lease` and `leased` take besides a name. Durations are seconds."""

    url: str
    storage_options: dict[str, str]
    fence_url: str
    fence_password: str
    password: str
    table: str
    create_table: bool | Literal["true", "false", "auto"]
    column_types: dict[str, str]
    statements: dict[str, str]
    locker: Literal["lease", "database"]
    broker_row: bool | Literal["true", "false", "auto"]
    holder: str
    site: str
    preferred_site: str
    lease_duration: float
    renew_deadline: float
    stop_budget: float
    kill_budget: float
    retry_period: float
    attempt_timeout: float
    poll_period: float
    notify: bool
    acquire_timeout: float
    if_held: Literal["wait", "skip", "fail"]
    if_denied: Literal["fail", "wait"]
    standby_exit_code: int
    standby: Literal["cold", "warm"]
    warm_max_age: float
    on_lost: Literal["exit", "stop"] | Callable[[LeaseLost], object]
    keeper: Literal["auto", "process", "thread"]
    contain: Literal["auto", "required", "off"]
    require_protection: Literal["none", "keeper", "kernel", "contained"]
    release_on_death: float | Literal["local", "never"]
    run_key: str
    if_done: Literal["done", "skip"]
    run_retention: float
    history_retention: float
    fence_delta: Literal["auto", "required", "off"]
    fence_tables: Sequence[str]
    metrics: bool
    metrics_textfile: str
    metrics_push: str
    outcome_file: str
    max_allowable_diff_from_db_time: float
    enabled: bool
