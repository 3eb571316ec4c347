"""How many mutants of each file the tests have killed: `mutmut results --all true | python tests/mutation_score.py`.

A mutant that makes a test fail is killed, and so is one that makes it run without end. One that was not run counts as
alive. Prints a line for each file and the names of the survivors; ends with 1 where a file has fewer than LEAST killed.
`.venv/bin/mutmut show NAME` shows what a survivor changes; tests/MUTATION.md says why those that are left make no
difference.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict

LEAST = 0.8
KILLED = ("killed", "timeout")


def main() -> int:
    statuses: dict[str, Counter[str]] = defaultdict(Counter)
    survivors = []
    for line in sys.stdin:
        name, _, status = line.strip().partition(": ")
        module = name.rpartition(".")[0]
        statuses[module][status] += 1
        if status not in KILLED:
            survivors.append(f"{status:12} {name}")
    if not statuses:
        sys.exit("no results: `make mutation` makes them")
    lines, poor = survivors, False
    for module, counts in statuses.items():
        share = sum(counts[status] for status in KILLED) / counts.total()
        poor |= share < LEAST
        told = ", ".join(f"{num} {status}" for status, num in sorted(counts.items()))
        lines.append(f"{module}: {share:.1%} of {counts.total()} mutants killed ({told}); the least is {LEAST:.0%}")
    sys.stdout.write("\n".join(lines) + "\n")
    return int(poor)


if __name__ == "__main__":
    sys.exit(main())
