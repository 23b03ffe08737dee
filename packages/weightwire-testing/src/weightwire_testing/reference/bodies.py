"""Reading bodies and queries, as each release does: by hand up to 0.31, by the web framework's types from 0.32."""

from __future__ import annotations

import msgspec
from weightwire.messages import PauseMode

from weightwire_testing.reference.exchange import Request, bad_request, invalid
from weightwire_testing.reference.release import Release

_TRUE, _FALSE = frozenset({"true", "1", "yes", "on"}), frozenset({"false", "0", "no", "off"})

Body = dict[str, msgspec.Raw]


def by_hand(request: Request) -> Body:
    """A JSON object, whatever its content type says.

    Raises:
        Problem: it is not JSON.
        AttributeError: it is JSON, but no object; a 500 in vLLM.
    """
    try:
        parsed = msgspec.json.decode(request.body)
    except msgspec.DecodeError as error:
        raise bad_request("Invalid JSON format") from error
    if not isinstance(parsed, dict):
        raise AttributeError(f"'{type(parsed).__name__}' object has no attribute 'get'")  # noqa: TRY004 - as vLLM
    return msgspec.json.decode(request.body, type=Body)


def by_type(request: Request, key: str, *, required: bool = True) -> msgspec.Raw | None:
    """The value of *key* in a body that the web framework reads: only when its content type is JSON.

    Raises:
        Problem: it is not JSON, or *key* is required and missing.
    """
    body: Body = {}
    if request.is_json and request.body:
        try:
            body = msgspec.json.decode(request.body, type=Body)
        except msgspec.ValidationError:
            body = {}
        except msgspec.DecodeError as error:
            raise invalid("json_invalid", "body", message="JSON decode error", found=str(error)) from error
    value = body.get(key)
    if value is None and required:
        raise invalid("missing", f"body.{key}", message="Field required")
    return value


def payload(request: Request, key: str, *, release: Release, lists: bool = False) -> msgspec.Raw:
    """``init_info`` or ``update_info``.

    Args:
        request: the request.
        key: which.
        release: how to read it.
        lists: whether it may be a list.

    Raises:
        Problem: it is missing, or of a wrong type where types are checked.
    """
    if not release.strict_bodies:
        value = by_hand(request).get(key)
        if value is None or bytes(value) == b"null":
            raise bad_request(f"Missing '{key}' in request body")
        return value
    value = by_type(request, key) or msgspec.Raw(b"null")
    if not bytes(value).startswith((b"{", b"[") if lists else b"{"):
        raise invalid(
            "dict_type", f"body.{key}", message="Input should be a valid dictionary", found=bytes(value).decode()[:200]
        )
    return value


def text(request: Request, key: str, *, required: bool) -> str | None:
    """A string in a typed body.

    Raises:
        Problem: it is missing, or no string.
    """
    value = by_type(request, key, required=required)
    if value is None or (not required and bytes(value) == b"null"):
        return None
    try:
        return msgspec.json.decode(value, type=str)
    except msgspec.ValidationError as error:
        raise invalid(
            "string_type", f"body.{key}", message="Input should be a valid string", found=bytes(value).decode()
        ) from error


def flag(request: Request, key: str, *, default: bool) -> bool:
    """A truth value in the query.

    Raises:
        Problem: it is none.
    """
    value = request.query.get(key)
    if value is None:
        return default
    if value.lower() in _TRUE | _FALSE:
        return value.lower() in _TRUE
    raise invalid(
        "bool_parsing",
        f"query.{key}",
        message="Input should be a valid boolean, unable to interpret input",
        found=value,
    )


def pause_mode(request: Request, release: Release) -> PauseMode:
    """The query's ``mode``, or the flag that came before it (up to 0.31; from 0.32 it is ignored).

    Raises:
        Problem: there is no such mode.
    """
    value = request.query.get("mode", PauseMode.ABORT)
    if value not in set(PauseMode):
        raise invalid("literal_error", "query.mode", message="Input should be 'abort', 'wait' or 'keep'", found=value)
    if not release.since(32) and flag(request, "wait_for_inflight_requests", default=False):
        return PauseMode.WAIT
    return PauseMode(value)
