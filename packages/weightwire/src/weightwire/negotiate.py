"""Choosing: which control plane speaks to an engine, which data plane feeds it, which source claims a model."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TypeVar, cast

from weightwire.deadlines import Deadline
from weightwire.errors import CompatibilityError, ConfigurationError, PluginError
from weightwire.http import Http
from weightwire.messages import EngineInfo, EngineKind
from weightwire.options import Options
from weightwire.planes import ControlPlane, DataPlane, WeightSource
from weightwire.registry import ControlPlaneEntry, DataPlaneEntry, Registry, WeightSourceEntry, load
from weightwire.versions import release, within

log = logging.getLogger(__name__)

N = TypeVar("N", ControlPlaneEntry, DataPlaneEntry, WeightSourceEntry)

BY_NAME_ONLY = -1
"""Data planes of this priority or less are used only when they are asked for by name."""

_UNCHECKED = (
    "%s %s was never tested: the control plane %r takes it for the newest release it knows, before %s. Not checked are "
    "its routes and payloads, the words of its refusals, how it reloads layers, and how it recovers."
)
_INSTALL_FOR_VLLM = (("0.17", "0.21", "weightwire-vllm-legacy"), ("0.21", "1.0", "weightwire-vllm"))
_INSTALL_FOR_BACKEND = {"nccl": "weightwire-torch[nccl]", "weightwire": "weightwire-torch"}


def control_plane(registry: Registry, http: Http, options: Options, deadline: Deadline) -> ControlPlane:
    """Ask the engine what it is, and make the control plane that speaks to it.

    Raises:
        EngineUnreachable, DeadlineExceeded: nothing answers.
        CompatibilityError: no installed control plane knows this engine, or this release of it.
        ConfigurationError: ``options.control_plane`` names none that is installed.
    """
    entries = _candidates(registry, options)
    versions = _identify(entries, http, deadline)
    for entry in entries:
        version = versions.get(entry.identify)
        if version is not None and within(version, since=entry.since, before=entry.before):
            return _make(entry, http, version, options)
    known = [(entry, version) for entry in entries if (version := versions.get(entry.identify)) is not None]
    return _beyond_the_table(registry, known, http, options)


def data_plane(registry: Registry, infos: Sequence[EngineInfo], options: Options) -> tuple[str, DataPlane]:
    """Make the data plane that can feed every one of the engines; also return its name.

    Raises:
        CompatibilityError: none that is installed can be used here; says why for each.
        ConfigurationError: ``options.data_plane`` names none that is installed.
    """
    backends = {info.backend for info in infos}
    fitting = [entry for entry in registry.data_planes.values() if backends <= set(entry.backends)]
    if options.data_plane:
        entry = _named(registry.data_planes, options.data_plane, "data plane", "data_plane")
        return entry.name, cast("Callable[[], DataPlane]", load(entry.factory))()
    reasons = []
    for entry in sorted(fitting, key=lambda entry: -entry.priority):
        reason = "it is used only by name" if entry.priority <= BY_NAME_ONLY else _why_not(entry, infos)
        if not reason:
            return entry.name, cast("Callable[[], DataPlane]", load(entry.factory))()
        reasons.append(f"{entry.name}: {reason}")
    raise _no_data_plane(sorted(backends), reasons)


def weight_source(registry: Registry, model: object, options: Options) -> WeightSource:
    """Make the source with the most specific claim to *model*; a source is taken as it is.

    Raises:
        CompatibilityError: none claims it.
        ConfigurationError: ``options.weight_source`` names none that is installed, or one that can't read *model*.
    """
    if isinstance(model, WeightSource):
        return model
    if options.weight_source:
        entry = _named(registry.weight_sources, options.weight_source, "weight source", "weight_source")
        _refuse_unclaimed(entry, model)
    else:
        entry = _most_specific(registry, model)
    return cast("Callable[[object, Options], WeightSource]", load(entry.factory))(model, options)


def _claim(entry: WeightSourceEntry, model: object) -> int:
    return cast("Callable[[object], int]", load(entry.claim))(model)


def _kind(model: object) -> str:
    return f"{type(model).__module__}.{type(model).__qualname__}"


def _refuse_unclaimed(entry: WeightSourceEntry, model: object) -> None:
    """Refuse a source that was named for something which it can't read."""
    if _claim(entry, model) <= 0:
        raise ConfigurationError(
            f"The option `weight_source` names {entry.name!r}, which can't read a {_kind(model)}.",
            hint="leave it unset, and the source is chosen by the model",
        )


def _most_specific(registry: Registry, model: object) -> WeightSourceEntry:
    claims = [(_claim(entry, model), entry) for entry in registry.weight_sources.values()]
    best = max(claims, key=lambda claim: claim[0], default=None)
    if best is None or best[0] <= 0:
        known = ", ".join(sorted(registry.weight_sources)) or "none"
        raise CompatibilityError(
            f"No installed weight source can read a {_kind(model)}; installed are: {known}.",
            hint="pip install weightwire-torch (modules and checkpoints), weightwire-fsdp2 or weightwire-deepspeed",
        )
    return best[1]


