"""What mapped files take of this process's memory."""

from pathlib import Path

import psutil


def resident_bytes(path: Path) -> int:
    """Pages of a file that count as this process's memory, over all its mappings."""
    return sum(m.rss for m in psutil.Process().memory_maps() if m.path == str(path.resolve()))
