import pytest
from weightwire import addresses
from weightwire.errors import ConfigurationError


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("https://[::1]:8000//", "https://[::1]:8000"),
        ("HTTP://Host/prefix/", "HTTP://Host/prefix"),
    ],
)
def test_an_address_is_kept_as_it_was_spelt_but_for_slashes_at_its_end(given, kept):
    assert addresses.checked(given) == kept


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("127.0.0.1:8000", "no scheme"),
        ("ftp://x", "no scheme"),
        ("http://:80", "no host"),
        ("", "no scheme"),
        ("http://[::1:8000", "invalid IPv6"),
        ("http://host:99999", "port out of range"),
        ("http://host:http", "port could not be cast"),
        ("http://host:", "port is missing, or 0"),
        ("http://host:0", "port is missing, or 0"),
        ("http://host?key=1", "a query"),
        ("http://host/#top", "a fragment"),
        (" http://host", "a space"),
        ("http://host\n", "a line end"),
        ("http://ho\x00st", "a control character"),
        ("http://ho\ud800st", "a control character"),
        (None, "type is NoneType"),
        (5, "type is int"),
        (b"http://host", "type is bytes"),
    ],
)
def test_what_is_no_address_is_refused_with_the_reason(given, why):
    with pytest.raises(ConfigurationError, match=why) as caught:
        addresses.checked(given)
    assert caught.value.hint
    str(caught.value).encode()


@pytest.mark.parametrize(
    "given",
    [
        "http://user:secret@host:1",
        "http://secret@host",
        "user:secret@host",
        "http://user:sec/secret@host",
        "http://user:secret@host:99999\n",
        b"http://user:secret@host",
    ],
)
def test_a_password_is_refused_and_never_printed(given):
    with pytest.raises(ConfigurationError) as caught:
        addresses.checked(given)
    assert "secret" not in f"{caught.value} {caught.value!r} {addresses.shown(given)}"
    assert "host" in caught.value.message


@pytest.mark.parametrize("target", [[], (), iter(())])
def test_at_least_one_engine_is_needed(target):
    with pytest.raises(ConfigurationError, match="at least one"):
        addresses.all_checked(target)


@pytest.mark.parametrize("target", [None, 5, b"http://host", {"http://host": 1}, ["http://host", None]])
def test_what_is_no_address_among_the_engines_is_refused(target):
    with pytest.raises(ConfigurationError, match="no address of an engine"):
        addresses.all_checked(target)


def test_several_addresses_may_come_in_any_iterable():
    assert addresses.all_checked(f"http://host:{port}/" for port in (1, 2)) == ("http://host:1", "http://host:2")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("http://host:8000", "http://host:8000/"),
        ("http://host:8000", "HTTP://HOST:8000"),
        ("http://host", "http://host:80"),
        ("https://host", "https://host:443/"),
        ("http://127.0.0.1:8000", "http://localhost:8000"),
        ("http://[::1]:8000", "http://localhost:8000"),
        ("http://[0:0::1]:8000", "http://127.0.0.1:8000"),
        ("http://host:8000", "https://host:8000"),
        ("http://host/a", "http://host/b/../a/"),
    ],
)
def test_two_spellings_of_one_engine_are_refused_with_both(one, other):
    assert addresses.same(one, other)
    with pytest.raises(ConfigurationError, match="mean one engine") as caught:
        addresses.all_checked([one, other])
    assert one in caught.value.message
    assert other.rstrip("/") in caught.value.message


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("http://host:8000", "http://host:8001"),
        ("http://host", "http://other"),
        ("http://127.0.0.1:8000", "http://127.0.0.2:8000"),
        ("http://host/a", "http://host/b"),
        ("http://host", "https://host"),
    ],
)
def test_engines_of_different_addresses_are_two(one, other):
    assert not addresses.same(one, other)
    assert len(addresses.all_checked([one, other])) == 2
