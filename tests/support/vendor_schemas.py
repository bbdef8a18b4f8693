"""Schemas of frameworks of their own, in a test's Postgres."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import quote
from uuid import uuid4

import psycopg

from statecache import Settings


@contextmanager
def vendor_schema(settings: Settings) -> Iterator[str]:
    """Make an empty schema, yield a URL under which tables are made and found there, and drop it."""
    schema = f"vendor_{uuid4().hex[:12]}"
    with psycopg.connect(settings.postgres_url, autocommit=True) as admin:
        admin.execute(f"CREATE SCHEMA {schema}")
        mark = "&" if "?" in settings.postgres_url else "?"
        yield f"{settings.postgres_url}{mark}options={quote(f'-csearch_path={schema}')}"
        admin.execute(f"DROP SCHEMA {schema} CASCADE")