def _candidates(registry: Registry, options: Options) -> list[ControlPlaneEntry]:
    if options.control_plane:
        return [_named(registry.control_planes, options.control_plane, "control plane", "control_plane")]
    if not registry.control_planes:
        raise PluginError("No control plane is installed.", hint="pip install weightwire-vllm")
    # The newest range first: with allow_untested it is the newest dialect that is tried.
    return sorted(registry.control_planes.values(), key=lambda entry: release(entry.before), reverse=True)


def _identify(entries: Sequence[ControlPlaneEntry], http: Http, deadline: Deadline) -> dict[str, str | None]:
    functions = dict.fromkeys(entry.identify for entry in entries)
    return {reference: _version(reference, http, deadline) for reference in functions}


def _version(identify: str, http: Http, deadline: Deadline) -> str | None:
    version = cast("Callable[[Http, Deadline], str | None]", load(identify))(http, deadline)
    try:
        release("0" if version is None else version)
    except CompatibilityError as error:
        raise CompatibilityError(
            f"What answers at {http.url} says that it is version {version!r}; a release such as 0.32.0 is expected.",
            hint="is this the engine's address? `curl URL/version` shows what a vLLM answers",
        ).at(engine=http.url) from error
    return version


def _make(entry: ControlPlaneEntry, http: Http, version: str, options: Options) -> ControlPlane:
    factory = cast("Callable[[Http, str, Options], ControlPlane]", load(entry.factory))
    return factory(http, version, options)


def _beyond_the_table(
    registry: Registry, known: Sequence[tuple[ControlPlaneEntry, str]], http: Http, options: Options
) -> ControlPlane:
    if not known:
        engines = sorted({entry.engine for entry in registry.control_planes.values()})
        raise CompatibilityError(
            f"What answers at {http.url} is no engine that an installed plugin knows ({', '.join(engines)}).",
            hint="check the address and the port; `curl URL/version` shows what a vLLM answers",
        ).at(engine=http.url)
    entry, version = known[0]
    if options.allow_untested and release(version) >= release(entry.before):
        log.warning(_UNCHECKED, entry.engine, version, entry.name, entry.before)
        return _make(entry, http, version, options)
    ranges = ", ".join(f"{e.name}: {e.since} up to, not including, {e.before}" for e, _ in known)
    raise CompatibilityError(
        f"{entry.engine} {version} is outside the releases that the installed control planes were tested with "
        f"({ranges}).",
        hint=_advice(registry, entry, version),
    ).at(engine=http.url)


def _advice(registry: Registry, entry: ControlPlaneEntry, version: str) -> str:
    """What to do about a release that *entry* does not speak to."""
    for other in registry.control_planes.values():
        if other.engine == entry.engine and within(version, since=other.since, before=other.before):
            return f"leave the option `control_plane` unset, or set it to {other.name!r}, which speaks to this release"
    installed = {registry.owner("control plane", name) for name in registry.control_planes}
    for since, before, distribution in _INSTALL_FOR_VLLM if entry.engine == "vllm" else ():
        if within(version, since=since, before=before) and distribution not in installed:
            return f"pip install {distribution}"
    if release(version) >= release(entry.before):
        return (
            "pip install --upgrade the plugin, or take the newest known wire form at your own risk with "
            "--allow-untested (WEIGHTWIRE_ALLOW_UNTESTED=1)"
        )
    return "use a newer release of the engine"


def _why_not(entry: DataPlaneEntry, infos: Sequence[EngineInfo]) -> str:
    for info in infos if entry.our_engine_on else ():
        if info.kind is EngineKind.OURS and info.device != entry.our_engine_on:
            return (
                f"our engine at {info.url} runs on {info.device or 'an unknown device'}, not on {entry.our_engine_on}"
            )
    return cast("Callable[[], str]", load(entry.usable))() if entry.usable else ""


def mixed_backends(backends: Sequence[str]) -> CompatibilityError:
    """The error for engines that no one group can hold."""
    named = " and ".join(repr(backend) for backend in backends)
    return CompatibilityError(
        f"The engines run different weight-transfer backends ({named}); one group can't hold both.",
        hint="start all servers with the same --weight-transfer-config",
    )


def _no_data_plane(backends: Sequence[str], reasons: Sequence[str]) -> CompatibilityError:
    if len(backends) > 1:
        return mixed_backends(backends)
    named = repr(backends[0]) if backends else ""
    found = "; ".join(reasons) if reasons else "none is installed"
    return CompatibilityError(
        f"No data plane can feed a server whose weight-transfer backend is {named} ({found}).",
        hint=_how_to_feed(backends, reasons),
    )


def _how_to_feed(backends: Sequence[str], reasons: Sequence[str]) -> str:
    wanted = _INSTALL_FOR_BACKEND.get(backends[0], "") if backends else ""
    if wanted and reasons:
        return "run the trainer where that plane can be used, or start the server with another weight-transfer backend"
    return f"pip install '{wanted}'" if wanted else "restart the server with one of the known backends"


def _named(table: dict[str, N], name: str, kind: str, option: str) -> N:
    if name not in table:
        raise ConfigurationError(
            f"The option `{option}` names the {kind} {name!r}, which is not installed; installed are: "
            f"{', '.join(sorted(table)) or 'none'}.",
            hint="`weightwire plugins` lists what is installed",
        )
    return table[name]
