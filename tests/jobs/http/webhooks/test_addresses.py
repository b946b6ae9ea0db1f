"""Which addresses and hosts a client may have called."""

import pytest

from jobs.errors import RequestInvalid
from jobs.http.webhooks.addresses import AddressPolicy, is_public
from jobs.http.webhooks.target import check_target

PUBLIC = [
    "8.8.8.8",
    "2001:4860:4860::8888",
    "::ffff:8.8.8.8",  # mapped
    "64:ff9b::8.8.8.8",  # NAT64
    "2002:808:808::1",  # 6to4
]
NOT_PUBLIC = [
    "127.0.0.1",
    "10.1.2.3",
    "172.16.0.1",
    "192.168.1.1",
    "169.254.169.254",
    "100.64.0.1",
    "0.0.0.0",
    "255.255.255.255",
    "240.0.0.1",
    "224.0.0.1",
    "192.0.0.192",
    "168.63.129.16",
    "::",
    "::1",
    "::127.0.0.1",
    "fe80::1",
    "fe80::1%eth0",
    "fec0::1",
    "fd00:ec2::254",
    "ff02::1",
    "2001:db8::1",
    "64:ff9b:1::8.8.8.8",
]
IPV4_INSIDE = ["::ffff:{}", "64:ff9b::{}"]


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses_are_called(address):
    assert is_public(address)


@pytest.mark.parametrize("address", NOT_PUBLIC)
def test_all_others_are_not(address):
    assert not is_public(address)


@pytest.mark.parametrize("form", IPV4_INSIDE)
@pytest.mark.parametrize("address", [address for address in NOT_PUBLIC if ":" not in address])
def test_nor_are_they_inside_an_ipv6_address(form, address):
    assert not is_public(form.format(address))


def test_6to4_of_a_private_address_is_not_called():
    assert not is_public("2002:7f00:1::")


def test_one_private_address_of_several_is_enough():
    assert "10.0.0.1 is not a public address" in AddressPolicy().find_problem(["8.8.8.8", "10.0.0.1"])
    assert AddressPolicy().find_problem(["8.8.8.8"]) == ""
    assert AddressPolicy(allow_private=True).find_problem(["10.0.0.1"]) == ""


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "127.1",
        "2130706433",
        "0x7f000001",
        "0177.1",
        "[::1]",
        "[::ffff:10.0.0.1]",
        "localhost",
        "LOCALHOST.",
        "a.localhost",
        "redis",
        "metadata.google.internal",
        "printer.local",
    ],
)
def test_a_host_nearby_is_refused_at_the_submit_unless_it_is_allowed(host):
    with pytest.raises(RequestInvalid, match="ask who runs the service to allow private addresses"):
        check_target(f"https://{host}:8443/hook", AddressPolicy())
    check_target(f"https://{host}:8443/hook", AddressPolicy(allow_private=True))


@pytest.mark.parametrize("url", ["https://example.org/hook?a=1", "http://8.8.8.8", "https://bücher.example/x"])
def test_a_host_that_may_be_public_is_taken(url):
    check_target(url, AddressPolicy())


@pytest.mark.parametrize("url", ["https://user:key@example.org/", "https://example.org\\@10.0.0.1/", "http://a@b.org"])
def test_a_user_in_the_url_is_refused_without_being_told(url):
    with pytest.raises(RequestInvalid, match="names a user or password") as refused:
        check_target(url, AddressPolicy(allow_private=True))
    assert "key" not in str(refused.value)


@pytest.mark.parametrize(
    "url", ["ftp://example.org", "https://", "http://h.org:99999", "http://h.org:0", "http://xn--\u00fc.org"]
)
def test_what_is_no_url_is_refused(url):
    with pytest.raises(RequestInvalid, match="no URL that can be called"):
        check_target(url, AddressPolicy())
