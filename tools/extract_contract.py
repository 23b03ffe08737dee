"""Extract from a released vLLM the facts that the wire depends on, and compare them with what is recorded.

Usage::

    python tools/extract_contract.py NEW             print how NEW differs from the newest contract before it, and
                                                     what of our wire does not hold for it
    python tools/extract_contract.py --write NEW…    write integration_tests/contracts/vllm-X.json
    python tools/extract_contract.py --check OLD…    exit 1 where OLD differs from its contract

NEW and OLD are a version (its wheel is fetched, about 130 MB, and deleted), a wheel, or a directory that holds the
package, such as the site-packages of an installed vLLM. The package is parsed, never imported.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import contract_checks
import contract_checks_legacy
from contract_facts import Facts, facts
from contract_rules import Contract
from contract_sources import open_tree
from weightwire.versions import within
from weightwire_vllm_legacy import plugin as legacy

CONTRACTS = Path(__file__).resolve().parent.parent / "integration_tests" / "contracts"


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    parser = argparse.ArgumentParser(description="Extract and compare vLLM's wire contract.")
    parser.add_argument("what", nargs="+", help="a version, a wheel, or a directory that holds the package")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--check", action="store_true", help="compare with the recorded contract of the same version")
    mode.add_argument("--write", action="store_true", help="record the contract")
    parser.add_argument("--contracts", type=Path, default=CONTRACTS, help="where contracts are kept")
    given = parser.parse_args(arguments)
    codes = [_one(what, given.contracts, check=given.check, write=given.write) for what in given.what]
    return max(codes)


def _one(what: str, contracts: Path, *, check: bool, write: bool) -> int:
    with open_tree(what) as tree:
        version, found = tree.version(), facts(tree)
    if write:
        record(version, found, contracts=contracts)
        print(f"vllm {version}: {len(found)} facts written")
        return 0
    if check:
        return _check(version, found, contracts)
    known = [other for other in recorded(contracts) if _order(other) < _order(version)]
    if not known:
        print(f"vllm {version}: no older contract is known")
        return 0
    lines = difference(load(known[-1], contracts), found)
    print(f"vllm {version} against {known[-1]}: {len(lines)} facts differ", *lines, sep="\n")
    broken = breaches(Contract(version, found))
    print(f"what we send and believe: {len(broken)} breaches", *(f"  {breach}" for breach in broken), sep="\n")
    return 0


def breaches(contract: Contract) -> list[str]:
    """What the control plane that speaks to that version sends or believes, and does not hold for it."""
    if within(contract.version, since=legacy.SINCE, before=legacy.BEFORE):
        return contract_checks_legacy.breaches(contract)
    return contract_checks.breaches(contract)


def _check(version: str, found: Facts, contracts: Path) -> int:
    if version not in recorded(contracts):
        print(f"vllm {version}: no contract is recorded")
        return 1
    lines = difference(load(version, contracts), found)
    print(f"vllm {version}: {len(lines)} facts differ from the contract, of {len(found)}", *lines, sep="\n")
    return 1 if lines else 0


def recorded(contracts: Path) -> list[str]:
    """The versions with a contract, oldest first."""
    return sorted((path.stem.removeprefix("vllm-") for path in contracts.glob("vllm-*.json")), key=_order)


def load(version: str, contracts: Path) -> Facts:
    """The recorded facts of one version."""
    document = json.loads((contracts / f"vllm-{version}.json").read_text())
    kept: Facts = document["facts"]
    return kept


def record(version: str, found: Facts, *, contracts: Path) -> None:
    """Write the contract of one version, a fact a line: a difference then reads well in a review."""
    rows = [f"  {json.dumps(key)}: {json.dumps(fact, ensure_ascii=False)}" for key, fact in found.items()]
    text = f'{{"vllm": {json.dumps(version)}, "facts": {{\n' + ",\n".join(rows) + "\n}}\n"
    (contracts / f"vllm-{version}.json").write_text(text)


def difference(old: Facts, new: Facts) -> list[str]:
    """One entry a fact that differs, by its id: what it was, what it is."""
    lines = []
    for key in sorted(old.keys() | new.keys()):
        before, after = old.get(key, "(absent)"), new.get(key, "(absent)")
        if before != after:
            lines.append(f"  {key}\n    - {json.dumps(before)}\n    + {json.dumps(after)}")
    return lines


def _order(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())


if __name__ == "__main__":
    sys.exit(main())
