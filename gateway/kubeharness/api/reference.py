"""`/docs`: the description of the API as one page of plain HTML.

It needs no script, no font and nothing from another host, and holds nothing but what it is served with: it works
without the internet, under any prefix, and in whatever reads HTML.
"""

from collections.abc import Iterator
from html import escape
from typing import Any

HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'",
    "x-content-type-options": "nosniff",
}

STYLE = """
:root { color-scheme: light dark }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
code, pre { font: 14px/1.5 ui-monospace, monospace }
h2 { margin-top: 2.5rem; border-top: 1px solid #8886; padding-top: 1rem }
h2 b { display: inline-block; min-width: 4rem }
table { border-collapse: collapse; width: 100% }
td, th { text-align: left; vertical-align: top; padding: .2rem .8rem .2rem 0; border-bottom: 1px solid #8883 }
"""

Schema = dict[str, Any]


def page(schema: Schema, root: str) -> str:
    """The page for a description; `root` is the prefix that callers write before each path."""
    title = f"{escape(schema['info']['title'])} {escape(schema['info']['version'])}"
    operations = list(_operations(schema))
    index = "".join(
        f'<li><a href="#{escape(_anchor(method, path))}"><code>{method} {escape(root + path)}</code></a></li>'
        for method, path, _, _ in operations
    )
    told = "".join(_operation(schema, root, *operation) for operation in operations)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style></head><body><h1>{title}</h1>'
        f"<p>{_text(schema['info'].get('description', ''))}</p>"
        f'<p>The same for programs: <a href="{escape(root)}/openapi.json"><code>{escape(root)}/openapi.json</code></a>.'
        f" Send <code>Authorization: Bearer …</code> with each request.</p><ul>{index}</ul>{told}</body></html>"
    )


def _operations(schema: Schema) -> Iterator[tuple[str, str, Schema, list[Schema]]]:
    for path, item in schema["paths"].items():
        for method, operation in item.items():
            if method != "parameters":
                yield method.upper(), path, operation, [*item.get("parameters", ()), *operation.get("parameters", ())]


def _operation(schema: Schema, root: str, method: str, path: str, operation: Schema, parameters: list[Schema]) -> str:
    parts = [
        f'<h2 id="{escape(_anchor(method, path))}"><b>{method}</b> <code>{escape(root + path)}</code></h2>',
        f"<p><strong>{_text(operation.get('summary', ''))}.</strong> {_text(operation.get('description', ''))}</p>",
    ]
    if parameters:
        rows = [(f"{each['name']} ({each['in']})", each["schema"], each.get("description", "")) for each in parameters]
        parts.append(_table(schema, "Parameters", rows))
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
    if body is not None:
        parts.append(_fields(schema, "Body", body))
    parts.append("<h3>Answers</h3><table>")
    for status, answer in operation["responses"].items():
        content = ", ".join(
            f"<code>{escape(media)}</code> {_type(schema, told.get('schema', {}))}"
            for media, told in answer.get("content", {}).items()
        )
        parts.append(f"<tr><td><code>{escape(status)}</code></td><td>{_text(answer['description'])}</td>")
        parts.append(f"<td>{content}</td></tr>")
    parts.append("</table>")
    return "".join(parts)


def _fields(schema: Schema, title: str, of: Schema) -> str:
    model = _resolved(schema, of)
    required = set(model.get("required", ()))
    rows = [
        (name + (" (required)" if name in required else ""), told, told.get("description", ""))
        for name, told in model.get("properties", {}).items()
    ]
    return _table(schema, title, rows)


def _table(schema: Schema, title: str, rows: list[tuple[str, Schema, str]]) -> str:
    cells = "".join(
        f"<tr><td><code>{escape(name)}</code></td><td>{_type(schema, of)}</td><td>{_text(text)}</td></tr>"
        for name, of, text in rows
    )
    return f"<h3>{title}</h3><table>{cells}</table>"


def _type(schema: Schema, of: Schema) -> str:
    """What a value is, in a word or two."""
    if "$ref" in of:
        model = _resolved(schema, of)
        fields = ", ".join(model.get("properties", {}))
        return escape(f"{{{fields}}}" if fields else of["$ref"].rpartition("/")[2])
    if "anyOf" in of:
        kinds = [_type(schema, each) for each in of["anyOf"] if each.get("type") != "null"]
        return " or ".join(kinds)
    if "enum" in of:
        return escape(" | ".join(map(str, of["enum"])))
    if of.get("type") == "array":
        return f"list of {_type(schema, of.get('items', {})) or 'anything'}"
    return escape(str(of.get("type", "")))


def _resolved(schema: Schema, of: Schema) -> Schema:
    if "$ref" not in of:
        return of
    found: Schema = schema["components"]["schemas"][of["$ref"].rpartition("/")[2]]
    return found


def _anchor(method: str, path: str) -> str:
    return f"{method.lower()}{path}".replace("{", "").replace("}", "")


def _text(markdown: str) -> str:
    """Prose, with what stands between backquotes as code."""
    parts = markdown.split("`")
    return "".join(f"<code>{escape(part)}</code>" if n % 2 else escape(part) for n, part in enumerate(parts))
