"""`kubeharness doctor URL`: what on the way from here to an agent holds streams back, cuts them, or is unhealthy."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer

from kubeharness.core.ids import DNS_LABEL
from kubeharness.doctor.findings import CannotRun, Finding, diagnose
from kubeharness.doctor.observed import Patience, Seen

WELL, FINDINGS, NOT_RUN = 0, 1, 2


class Output(StrEnum):
    """For whom it is printed."""

    TEXT = "text"
    JSON = "json"


def doctor(
    url: Annotated[str, typer.Argument(metavar="URL", help="Where callers reach the gateway, with its path prefix")],
    token_file: Annotated[Path | None, typer.Option("--token-file", help="A file that holds a caller's token")] = None,
    agent: Annotated[list[str] | None, typer.Option("--agent", help="Whom to talk to; again for more")] = None,
    namespace: Annotated[str | None, typer.Option("--namespace", help="The agent's, if not the URL's own")] = None,
    direct: Annotated[str | None, typer.Option("--direct", help="A URL past all proxies, to tell hops apart")] = None,
    watch: Annotated[float, typer.Option("--watch", min=1, max=3600, help="Seconds to watch an idle stream")] = 30.0,
    output: Annotated[Output, typer.Option("--output", help="text or json")] = Output.TEXT,
) -> None:
    """Say what the hops on the way to an agent do to its streams; exits 0 if well, 1 with findings, 2 if not run."""
    agents = agent or ["doctor"]
    patience = Patience(watch_seconds=watch)
    try:
        urls = [_url(given, name) for given, name in ((url, "URL"), (direct, "--direct")) if given is not None]
        for name, value in [("--agent", each) for each in agents] + [("--namespace", namespace)]:
            if value is not None and not DNS_LABEL.match(value):
                raise CannotRun(f"{name}: {value!r} is no name: use 1 to 63 of a-z, 0-9 and -")
        token = _token(token_file)
        looked = asyncio.run(_look(urls, token, agents, namespace, patience))
        findings = _findings(looked)
    except CannotRun as why:
        _say_not_run(str(why), output)
        raise typer.Exit(NOT_RUN) from None
    _say(looked, findings, output)
    raise typer.Exit(FINDINGS if findings else WELL)


async def _look(
    urls: Sequence[str], token: str | None, agents: Sequence[str], namespace: str | None, patience: Patience
) -> list[list[Seen]]:
    """For each agent what each URL shows; the idle stream is watched with the first agent alone."""
    import httpx2

    from kubeharness.doctor.probes import Probes

    headers = {"authorization": f"Bearer {token}"} if token else {}
    async with httpx2.AsyncClient(headers=headers) as client:
        found = []
        for number, name in enumerate(agents):
            async with asyncio.TaskGroup() as both:
                tasks = [
                    both.create_task(Probes(client, url, name, namespace, patience).look(idle=number == 0))
                    for url in urls
                ]
            found.append([task.result() for task in tasks])
        return found


def _findings(looked: Sequence[Sequence[Seen]]) -> list[Finding]:
    """Of all agents; what is wrong with the way is said once."""
    found: list[Finding] = []
    for seen in looked:
        known = {(finding.code, finding.seen) for finding in found}
        found += [one for one in diagnose(*seen) if (one.code, one.seen) not in known]
    return found


def _url(given: str, name: str) -> str:
    parts = urlsplit(given)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise CannotRun(f"{name}: {given!r} is no base URL: write http(s)://host[:port][/prefix]")
    if parts.username or parts.password:
        raise CannotRun(f"{name}: leave user and password out of it; a token goes into --token-file")
    return given.rstrip("/")


def _token(file: Path | None) -> str | None:
    if file is None:
        return None
    try:
        token = file.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise CannotRun(f"--token-file: {file} cannot be read ({type(error).__name__})") from None
    if not token or any(not "!" <= character <= "~" for character in token):
        raise CannotRun(f"--token-file: {file} holds no token: it is one line, the token alone")
    return token


def _say_not_run(why: str, output: Output) -> None:
    if output is Output.JSON:
        typer.echo(json.dumps({"well": False, "findings": [], "notRun": why}))
    else:
        typer.echo(f"kubeharness doctor: could not be run: {why}", err=True)


def _say(looked: Sequence[Sequence[Seen]], findings: Sequence[Finding], output: Output) -> None:
    if output is Output.JSON:
        measured = [_measured(seen) for both in looked for seen in both]
        found = [asdict(finding) for finding in findings]
        typer.echo(json.dumps({"well": not findings, "findings": found, "measured": measured}, indent=1))
        return
    for both in looked:
        for seen in both:
            typer.echo(_line(seen))
    for finding in findings:
        typer.echo(f"\n{finding.code}\n  seen    {finding.seen}")
        typer.echo(f"  through {finding.url}\n  hop     {finding.hop}\n  remedy  {finding.remedy}")
    typer.echo(f"\n{len(findings)} findings" if findings else "\nwell: nothing is held back, cut or missing")


def _measured(seen: Seen) -> dict[str, object]:
    """The times that the findings were drawn from."""
    talk, idle = seen.talk, seen.idle[:1]
    spans = [(one.arrived, one.recorded) for one in talk.arrivals] if talk is not None else []
    return {
        "url": seen.url,
        "agent": seen.agent_name,
        "hop": seen.health.hop,
        "workers": seen.workers,
        "records": len(spans),
        "writtenSeconds": round(spans[-1][1] - spans[0][1], 3) if spans else None,
        "arrivedSeconds": round(spans[-1][0] - spans[0][0], 3) if spans else None,
        "settled": talk.settled if talk is not None else None,
        "idleFirstByteSeconds": round(idle[0].first, 3) if idle and idle[0].first is not None else None,
        "idleHeartbeatsAt": [round(at, 1) for at in idle[0].heartbeats] if idle else [],
        "idleCutAfter": [round(one.cut_after, 1) for one in seen.idle if one.cut_after is not None],
    }


def _line(seen: Seen) -> str:
    facts = _measured(seen)
    text = f"{seen.url} as {seen.agent_name}: "
    if seen.talk is None:
        return text + f"/healthz {seen.health.status or seen.health.said}, /readyz {seen.ready.status or 'not asked'}"
    text += f"{facts['records']} records written over {facts['writtenSeconds']} s arrived over "
    text += f"{facts['arrivedSeconds']} s, settled: {facts['settled'] or 'no'}"
    if seen.idle:
        cuts = facts["idleCutAfter"]
        text += f"; an idle stream began after {facts['idleFirstByteSeconds']} s, heartbeats at "
        text += f"{facts['idleHeartbeatsAt']} s, " + (f"cut after {cuts} s" if cuts else "never cut")
    return text
