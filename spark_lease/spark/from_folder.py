"""PySpark from its folder instead of the zip that spark-submit names: a zip has no byte code.

Python compiles what it imports from a zip at each start. For PySpark that takes half a second.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from zipimport import ZipImportError, zipimporter

_ZIP = Path("python/lib/pyspark.zip")
_VERSION = "pyspark/version.py"


def import_pyspark() -> None:
    """Import it, if its folder is found beside the zip. `sys.path` stays as it was, and executors take the zip."""
    folder = next(filter(None, map(_folder_beside, sys.path)), None)
    if folder is None:
        return
    with suppress(ImportError):  # it is said when it is needed
        import py4j  # noqa: F401  # the one that spark-submit names

        sys.path.insert(0, str(folder))
        try:
            import pyspark  # noqa: F401
        finally:
            sys.path.remove(str(folder))


def _folder_beside(entry: str) -> Path | None:
    """The folder to import from in place of the zip `entry`: a Spark distribution's, or that of pip's pyspark."""
    if not Path(entry).match(str(_ZIP)):
        return None
    home = Path(entry).parents[2]
    for folder in (home / "python", *([home.parent] if home.name == "pyspark" else [])):
        with suppress(OSError, ZipImportError):  # an administrator may have replaced one of the two
            is_same = (folder / _VERSION).read_bytes() == zipimporter(entry).get_data(_VERSION)
            if is_same and (folder / "pyspark" / "__init__.py").is_file():
                return folder
    return None
