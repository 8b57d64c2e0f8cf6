"""A contract of import-linter: no module imports itself through other modules.

import-linter has such a contract since 2.6, which needs a rich that ai2-olmo-core does not allow.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, output


class AcyclicContract(Contract):
    """Broken by each group of modules that import each other, directly or through others."""

    type_name = "acyclic"

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        imports = {
            module: graph.find_modules_directly_imported_by(module) & graph.modules
            for module in graph.modules
        }
        circles = list(find_circles(imports))
        return ContractCheck(kept=not circles, metadata={"circles": circles})

    def render_broken_contract(self, check: ContractCheck) -> None:
        for circle in check.metadata["circles"]:
            output.print_error(f"These modules import each other: {', '.join(circle)}")


def find_circles(imports: Mapping[str, Set[str]]) -> Iterator[list[str]]:
    """Yield each largest group of modules of which every one reaches every other.

    `imports`: the modules that each module imports.
    """
    reached = {module: _reachable(module, imports) for module in imports}
    seen: set[str] = set()
    for module in sorted(imports):
        if module in seen or module not in reached[module]:
            continue
        circle = {other for other in reached[module] if module in reached[other]}
        seen |= circle
        yield sorted(circle)


def _reachable(module: str, imports: Mapping[str, Set[str]]) -> set[str]:
    """Return the modules that a module imports, directly or not."""
    reached: set[str] = set()
    waiting = list(imports[module])
    while waiting:
        current = waiting.pop()
        if current not in reached:
            reached.add(current)
            waiting += imports.get(current, ())
    return reached
