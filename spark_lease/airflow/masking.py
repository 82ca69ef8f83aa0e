"""Secrets that Airflow has to leave out of its logs."""

from __future__ import annotations

from airflow.providers.common.compat.sdk import mask_secret

_SHORTEST = 5
"""Airflow masks nothing shorter, and warns about it."""


def mask(*secrets: str) -> None:
    for secret in secrets:
        if len(secret) >= _SHORTEST:
            mask_secret(secret)
