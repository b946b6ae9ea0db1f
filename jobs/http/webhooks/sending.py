"""One try to deliver: look the host up, judge its addresses, post to one of those that were judged.

An address is looked up once, so a name that leads elsewhere the next moment gains nothing by it. A connection serves
one try only: connections are kept by address, and one that was verified for a host must not serve another there.
"""

import asyncio
import socket
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

import httpx2

from jobs.errors import RequestInvalid
from jobs.http.webhooks.settings import WebhookSettings
from jobs.http.webhooks.target import find_refusal, host_of, parse_target, port_of
from jobs.http.webhooks.verdict import Answered, Outcome, Refused, Unanswered, read_retry_after

MOST_ADDRESSES = 3  # of a host that are tried
MOST_ANSWER_BYTES, SKIM_S = 4096, 0.5
MOST_REASON_LETTERS = 200  # some errors hold what the receiver has sent
# Look-ups that nobody answers keep their threads for half a minute, and must not take those of the whole service.
_RESOLVERS = ThreadPoolExecutor(16, thread_name_prefix="webhook-dns")


@dataclass(frozen=True, slots=True)
class Message:
    """What is posted."""

    headers: Mapping[str, str]
    body: bytes


async def send(url: str, message: Message, settings: WebhookSettings) -> Outcome:
    """One try, and what came of it; never raises for what a receiver does."""
    try:
        target = parse_target(url)
        async with asyncio.timeout(settings.timeout_s):
            return await _send_parsed(target, message, settings)
    except RequestInvalid:  # its text has the URL, which is kept out of the log
        return Refused("its URL cannot be called")
    except TimeoutError:
        return Unanswered(f"no answer in {settings.timeout_s:g} s")
    # UnicodeError: a name that DNS cannot hold. InvalidURL: an address that belongs to one network card.
    except (httpx2.HTTPError, httpx2.InvalidURL, OSError, UnicodeError) as exc:
        return Unanswered(f"{type(exc).__name__}: {str(exc)[:MOST_REASON_LETTERS]}")


async def _send_parsed(target: httpx2.URL, message: Message, settings: WebhookSettings) -> Outcome:
    if refusal := find_refusal(target, settings.policy):
        return Refused(refusal)
    host = host_of(target)
    addresses = await resolve(host, port_of(target))
    if problem := settings.policy.find_problem(addresses):
        return Refused(f"{host} leads to a private network: {problem}")
    return await _post_to_any(target, addresses[:MOST_ADDRESSES], message, settings)


async def resolve(host: str, port: int) -> list[str]:
    """All addresses of a host, the best first. Raises OSError and UnicodeError."""
    loop = asyncio.get_running_loop()
    found = await loop.run_in_executor(_RESOLVERS, lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


async def _post_to_any(
    target: httpx2.URL, addresses: Sequence[str], message: Message, settings: WebhookSettings
) -> Outcome:
    """To the first that accepts a connection: a host may have IPv6 addresses which this machine cannot reach."""
    *others, last = addresses
    connect_s = settings.timeout_s / len(addresses)
    for address in others:
        with suppress(httpx2.ConnectError, httpx2.ConnectTimeout):
            return await _post(target, address, connect_s, message, settings)
    return await _post(target, last, connect_s, message, settings)


async def _post(
    target: httpx2.URL, address: str, connect_s: float, message: Message, settings: WebhookSettings
) -> Answered:
    # The bare transport: it follows no redirect, takes no proxy from the environment, and writes no URL into the log.
    async with httpx2.AsyncHTTPTransport(verify=settings.tls, trust_env=False) as transport:
        response = await transport.handle_async_request(
            _make_request(target, address, message, httpx2.Timeout(settings.timeout_s, connect=connect_s))
        )
        await _skim(response)
        retry_after = response.headers.get("retry-after", "")
        return Answered(response.status_code, read_retry_after(retry_after, datetime.now(UTC)))


def _make_request(target: httpx2.URL, address: str, message: Message, timeout: httpx2.Timeout) -> httpx2.Request:
    """To an address, in the name of the host: in its head, and for what its certificate must say."""
    return httpx2.Request(
        "POST",
        target.copy_with(host=address),
        headers={"host": target.netloc.decode("ascii"), "connection": "close", **message.headers},
        content=message.body,
        extensions={"sni_hostname": host_of(target), "timeout": timeout.as_dict()},
    )


async def _skim(response: httpx2.Response) -> None:
    """Take a little of the answer, so that an ordinary receiver can end it in peace. Nothing in it matters to us."""
    taken = 0
    with suppress(TimeoutError, httpx2.HTTPError):
        async with asyncio.timeout(SKIM_S):
            async for piece in response.aiter_raw():
                taken += len(piece)
                if taken > MOST_ANSWER_BYTES:
                    break
    await response.aclose()
