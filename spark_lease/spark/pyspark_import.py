"""Imports PySpark in a tenth of the time.

- From its folder. spark-submit names a zip, which has no byte code: Python compiles each module from there (0.6 s).
- Without pandas, which PySpark 4.2 imports at the first call of the JVM to find out whether an argument is NumPy's
  (1.2 s). With this module it looks only once the job itself has imported NumPy.
"""

import sys
from contextlib import suppress
from pathlib import Path
from typing import Any
from zipimport import ZipImportError, zipimporter

_ZIP = Path("python/lib/pyspark.zip")
_VERSION = "pyspark/version.py"


def import_pyspark() -> None:
    """Import PySpark from its folder, if that is beside the zip. `sys.path` stays unchanged; executors use the zip."""
    folder = next(filter(None, map(_folder_beside, sys.path)), None)
    if folder is None:
        return
    with suppress(ImportError):  # reported when PySpark is needed
        import py4j  # noqa: F401  # the one that spark-submit names

        sys.path.insert(0, str(folder))
        try:
            import pyspark  # noqa: F401
        finally:
            sys.path.remove(str(folder))
        ask_numpy_late()


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


def ask_numpy_late() -> None:
    """Keep the first call of the JVM from importing pandas. Call it after PySpark's import; twice does no harm."""
    from py4j import protocol

    protocol.INPUT_CONVERTER[:] = map(_if_numpy_is_imported, protocol.INPUT_CONVERTER)


class _NumpyConverter:
    """Wraps a PySpark converter that imports NumPy and pandas. Before the job imports NumPy, no argument is NumPy's."""

    def __init__(self, converter: Any) -> None:
        self._converter = converter
        self.convert = converter.convert

    def can_convert(self, obj: object) -> bool:
        return "numpy" in sys.modules and self._converter.can_convert(obj)


def _if_numpy_is_imported(converter: Any) -> Any:
    is_numpys = type(converter).__name__ in ("NumpyScalarConverter", "NumpyArrayConverter")
    return _NumpyConverter(converter) if is_numpys else converter
