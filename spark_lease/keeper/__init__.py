"""The keeper, a process beside the driver that keeps its lease, and the kernel's part in that."""
