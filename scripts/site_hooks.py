"""Hooks of MkDocs: the pages beside docs/ become pages of the site, and links to files that are no pages become their names."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parent.parent
PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
"""File of the repository -> page of the site."""
_LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that lie beside docs/."""
    for name, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / name).read_text()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turn links that work in the repository into links of the site."""
    names = {target: name for name, target in PAGES.items()}
    source = page.file.src_uri
    own = names.get(source, f"docs/{source}")
    return _LINK.sub(lambda match: _link(match[1], match[2], own, source), markdown)


def _link(text: str, target: str, own: str, source: str) -> str:
    """Return one link of the site. `own`: the page's path in the repository; `source`: in the site."""
    path, _, anchor = target.partition("#")
    if "://" in target or target.startswith("mailto:") or not path:
        return f"[{text}]({target})"
    in_repository = posixpath.normpath(posixpath.join(posixpath.dirname(own), path))
    if in_repository in PAGES:
        in_site = PAGES[in_repository]
    elif in_repository.startswith("docs/"):
        in_site = in_repository.removeprefix("docs/")
    else:
        return text if in_repository in text else f"{text} (`{in_repository}`)"
    if (ROOT / "docs" / in_site).is_dir():
        return f"{text} (`docs/{in_site}`)"
    relative = posixpath.relpath(in_site, posixpath.dirname(source) or ".")
    return f"[{text}]({relative}#{anchor})" if anchor else f"[{text}]({relative})"
