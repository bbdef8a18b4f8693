"""Hooks of mkdocs (`mkdocs.yml`): the site is made of the files that are read in the repository, as they are.

README, CONTRIBUTING, CHANGELOG and the examples' page stand outside of docs/ and become pages of the site. Links are
written as they hold in the repository; here they are made to hold on the site. Files that are linked to, such as
config/prometheus.yml, come along below source/, and a folder as a list of what git has in it. Of a fence only its
language is kept, and the file that it is an excerpt of as its title.
"""

from __future__ import annotations

import posixpath
import re
import subprocess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
BESIDE = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "examples/README.md": "examples.md",
}
"""Pages outside of docs/, and where they stand on the site."""
_BACK = {there: here for here, there in BESIDE.items()}
_LINK = re.compile(r"(?<=\]\()(?!https?:|#)([^)\s#]+)(#[^)\s]*)?(?=\))")
_FENCE = re.compile(r"^```(\w+) +(\S+)$", re.MULTILINE)


def repository_path(page: str) -> str:
    """Return where a page of the site stands in the repository."""
    return _BACK.get(page, f"docs/{page}")


def linked(page: str, text: str) -> list[str]:
    """Return the paths in the repository that a page links to; `page` is its own."""
    return [posixpath.normpath(posixpath.join(posixpath.dirname(page), link[1])) for link in _LINK.finditer(text)]


def site_path(path: str) -> str:
    """Return where a path of the repository stands on the site."""
    if path in BESIDE:
        return BESIDE[path]
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return f"source/{path}/index.md" if (ROOT / path).is_dir() else f"source/{path}"


def for_the_site(page: str, text: str) -> str:
    """Return a page's text with its links and fences as the site needs them; `page` is its path there."""
    here = repository_path(page)

    def link(found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(here), found[1]))
        if not (ROOT / target).exists():
            return found[0]
        return posixpath.relpath(site_path(target), posixpath.dirname(page) or ".") + (found[2] or "")

    return _FENCE.sub(_fence, _LINK.sub(link, text))


def _fence(found: re.Match[str]) -> str:
    return f"```{found[1]}" + (f' title="{found[2]}"' if "/" in found[2] else "")


def on_files(files: Any, *, config: Any) -> Any:
    """Add the pages that stand outside of docs/, and what pages link to beside pages."""
    from mkdocs.structure.files import File

    texts = {path: (ROOT / path).read_text(encoding="utf-8") for path in BESIDE}
    for path, text in texts.items():
        files.append(File.generated(config, BESIDE[path], content=text))
    for file in files.documentation_pages():
        texts.setdefault(repository_path(file.src_uri), file.content_string)
    targets = {target for path, text in texts.items() for target in linked(path, text)} - set(BESIDE)
    for target in sorted(target for target in targets if not target.startswith("docs/")):
        if (ROOT / target).is_dir():
            names = _tracked(target)
            rows = "".join(f"* [{name}]({name})\n" for name in names)
            files.append(File.generated(config, site_path(target), content=f"# {target}/\n\n{rows}"))
            targets |= {f"{target}/{name}" for name in names}
    for target in sorted(target for target in targets if not target.startswith("docs/")):
        if (ROOT / target).is_file():
            files.append(File.generated(config, site_path(target), abs_src_path=str(ROOT / target)))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Any) -> str:
    """Return a page's text as the site needs it."""
    uri = page.file.src_uri
    return markdown if uri.startswith("source/") else for_the_site(uri, markdown)


def _tracked(folder: str) -> list[str]:
    """Return the names below a folder that git has: what else lies there may be somebody's passwords."""
    asked = ["git", "-c", f"safe.directory={ROOT}", "-C", str(ROOT), "ls-files", "-z", "--", folder]
    paths = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split("\0")
    return sorted(path.removeprefix(f"{folder}/") for path in paths if path and not path.endswith(".gitignore"))
