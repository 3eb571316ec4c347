"""Checks a bundle's word, by anyone, without the device.

level 0   files are the ones listed, every mustpass name was run exactly once, and what is certified follows
level 1   and it is signed by keys that you trust
level 2   and the outputs that were kept are right: inputs and expected values are made anew from the seed
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from conformance import identity, mustpass
from conformance.certificate import issue, sections, waivers
from conformance.certificate.records import (
    SCHEMA_VERSION,
    STATEMENT_TYPE,
    Declared,
    Outcome,
    Predicate,
    Statement,
    decode_lines,
)
from conformance.certificate.sign import check_available, signers
from conformance.certificate.waivers import Waiver
from conformance.child import sample_name
from conformance.mutants import record
from core.errors import ConfigError
from core.plugin.identity import Plugin, sha256


@dataclass(frozen=True)
class Bundle:
    """A bundle as read. `data` are the bytes of certificate.json."""

    folder: Path
    data: bytes
    statement: Statement
    declared: list[Declared]
    outcomes: list[Outcome]
    waivers: tuple[Waiver, ...]
    extra: sections.Extra | None

    @property
    def predicate(self) -> Predicate:
        return self.statement.predicate


def read(folder: Path) -> Bundle:
    """Raises: ConfigError when it is no bundle, or one of another version."""
    try:
        data = (folder / issue.CERTIFICATE).read_bytes()
        statement = msgspec.json.decode(data, type=Statement)
        lines = decode_lines((folder / issue.RESULTS).read_bytes())
        held = waivers.read((folder / issue.WAIVERS).read_bytes(), issue.WAIVERS)
    except OSError as error:
        raise ConfigError(f"{folder} is not a bundle: {error.strerror}: {error.filename}") from error
    except msgspec.DecodeError as error:
        raise ConfigError(f"{folder} is not a bundle that this version reads: {error}") from error
    if statement.predicate.schema_version != SCHEMA_VERSION or statement.type_ != STATEMENT_TYPE:
        raise ConfigError(
            f"{folder} has schema {statement.predicate.schema_version}: this version reads {SCHEMA_VERSION}"
        )
    declared = [line for line in lines if isinstance(line, Declared)]
    outcomes = [line for line in lines if isinstance(line, Outcome)]
    return Bundle(folder, data, statement, declared, outcomes, held, sections.read(folder))


def complaints(bundle: Bundle, level: int, keys: Sequence[Path] = (), threshold: int = 1, nonce: str = "") -> list[str]:
    """What is wrong with a bundle, at a level and the ones below; nothing, if it holds.

    keys       public keys that you trust; `threshold` of them must have signed
    nonce      the one that you gave; empty: any

    Raises: ConfigError when it cannot be checked here.
    """
    found = [*_files(bundle), *_identity(bundle, nonce), *_coverage(bundle), *_verdict(bundle)]
    found += sections.complaints(bundle.predicate, bundle.extra, bundle.waivers)
    if level == 1 or keys:
        found += _signatures(bundle, keys, threshold)
    if level >= 2 and not found:
        from conformance.certificate.replay import replay

        found += replay(bundle)
    return found


def _files(bundle: Bundle) -> Iterator[str]:
    own = {issue.CERTIFICATE, issue.SIGNATURES}
    there = {p.relative_to(bundle.folder).as_posix() for p in bundle.folder.rglob("*") if p.is_file()} - own
    listed = {subject.name: subject.digest.get("sha256") for subject in bundle.statement.subject}
    if len(listed) != len(bundle.statement.subject):
        yield "certificate.json lists a file twice"
    for name in sorted(there ^ set(listed)):
        yield f"{name} is {'not listed in certificate.json' if name in there else 'missing'}"
    for name in sorted(there & set(listed)):
        if sha256(bundle.folder / name) != listed[name]:
            yield f"{name} is not the file that was certified: its SHA-256 differs"
    for outcome in bundle.outcomes:
        name = f"{issue.SAMPLES}/{sample_name(outcome.task)}"
        if listed.get(name, "") != outcome.sample:
            yield f"{outcome.case}: the sample of its outputs is not the one that its result names"


def _identity(bundle: Bundle, nonce: str) -> Iterator[str]:
    """Suite, plugin and seed."""
    p, suite = bundle.predicate, issue.suite_record()
    if p.suite != suite:
        yield (
            f"it was made by suite {p.suite.version} ({p.suite.tree_sha256[:12]}), and this is {suite.version} "
            f"({suite.tree_sha256[:12]}): check it with the suite that made it"
        )
    plugin = Plugin(p.plugin.name, p.plugin.distribution, p.plugin.version, p.plugin.files)
    if p.seed != issue.seed_record(p.suite, plugin, p.seed.nonce):
        yield "the seed does not follow from suite, plugin and nonce"
    if nonce and p.seed.nonce != nonce:
        yield f"it was made with the nonce {p.seed.nonce!r}, not with yours"
    try:
        installed = identity.plugin(p.plugin.name)
    except ConfigError:
        return  # examined elsewhere
    for name in sorted(set(installed.files) | set(p.plugin.files)):
        if installed.files.get(name) != p.plugin.files.get(name):
            yield f"the plugin {p.plugin.name} that is installed here is not the one certified: {name} differs"


def _coverage(bundle: Bundle) -> Iterator[str]:
    """Every mustpass name was declared with every provider of its kernel, and run exactly once if supported."""
    p = bundle.predicate
    declared = Counter(d.task for d in bundle.declared)
    results = Counter(o.task for o in bundle.outcomes)
    names = {(d.case, d.provider) for d in bundle.declared}
    for name in mustpass.names(p.level):
        for provider in p.device.providers.get(name.partition("/")[0], [""]):
            if (name, provider) not in names:
                yield f"{name} was never declared{f' for {provider}' if provider else ''}"
    for task, times in declared.items():
        if times > 1:
            yield f"{task.case} ({task.provider}) was declared {times} times"
    unsupported = {d.task for d in bundle.declared if d.unsupported}
    for task, times in results.items():
        if times > 1:
            yield f"{task.case} ({task.provider}) was run {times} times"
        if task not in declared or task in unsupported:
            yield f"{task.case} ({task.provider}) was run without having been declared"
    for task in declared:
        if task not in unsupported and task not in results:
            yield f"{task.case} ({task.provider}) was declared and never run"


def _verdict(bundle: Bundle) -> Iterator[str]:
    """Whether counts, tier and result follow from the outcomes, and the outcomes from their findings."""
    p = bundle.predicate
    today = waivers.day_of(p.finished)
    for outcome in bundle.outcomes:
        waived = any(w.covers(outcome.case, p.device.name, today) for w in bundle.waivers)
        good = outcome.status != "error" and all(f.ok for f in outcome.result.findings)
        wanted = ("fail" if good else "waived") if waived else ("pass" if good else "fail")
        if outcome.status not in (wanted, "waived" if waived else "error"):
            yield f"{outcome.case}: its status {outcome.status!r} does not follow from what was measured and waived"
    counts = issue.count(bundle.declared, bundle.outcomes)
    if counts != p.counts:
        yield f"the counts {p.counts} do not follow from the results: {counts}"
    if p.mutation is not None and p.mutation.catalogue_sha256 != record.catalogue_sha256():
        yield "the mutation score is of another catalogue"
    if issue.tier(p.device, bundle.outcomes) != p.tier:
        yield f"the tier {p.tier!r} does not follow from the results"
    if issue.result(counts, p.mutation, p.onnx, p.speed) != p.result:
        yield f"the result {p.result!r} does not follow from the counts"
    if p.result != "PASSED":
        failures = [*(p.onnx.failures if p.onnx else []), *(p.speed.wrong if p.speed else [])]
        more = f"; and {', '.join(failures)}" if failures else ""
        yield f"it says that the device failed: {counts.failed} failed, {counts.missing} missing{more}"


def _signatures(bundle: Bundle, keys: Sequence[Path], threshold: int) -> Iterator[str]:
    check_available()
    if not keys:
        raise ConfigError("level 1 checks signatures: name the public keys that you trust with --key")
    path = bundle.folder / issue.SIGNATURES
    if not path.exists():
        yield "it is not signed"
        return
    try:
        found = signers(path.read_bytes(), bundle.data, list(keys))
    except ValueError as error:
        yield str(error)
        return
    if len(found) < threshold:
        yield f"{len(found)} of the keys that you trust signed it ({', '.join(found) or 'none'}), not {threshold}"
