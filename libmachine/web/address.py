"""Which URLs and which addresses a model may have opened: public ones, by http and https.

What is judged is the address that is dialled, never its spelling: a name, a number in any base and a
redirect all end in one. `ipaddress.is_global` is not enough (it takes NAT64, 6to4, multicast and a
cloud's own services for public), so IPv4 has a list of what is refused and IPv6 one of what is not.
"""

from __future__ import annotations

import ipaddress
import re
from typing import NamedTuple
from urllib.parse import quote, urljoin, urlsplit

from libmachine.errors import MachineError

LONGEST_URL = 2048
PORTS = {"http": (80, 8080), "https": (443, 8443)}
"""Scheme -> ports that may be asked, the usual one first."""

_REFUSED_4 = (
    ("0.0.0.0/8", "an unspecified address"),
    ("10.0.0.0/8", "a private address"),
    ("100.64.0.0/10", "a private address of a provider"),
    ("127.0.0.0/8", "a loopback address"),
    ("168.63.129.16/32", "a service of the cloud's host"),
    ("169.254.0.0/16", "a link-local address"),
    ("172.16.0.0/12", "a private address"),
    ("192.0.0.0/24", "a reserved address"),
    ("192.0.2.0/24", "an address for documentation"),
    ("192.88.99.0/24", "a relay's address"),
    ("192.168.0.0/16", "a private address"),
    ("198.18.0.0/15", "an address for tests"),
    ("198.51.100.0/24", "an address for documentation"),
    ("203.0.113.0/24", "an address for documentation"),
    ("224.0.0.0/4", "a multicast address"),
    ("240.0.0.0/4", "a reserved address"),
)
_ALLOWED_6 = ipaddress.IPv6Network("2000::/3")
_REFUSED_6 = (
    ("::/128", "an unspecified address"),
    ("::1/128", "a loopback address"),
    ("::ffff:0:0/96", "an IPv4 address in disguise"),
    ("::/96", "an IPv4 address in disguise"),
    ("64:ff9b::/96", "an IPv4 address in disguise"),
    ("64:ff9b:1::/48", "an IPv4 address in disguise"),
    ("2001::/23", "a reserved address"),
    ("2001:db8::/32", "an address for documentation"),
    ("2002::/16", "an IPv4 address in disguise"),
    ("3fff::/20", "an address for documentation"),
    ("fc00::/7", "a private address"),
    ("fe80::/10", "a link-local address"),
    ("ff00::/8", "a multicast address"),
)
_NETWORKS = {4: [(ipaddress.ip_network(network), told) for network, told in _REFUSED_4]}
_NETWORKS[6] = [(ipaddress.ip_network(network), told) for network, told in _REFUSED_6]
_INTERNAL_NAMES = ("localhost", "local", "internal", "home.arpa")
_HOST = re.compile(r"[a-z0-9_](?:[a-z0-9._-]*[a-z0-9_])?\.?")


class Target(NamedTuple):
    """One request: what a URL that may be asked comes to. host: a name in ASCII, or a literal address
    without brackets; path: with the query, never empty."""

    scheme: str
    host: str
    port: int
    path: str

    @property
    def authority(self) -> str:
        """Host and port as the header Host has them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == PORTS[self.scheme][0] else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        """The URL as it is asked, without a fragment."""
        return f"{self.scheme}://{self.authority}{self.path}"


def target(url: str) -> Target:
    """A URL taken apart. Raises MachineError for one that is never asked, and says why."""
    url = url.strip()
    if len(url) > LONGEST_URL:
        raise MachineError(f"the URL has {len(url)} characters; the most is {LONGEST_URL}")
    if re.search(r"[\x00-\x20\x7f-\xa0\\]", url):
        raise _refused(url, "a URL has no blanks, control characters or backslashes; write them as %XX")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise _refused(url, f"it is no URL ({error})") from None
    if parts.scheme not in PORTS:
        raise _refused(url, "only http:// and https:// URLs are fetched")
    if "@" in parts.netloc:
        raise _refused(url, "it carries a user name; pages are asked without one")
    port = PORTS[parts.scheme][0] if port is None else port
    if port not in {known for ports in PORTS.values() for known in ports}:
        raise _refused(url, f"port {port} is none of the web's (80, 443, 8080, 8443)")
    path = quote(parts.path or "/", safe="/%:@!$&'()*+,;=~[]|")
    if parts.query:
        path += "?" + quote(parts.query, safe="/%:@!$&'()*+,;=~?[]|")
    return Target(parts.scheme, _host(url, host), port, path)


def _host(url: str, host: str) -> str:
    if ":" in host:
        try:
            return str(ipaddress.IPv6Address(host.replace("%", "zone")))  # fe80::1%eth0 is none of the web's
        except ValueError:
            raise _refused(url, f"'{host}' is no address") from None
    try:
        name = host.encode("idna").decode("ascii").lower()
    except UnicodeError:
        raise _refused(url, f"'{host}' is no name of a host") from None
    if len(name) > 253 or not _HOST.fullmatch(name):
        raise _refused(url, f"'{host}' is no name of a host")
    if any(f".{name.rstrip('.')}".endswith(f".{internal}") for internal in _INTERNAL_NAMES):
        raise _refused(url, f"'{host}' is an internal name; only public pages are fetched")
    return name


def _refused(url: str, why: str) -> MachineError:
    shown = url if len(url) <= 200 else url[:200] + "..."
    return MachineError(f"'{shown}' is refused: {why}")


def refusal(address: str) -> str | None:
    """Why a literal IP address is not dialled, None if it is public."""
    try:
        judged = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return "no address"
    for network, told in _NETWORKS[judged.version]:
        if judged in network:
            return told
    return None if judged.version == 4 or judged in _ALLOWED_6 else "a reserved address"


def public(target: Target, addresses: list[str]) -> list[str]:
    """The addresses of a host, all of which are public; else MachineError. One that is not spoils all:
    a name that has both would be a coin to toss until it falls right."""
    if not addresses:
        raise MachineError(f"'{target.host}' has no address")
    for address in addresses:
        why = refusal(address)
        if why:
            where = address if address == target.host else f"{target.host} is {address}, and that"
            raise _refused(target.url, f"{where} is {why}; only public pages are fetched")
    return list(dict.fromkeys(addresses))


def next_url(url: str, location: str) -> str:
    """Where a redirect leads. location: the header as http.client reads it, byte for character."""
    try:
        location = location.encode("latin-1").decode("utf-8")
    except UnicodeError:
        pass
    try:
        return urljoin(url, location.strip().replace(" ", "%20"))
    except ValueError:
        raise MachineError(f"'{url}' leads to '{location[:200]}', which is no URL") from None
