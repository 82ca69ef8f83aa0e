"""Has every Python that finds this on its path believe that the kernel can do nothing for a lease."""

from spark_lease.system import kernel

kernel.why_not = lambda: "the campaign's control"  # type: ignore[assignment]
