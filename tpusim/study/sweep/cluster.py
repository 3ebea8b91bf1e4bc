"""Jobs of a sweep on a Dask cluster; needs the extra `cluster`, and is imported only when asked for."""

# Dask has types for only some of its methods.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import asyncio
import logging
import queue
import re
import socket
import ssl
import time
from collections import Counter
from collections.abc import Generator, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from itertools import islice
from typing import Any, cast

from distributed import Client, Future, KilledWorker
from distributed.core import rpc
from distributed.security import Security

from tpusim.base.errors import InputError, TpusimError
from tpusim.study.sweep.parcels import Done, Parcel, WorkFinding, simulated
from tpusim.study.sweep.store import model_version

_LOGGERS = ("distributed", "distributed.client", "tornado", "tornado.application")
_ADDRESS = re.compile(r"(tcp|tls)://(\[[0-9a-fA-F:]+\]|[^\s:/\[\]]+):(\d{1,5})")
_CONNECT_SECONDS = 5.0
_LOOK_SECONDS = 1.0
_ALONE_SECONDS = 60.0
"""Seconds without any worker after which a sweep ends."""
_UNDER_WAY = 1000
"""Jobs at the scheduler at a time: enough for any cluster, and little memory for any sweep."""
_DEATHS = 5
"""Times that Dask may give up a parcel, each after several workers died with it, before the parcel fails."""

_INSTALL = "install there the version that is on this computer"
_TLS = "see TLS in docs/sweeps.md"
_GONE = "the scheduler of the cluster is gone"


class Cluster:
    """A scheduler at `tcp://HOST:PORT` or `tls://HOST:PORT`, with its workers, present and future."""

    def __init__(self, address: str) -> None:
        """Raise InputError if the address is none, or no scheduler answers there."""
        match = _ADDRESS.fullmatch(address)
        if match is None or not 0 < int(match[3]) < 65536:
            allowed = "write tcp://HOST:PORT, or tls://HOST:PORT"
            raise InputError(f"--cluster {address}: is no address of a Dask scheduler; {allowed}")
        self._address = address
        # Dask reports lost connections and workers at length; here the essential is said in a line.
        for name in _LOGGERS:
            logging.getLogger(name).setLevel(logging.CRITICAL)
        try:
            security = _certificates() if match[1] == "tls" else None
            _find_listener(match[2].strip("[]"), int(match[3]), security)
            _find_scheduler(address, security)
            self._client = Client(address, timeout=_CONNECT_SECONDS, set_as_default=False, security=security)
        except (InputError, OSError) as error:
            raise InputError(f"--cluster {address}: {error}") from None

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._client.close(timeout=_CONNECT_SECONDS)

    @property
    def workers(self) -> int:
        """Threads of all present workers."""
        return sum(self._client.nthreads().values())

    def wait_for_workers(self, seconds: float) -> None:
        """Raise InputError if no worker joins in time."""
        try:
            self._client.wait_for_workers(1, timeout=seconds)
        except TimeoutError:
            start = f"start some with: dask worker {self._address}"
            raise InputError(f"--cluster {self._address}: no worker has joined the scheduler; {start}") from None

    def check_workers(self) -> None:
        """Raise InputError if a worker cannot simulate, or would simulate another model than this computer."""
        for worker, found in self._client.run(model_version, on_error="return").items():
            if isinstance(found, BaseException):
                raise InputError(f"worker {worker} cannot use tpusim ({found}); {_INSTALL}")
            _same_model(found, f"worker {worker}")

    def outcomes(self, parcels: Sequence[Parcel]) -> Generator[Done]:
        """Do parcels as Executor says; a parcel that is lost with its worker is done again by another."""
        waiting, given_up = iter(parcels), Counter[Parcel]()
        under_way: dict[object, tuple[Future[Any], Parcel]] = {}
        finished: queue.SimpleQueue[Future[Any]] = queue.SimpleQueue()

        def submit(some: Iterable[Parcel]) -> None:
            for parcel in some:
                # Not pure: Dask would otherwise return an old result for equal arguments.
                future = self._client.submit(_simulated, parcel, model_version(), pure=False)
                under_way[future.key] = future, parcel
                future.add_done_callback(finished.put)

        try:
            # Only some parcels are under way at a time, so that the others need no memory of the scheduler.
            submit(islice(waiting, _UNDER_WAY))
            while under_way:
                future = self._next(finished)
                _, parcel = under_way.pop(future.key)
                try:
                    findings: Sequence[WorkFinding] = future.result()
                except KilledWorker:
                    given_up[parcel] += 1
                    # A worker may die for reasons of its own, so that a parcel gets another chance.
                    if given_up[parcel] < _DEATHS:
                        submit([parcel])
                        continue
                    findings = ["every worker that tried it died, perhaps for lack of memory"] * len(parcel)
                except (CancelledError, OSError):
                    raise TpusimError(_GONE) from None
                except InputError:
                    raise
                except Exception as error:
                    why = f"{type(error).__name__}: {error}"
                    raise InputError(f"a worker cannot do its job ({why}); {_INSTALL}") from None
                submit(islice(waiting, 1))
                yield parcel, findings
        finally:
            if under_way and self._client.status == "running":
                with suppress(OSError, CancelledError):
                    self._client.cancel([future for future, _ in under_way.values()], force=True)

    def _next(self, finished: queue.SimpleQueue[Future[Any]]) -> Future[Any]:
        """Wait for a parcel. Raise TpusimError when no more will come."""
        seen = time.monotonic()
        while True:
            with suppress(queue.Empty):
                return finished.get(timeout=_LOOK_SECONDS)
            if self._client.status != "running":
                raise TpusimError(_GONE)
            if self._client.nthreads():
                seen = time.monotonic()
            elif time.monotonic() - seen > _ALONE_SECONDS:
                raise TpusimError(f"the cluster has had no worker for {_ALONE_SECONDS:g} seconds")


