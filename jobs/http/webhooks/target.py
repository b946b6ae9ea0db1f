"""Reads the URL that a client has left. One parser for the check and for the call, so that both see the same host."""

import socket
from ipaddress import ip_address

import httpx2

from jobs.errors import RequestInvalid
from jobs.http.webhooks.addresses import AddressPolicy
from jobs.submission import check_webhook

_PORTS = range(1, 65536)
_LOCAL_ENDS = (".localhost", ".localdomain", ".local", ".internal", ".home.arpa")  # the internet does not know them
_REMEDY = "name a host of the public internet, or ask who runs the service to allow private addresses"


def check_target(url: str, policy: AddressPolicy) -> None:
    """For a submit: what can be told without asking anybody. Raises RequestInvalid."""
    if problem := find_refusal(parse_target(url), policy):
        raise RequestInvalid(problem)


def parse_target(url: str) -> httpx2.URL:
    """Raises RequestInvalid, with the URL."""
    check_webhook(url)
    try:
        target = httpx2.URL(url)
    except httpx2.InvalidURL as exc:
        raise RequestInvalid(f"webhook {url[:100]!r} is no URL that can be called ({exc}): correct it") from exc
    if port_of(target) not in _PORTS:
        raise RequestInvalid(f"webhook {url[:100]!r} is no URL that can be called: name a port from 1 to 65535")
    return target


def find_refusal(target: httpx2.URL, policy: AddressPolicy) -> str:
    """Why it is not called, with its host and nothing else of it, or nothing."""
    host = host_of(target)
    if target.userinfo:
        return f"webhook names a user or password before its host {host[:100]!r}: leave them out"
    if problem := _judge_host(host, policy):
        return f"webhook host {host[:100]!r} is not called: {problem}; {_REMEDY}"
    return ""


def host_of(target: httpx2.URL) -> str:
    """Its host's name in letters of DNS, or its address."""
    return target.raw_host.decode("ascii").rstrip(".").lower()


def port_of(target: httpx2.URL) -> int:
    default = 443 if target.scheme == "https" else 80
    return default if target.port is None else target.port


def _judge_host(host: str, policy: AddressPolicy) -> str:
    if address := _read_literal(host):
        return policy.find_problem([address])
    is_local = "." not in host or host.endswith(_LOCAL_ENDS)
    return "it is the name of a host nearby" if is_local and not policy.allow_private else ""


def _read_literal(host: str) -> str:
    """The address that a host is written as, or nothing. To resolvers 127.1, 0x7f000001 and 2130706433 are one too."""
    try:
        return str(ip_address(host))
    except ValueError:
        pass
    try:
        return socket.inet_ntoa(socket.inet_aton(host))
    except OSError:
        return ""
