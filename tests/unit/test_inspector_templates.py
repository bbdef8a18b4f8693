"""What no template and no script of the inspector may do: let text through as it is, or need what is denied."""

from __future__ import annotations

import re
from importlib.resources import files

import pytest
from jinja2 import StrictUndefined

from statecache.inspector.rendering import templates, url

PACKAGE = files("statecache.inspector")
TEMPLATES = {one.name: one.read_text() for one in PACKAGE.joinpath("templates").iterdir()}
ASSETS = {one.name: one.read_text() for one in PACKAGE.joinpath("assets").iterdir()}
LETS_THROUGH = re.compile(r"\|\s*safe\b|\bautoescape\b|Markup|\bxmlattr\b|\|\s*tojson\b")
DENIED = re.compile(
    r"""\sstyle=|\son\w+=|<style|javascript:|https?://(?!www\.w3\.org/2000/svg)|<script(?![^>]*\ssrc=)"""
)


def findings(text: str) -> list[str]:
    return [*LETS_THROUGH.findall(text), *DENIED.findall(text)]


@pytest.mark.parametrize("name", TEMPLATES)
def test_templates_let_nothing_through_and_need_nothing_from_elsewhere(name: str) -> None:
    assert findings(TEMPLATES[name]) == []
    templates().get_template(name)


@pytest.mark.parametrize(
    "text", ["{{ x|safe }}", "<b style='x'>", "<a onclick='x'>", "<script>x</script>", '"http://x"']
)
def test_a_bad_template_is_found(text: str) -> None:
    assert findings(text)


def test_everything_is_escaped_and_what_is_missing_is_an_error() -> None:
    made = templates()
    assert made.autoescape is True
    assert made.undefined is StrictUndefined
    assert made.from_string("{{ x }}").render(x="<b>\"'&") == "&lt;b&gt;&#34;&#39;&amp;"


def test_scripts_make_elements_of_text_and_no_code_of_it() -> None:
    script = ASSETS["inspector.js"]
    assert not re.search(r"\beval\b|new Function|document\.write|insertAdjacentHTML|outerHTML", script)
    assert script.count("innerHTML") == 2
    assert len(re.findall(r"innerHTML = await answer\.text\(\)", script)) == 2
    assert "@import" not in ASSETS["inspector.css"]
    assert "url(" not in ASSETS["inspector.css"]


@pytest.mark.parametrize(
    ("query", "link"),
    [
        ({"key": "a/b"}, "key?key=a%2Fb"),
        ({"key": "a/<x>\"'&?#%", "version": 0}, "key?key=a%2F%3Cx%3E%22%27%26%3F%23%25&version=0"),
        ({"key": None, "n": ""}, "key"),
    ],
)
def test_links_are_relative_and_quoted(query: dict[str, object], link: str) -> None:
    assert url("key", **query) == link
