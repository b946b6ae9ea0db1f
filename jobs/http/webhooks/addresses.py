"""Which addresses a webhook may lead to. What a client names is called from inside: it must not reach what only we can.

Knows no names and no sockets; whoever connects does so to the very address that was judged.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

Address = IPv4Address | IPv6Address

_GLOBAL_UNICAST = IPv6Network("2000::/3")  # all that IANA has given out to hosts
_NAT64 = IPv6Network("64:ff9b::/96")  # RFC 6052: the last 32 bits are the IPv4 address that is reached
# Python 3.11 calls these global.
_NOT_PUBLIC = (
    IPv4Network("192.0.0.0/24"),  # of protocols; some clouds serve keys of their machines in it
    IPv4Network("192.88.99.0/24"),  # relays of 6to4
    IPv4Network("168.63.129.16/32"),  # looks public, and is the host that an Azure machine runs on
)


@dataclass(frozen=True, slots=True)
class AddressPolicy:
    """Which addresses are called."""

    allow_private: bool = False

    def find_problem(self, addresses: Sequence[str]) -> str:
        """Why a host with these addresses is not called, or nothing. One that is not public is enough."""
        if self.allow_private:
            return ""
        return next((f"{address} is not a public address" for address in addresses if not is_public(address)), "")


def is_public(text: str) -> bool:
    """Whether anybody on the internet is meant to reach it."""
    address = _reached_by(ip_address(text))
    if isinstance(address, IPv6Address):
        return address.is_global and address in _GLOBAL_UNICAST
    is_listed = any(address in network for network in _NOT_PUBLIC)
    return address.is_global and not address.is_multicast and not address.is_reserved and not is_listed


def _reached_by(address: Address) -> Address:
    """Where packets to it end: some forms of IPv6 lead to an IPv4 address that they hold."""
    if isinstance(address, IPv4Address):
        return address
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    return address.ipv4_mapped or address.sixtofour or address
