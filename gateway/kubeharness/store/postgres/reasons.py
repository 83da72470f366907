"""Why a database cannot be used, as a sentence for logs and readiness: what to mend, and nothing of the DSN.

A DSN that is wrong in an unlucky place has its password where its host should be, so not even a host is repeated.
"""

import asyncio
import socket
import ssl

import asyncpg

UNREADABLE = (
    "the DSN cannot be read: use postgresql://user:password@host:5432/database, what is special in the password "
    "written as %XX, without anything around it"
)

_SENTENCES: tuple[tuple[type[BaseException] | tuple[type[BaseException], ...], str], ...] = (
    # The first that fits: from the narrow to the wide.
    (asyncpg.ClientConfigurationError, UNREADABLE),
    (asyncpg.InvalidPasswordError, "the database refuses the password of the DSN"),
    (
        asyncpg.InvalidAuthorizationSpecificationError,
        "the database refuses the user of the DSN: does the role exist, may it log in, does pg_hba.conf let it in?",
    ),
    (asyncpg.InvalidCatalogNameError, "the database that the DSN names does not exist"),
    (
        asyncpg.InsufficientPrivilegeError,
        "the role of the DSN lacks a right; `kubeharness migrate` grants what pods need to KUBEHARNESS_APP_ROLE",
    ),
    (
        (asyncpg.UndefinedTableError, asyncpg.UndefinedColumnError, asyncpg.UndefinedFunctionError),
        "the database's schema is not this build's; run `kubeharness migrate`",
    ),
    (asyncpg.TooManyConnectionsError, "the database has no connection left for us (max_connections)"),
    (asyncpg.CannotConnectNowError, "the database is starting up or shutting down"),
    (asyncpg.ReadOnlySQLTransactionError, "the database is read-only: the DSN leads to a standby"),
    (socket.gaierror, "the host of the DSN is not known to DNS"),
    (ConnectionRefusedError, "nothing listens at the host and port of the DSN"),
    (ssl.SSLError, "TLS with the database failed; see sslmode and sslrootcert of the DSN"),
)


def reason(error: BaseException) -> str:
    """What keeps us from the database, for whoever has to mend it."""
    for kinds, sentence in _SENTENCES:
        if isinstance(error, kinds):
            return sentence
    if isinstance(error, asyncio.TimeoutError | TimeoutError):
        return "the database does not answer in time"
    return f"the database does not answer ({type(error).__name__})"
