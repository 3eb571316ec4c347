"""`core kv`: what the KV cache of a running server holds."""

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from core.engine.snapshot import Snapshot

TIMEOUT_S = 30.0  # the engine answers between two steps


def kv(
    url: Annotated[str, typer.Option(help="Where the server listens.")] = "http://127.0.0.1:8000",
    api_key: Annotated[str | None, typer.Option(envvar="CORE_API_KEY", help="Where the server wants one.")] = None,
    sequences: Annotated[int, typer.Option(min=0, max=1000, help="Sequences to show at most.")] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Show the pages of each KV group, the prefix cache's hit rate, and the sequences that hold pages."""
    import msgspec

    from core.engine.snapshot import Snapshot
    from server.show import out, print_json

    snapshot = msgspec.json.decode(_fetch(f"{url.rstrip('/')}/kv?sequences={sequences}", api_key), type=Snapshot)
    if as_json:
        print_json(snapshot)
        return
    for made in _tables(snapshot):
        out.print(made)


def _fetch(url: str, api_key: str | None) -> bytes:
    """The body of an answer. Raises: ConfigError when there is none."""
    import http.client
    import urllib.error
    import urllib.request

    from core.errors import ConfigError

    try:
        asked = urllib.request.Request(url, headers={"Authorization": f"Bearer {api_key}"} if api_key else {})
        with urllib.request.urlopen(asked, timeout=TIMEOUT_S) as answer:
            body: bytes = answer.read()
            return body
    except urllib.error.HTTPError as error:
        with error:
            raise ConfigError(f"{url} answers {error.code}: {error.read(500).decode(errors='replace')}") from None
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise ConfigError(
            f"{url} does not answer ({error}): start `core serve`, or name its address with --url"
        ) from None


def _tables(s: "Snapshot") -> "list[Table]":
    from server.show import table

    rate = f"{s.num_prefix_hits / s.num_prefix_queries:.1%}" if s.num_prefix_queries else "none looked for"
    found = f"{s.num_prefix_hits} of {s.num_prefix_queries} ({rate})"
    engine = [
        ("sequences running, waiting", f"{s.num_running}, {s.num_waiting}"),
        ("steps; preemptions; by swap", f"{s.num_steps}; {s.num_preemptions}; {s.num_swapped}"),
        ("pages swapped out, in", f"{s.num_pages_swapped_out}, {s.num_pages_swapped_in}"),
        ("prompt tokens found in the cache", found if s.prefix_caching else "prefix caching is off"),
    ]
    groups = [
        (
            g,
            "all" if k.retain is None else f"last {k.retain}",
            k.num_pages,
            k.num_used,
            k.num_cached,
            k.num_free,
            k.num_keys,
            f"{k.num_host_used} of {k.num_host_pages}",
        )
        for g, k in enumerate(s.groups)
    ]
    sequences = [
        (
            q.request_id,
            q.status,
            q.num_prompt,
            q.num_tokens,
            q.num_computed,
            q.num_cached,
            ", ".join(map(str, q.num_pages)),
        )
        for q in s.sequences
    ]
    kept = ("group", "tokens kept", "pages", "used", "cached", "free", "findable", "on the host")
    held = ("sequence", "state", "prompt", "tokens", "computed", "from cache", "pages")
    return [
        table("Engine", ("what", "value"), engine),
        table(f"KV groups, pages of {s.page_tokens} tokens", kept, groups),
        *(
            [table(f"Sequences, {len(sequences)} of {s.num_running + s.num_waiting}", held, sequences)]
            if sequences
            else []
        ),
    ]
