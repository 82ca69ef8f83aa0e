"""The guard as one zip for `--py-files`: for the driver in a cluster, whose Python has nothing of it.

    python -m spark_lease.submit.bundle FILE.zip

It holds this package and what it needs, as far as that is pure Python (SQLAlchemy, PyMySQL); psycopg2 and deltalake are
not, and have to be where the driver runs.
"""

import importlib.util
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

_PACKAGES = ("spark_lease", "sqlalchemy", "typing_extensions", "pymysql")


def write_bundle(file: Path) -> Path:
    """Write the zip; returns `file`."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as bundle:
        for name in _PACKAGES:
            for source, inside in _sources(name):
                bundle.write(source, inside)
    return file


def _sources(name: str) -> Iterator[tuple[Path, str]]:
    """Each source file of a package or module, and its name in the zip; nothing if it is not installed."""
    found = importlib.util.find_spec(name)
    if found is None or found.origin is None:
        return
    origin = Path(found.origin)
    root = origin.parent.parent if found.submodule_search_locations else origin.parent
    there = sorted(origin.parent.rglob("*")) if found.submodule_search_locations else [origin]
    for source in there:
        if source.suffix in (".py", ".html"):
            yield source, str(source.relative_to(root))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    Path(sys.argv[1]).parent.mkdir(parents=True, exist_ok=True)
    print(write_bundle(Path(sys.argv[1])))
