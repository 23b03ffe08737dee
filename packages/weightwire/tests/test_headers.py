import pytest
from weightwire import headers
from weightwire.errors import ConfigurationError


@pytest.mark.parametrize("value", ["", "Bearer sk-123", "caf\xe9", "a\tb", "x" * 5000])
def test_a_value_in_latin_1_can_be_sent(value):
    headers.check({"Authorization": value, "X-Tenant_1": "7"}, "a test")


@pytest.mark.parametrize(
    "value",
    ["sk-123\n", "sk-123\r\nHost: other", "sk-123\x00", "“sk-123”", "sk-123\ud800", " sk-123", "sk-123 ", "sk-\x85123"],
)
def test_a_value_that_can_not_be_sent_is_refused_by_name_and_not_shown(value):
    with pytest.raises(ConfigurationError, match="Authorization") as caught:
        headers.check({"X": "1", "Authorization": value}, "the argument headers")
    assert "sk-" not in str(caught.value)
    assert "the argument headers" in caught.value.message


@pytest.mark.parametrize("name", ["", "a b", "ä", "sk-123:", "a\nb", "a\ud800"])
def test_a_name_that_is_none_is_refused_by_its_number(name):
    with pytest.raises(ConfigurationError, match="header 2") as caught:
        headers.check({"X": "1", name: "value"}, "a test")
    assert "sk-123" not in str(caught.value)


@pytest.mark.parametrize("name", ["Content-Length", "transfer-encoding", "Content-Type", "Connection"])
def test_what_frames_a_call_is_not_the_users_to_set(name):
    with pytest.raises(ConfigurationError, match="every call sets it"):
        headers.check({name: "3"}, "a test")