def _certificates() -> Security:
    """Return Dask's configuration of TLS. Raise InputError if it does not suffice."""
    security = Security()
    try:
        context = security.get_connection_args("client").get("ssl_context")
    except (OSError, ValueError) as error:
        raise InputError(f"the certificates in Dask's configuration cannot be used ({error}); {_TLS}") from None
    if context is None:
        raise InputError(f"Dask's configuration names no certificates; {_TLS}")
    return security


def _find_listener(host: str, port: int, security: Security | None) -> None:
    """Raise InputError if nothing listens there, sooner and more plainly than Dask, which tries again and again.

    With `security`, also if its certificates do not fit the listener.
    """
    try:
        with socket.create_connection((host, port), timeout=_CONNECT_SECONDS) as connection:
            if security is not None:
                security.get_connection_args("client")["ssl_context"].wrap_socket(connection).close()
    except socket.gaierror as error:
        raise InputError(f"no computer is known by that name ({error.strerror}); check the address") from None
    except UnicodeError:  # Two dots in a row, or over 63 characters between dots.
        raise InputError("no computer can have that name; check the address") from None
    except ssl.SSLError as error:
        why = getattr(error, "verify_message", "") or error.reason
        raise InputError(f"no secure connection to what answers there ({why}); {_TLS}") from None
    except OSError as error:
        why = error.strerror or f"for {_CONNECT_SECONDS:g} seconds"
        raise InputError(f"nothing answers there ({why}); start a scheduler: dask scheduler") from None


def _find_scheduler(address: str, security: Security | None) -> None:
    """Raise InputError if no scheduler answers in time. Client() would wait for ever if something else listens."""

    async def identity() -> Mapping[str, Any]:
        given = security.get_connection_args("client") if security else {}
        async with rpc(address, timeout=_CONNECT_SECONDS, connection_args=given) as there:
            return cast(Mapping[str, Any], await there.identity())

    try:
        found = asyncio.run(asyncio.wait_for(identity(), _CONNECT_SECONDS))["type"]
    except Exception:
        # Any error may come: Dask takes the first bytes of whatever answers for lengths and messages.
        other = "" if address.startswith("tls") else ", or wants TLS; then write tls://HOST:PORT"
        raise InputError(f"what answers there is no Dask scheduler{other}") from None
    if found != "Scheduler":
        raise InputError(f"is a {found.lower()} of Dask; give the address of its scheduler")


def _simulated(parcel: Parcel, model: str) -> Sequence[WorkFinding]:
    """Run a parcel on a worker, which may have joined after the others were checked."""
    _same_model(model, f"worker {socket.gethostname()}")
    return simulated(parcel)


def _same_model(model: str, who: str) -> None:
    if model != model_version():
        raise InputError(f"{who} has another version of tpusim; {_INSTALL}")
