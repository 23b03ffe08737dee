"""What a trainer calls: :func:`connect`; and without a session :func:`inspect` and :func:`recover`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from weightwire import addresses, discovery, negotiate, settings
from weightwire.agreement import Agreement, bad_news
from weightwire.backend import SenderBackend
from weightwire.deadlines import Deadline
from weightwire.engine import Engine
from weightwire.engines import Engines
from weightwire.errors import ConfigurationError, WeightwireError
from weightwire.follower import FollowerBackend
from weightwire.http import Http
from weightwire.messages import EngineInfo
from weightwire.options import Options
from weightwire.planes import RankGroup
from weightwire.registry import Registry
from weightwire.session import Session


def connect(
    target: str | Sequence[str],
    model: object,
    options: Options | Mapping[str, object] | None = None,
    *,
    plugins: Sequence[object] = (),
) -> Session:
    """Open a session that brings *model*'s weights into the engines at *target*. Call it on every trainer rank.

    Args:
        target: the base URL of an engine, or of several.
        model: what holds the weights: a ``torch.nn.Module``, a DeepSpeed engine, a checkpoint directory, or a
            :class:`~weightwire.planes.WeightSource`.
        options: complete options, or the ones that differ from the environment, ``weightwire.toml`` and the defaults.
        plugins: objects with lifecycle hooks of your own: wrappers and observers.

    Raises:
        WeightwireError: what is wrong, what was expected, what to type. Nothing was changed in any engine.
    """
    chosen = resolve(options)
    registry = discovery.plugins().registry
    try:
        source = negotiate.weight_source(registry, model, chosen)
        backend = _backend(registry, target, source.ranks, chosen)
        session = Session(backend, source, chosen, plugins=plugins)
        _open(session)
    except WeightwireError as error:
        _mention_broken_plugins(error)
        raise
    return session


def inspect(url: str, options: Options | Mapping[str, object] | None = None) -> EngineInfo:
    """Ask one engine what it is and how it stands. Changes nothing.

    Raises:
        WeightwireError: nothing usable answers there; says why.
    """
    chosen = resolve(options)
    deadline = Deadline.after(chosen.timeout)
    http = Http(url, chosen)
    try:
        return negotiate.control_plane(discovery.plugins().registry, http, chosen, deadline).probe(deadline)
    finally:
        http.close()


def recover(
    target: str | Sequence[str], options: Options | Mapping[str, object] | None = None
) -> tuple[EngineInfo, ...]:
    """Bring the torn engines at *target* to where a full push can make them whole; that push must follow.

    They are paused, flushed, and left paused. Whole engines are left as they are.

    Returns:
        The engines as they were found; those whose state is torn are the ones that were flushed.

    Raises:
        StateError: an engine is lost; it needs a restart.
        ControlError: an engine can't be reached, or could not be flushed.
    """
    chosen = resolve(options)
    deadline = Deadline.after(chosen.timeout)
    backend = _sender(discovery.plugins().registry, addresses.all_checked(target), chosen)
    try:
        found = backend.weightwire_connect(deadline)
        backend.weightwire_recover(deadline)
        backend.engines.all(lambda engine: engine.tell(deadline), "telling the engines", deadline)
    finally:
        backend.close()
    return tuple(found)


def resolve(options: Options | Mapping[str, object] | None) -> Options:
    """Complete options as they are; anything less is completed from the environment and the working directory."""
    if isinstance(options, Options):
        return settings.validated(options)
    if not isinstance(options, Mapping | None):
        raise ConfigurationError(
            f"The options are of the type {type(options).__name__}; weightwire.Options or a mapping is expected.",
            hint="weightwire.connect(url, model, {'timeout': 60})",
        )
    return settings.load(options or {}, environ=os.environ, directory=Path.cwd())


def _open(session: Session) -> None:
    try:
        session.open()
    except BaseException:
        session.close()
        raise


def _backend(
    registry: Registry, target: str | Sequence[str], ranks: RankGroup, options: Options
) -> SenderBackend | FollowerBackend:
    if ranks.rank != 0:
        return FollowerBackend()
    try:
        return _sender(registry, addresses.all_checked(target), options)
    except BaseException as error:
        Agreement.of_the_next_session(ranks).steps("connect").say(
            bad_news(error)
        )  # the other ranks wait for a word of it
        raise


def _sender(registry: Registry, urls: Sequence[str], options: Options) -> SenderBackend:
    def make_engine(url: str, deadline: Deadline) -> Engine:
        http = Http(url, options)
        return Engine(http.url, negotiate.control_plane(registry, http, options, deadline))

    deadline = Deadline.after(options.timeout)
    engines = Engines([make_engine(url, deadline) for url in urls], make_engine)
    return SenderBackend(engines, lambda infos: negotiate.data_plane(registry, infos, options), options)


def _mention_broken_plugins(error: WeightwireError) -> None:
    for record in discovery.plugins().broken:
        error.add_note(f"The plugin {record.entry_point} of {record.distribution} is broken: {record.error}")
