"""The command line, put together: each command is a function of the module, or of the folder's `command`, that is named
after its subject.

A command reads its arguments, calls what does the work, prints, and gives the exit status.
"""

from __future__ import annotations

from copy import copy
from functools import cache
from typing import Annotated, Any

import typer
from typer.main import get_command, get_command_name

from statecache.cli import deployment, epochs, erase, lost, policy, prune, quarantine, tail, vectors, verify
from statecache.cli.demo.command import demo
from statecache.cli.doctor.command import doctor
from statecache.cli.history import blame_command, diff_command, log_command, show_command
from statecache.cli.inspect.command import inspect
from statecache.cli.locks.command import locks
from statecache.cli.options import DASHED
from statecache.cli.replay.command import replay
from statecache.cli.restoring import branch_command, checkpoint_command, merge_command, rollback_command
from statecache.cli.states import command as states
from statecache.cli.states import schemas
from statecache.cli.states import transfer_command as transfer
from statecache.cli.status.command import status
from statecache.cli.top.command import top

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit status: 0 ok, 1 finding, 2 usage, 3 configuration, 4 unreachable, 5 no room to write. "
    "Settings: STATECACHE_* variables.",
)


def _version(asked: bool) -> None:
    if asked:
        raise typer.Exit(deployment.version())


@app.callback()
def statecache(
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks; also STATECACHE_DEBUG=1.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version, and exit.")
    ] = False,
) -> None:
    """Agent state that every worker can share: hot in Redis, durable in Postgres.

    \b
    Examples:
      statecache dev          servers to develop against
      statecache demo         see it survive kills
      statecache migrate && statecache worker
      statecache get runs/42
    """


app.command(short_help="Print the value of a key.")(states.get)
app.command("set", short_help="Write a value.")(states.put)
app.command(short_help="Delete states.")(states.rm)
app.command(short_help="List keys.")(states.ls)
app.command(short_help="Write states as lines of JSON.")(transfer.export)
app.command("import", short_help="Take such lines in.")(transfer.take_in)
app.command(short_help="Print changes as they become durable.")(tail.tail)
app.command(short_help="Tell where a key lives.")(states.where)
app.command(short_help="Count states by type and version.")(schemas.schemas)
app.command(short_help="Show the history of a key as a graph.")(log_command.log)
app.command(short_help="Show what a key held at a point.")(show_command.show)
app.command(short_help="Compare two points of a key.", context_settings=DASHED)(diff_command.diff)
app.command(short_help="Tell which change set a part of a value.")(blame_command.blame)
app.command(short_help="Name the state that is there now.")(checkpoint_command.checkpoint)
app.command(short_help="List, rename, delete checkpoints.")(checkpoint_command.checkpoints)
app.command(short_help="Go back to an earlier point.", context_settings=DASHED)(rollback_command.rollback)
app.command(short_help="Take back the last edit.")(rollback_command.undo)
app.command(short_help="Bring back what was undone.")(rollback_command.redo)
app.command(short_help="Begin another key with what one holds.")(branch_command.branch)
app.command(short_help="List the branches of a key.")(branch_command.branches)
app.command(short_help="Take what was done on a branch.")(merge_command.merge)
app.command("locks", short_help="Show who holds locks; break one.")(locks)
app.command(short_help="Show or change how locks and histories are kept.")(policy.policy)
app.command(short_help="Let values go that policies do not keep.")(prune.prune)
app.command(short_help="Show how a deployment stands.")(status)
app.command(short_help="List what was acknowledged and is lost.")(lost.lost)
app.command(short_help="Remove a key or a group everywhere, for good.")(erase.erase)
app.command(short_help="Check that the history is whole.")(verify.verify)
app.command(short_help="Watch a deployment live.")(top)
app.command(short_help="Look into a deployment with a browser.")(inspect)
app.command(short_help="Check servers, settings, rights.")(doctor)
app.command(short_help="Bring the Postgres schema up to date.")(deployment.migrate)
app.command(short_help="Run a worker until SIGTERM.")(deployment.worker)
app.command(short_help="Run servers to develop against.")(deployment.dev)
app.command(short_help="See it survive kills: agents at work, then an audit.")(demo)
app.command(short_help="Replay agent runs, kill, audit.")(replay)
app.command(short_help="Show the version.")(deployment.version)

epoch = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Look after the shards' epochs.")
epoch.command("adopt", short_help="Declare this Redis the primary of shards.")(epochs.adopt_command)
app.add_typer(epoch, name="epoch")

parked = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Look after what Postgres refused.")
parked.command("list", short_help="List what is parked.")(quarantine.list_command)
parked.command(short_help="Show one parked entry.")(quarantine.show)
parked.command(short_help="Take parked entries in after all.")(quarantine.retry)
parked.command(short_help="Give parked entries up.")(quarantine.drop)
app.add_typer(parked, name="quarantine")

indexes = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Look after indexes of vectors.")
indexes.command("list", short_help="List what is indexed.")(vectors.list_command)
indexes.command(short_help="Index a namespace's vectors.")(vectors.create)
indexes.command(short_help="Let an index go.")(vectors.drop)
app.add_typer(indexes, name="vectors")


@cache
def command_line(word: str = "") -> Any:
    """Return the command line as typer runs it, or of it what the word names, if anything: all of it takes 50 ms."""
    part = copy(app)
    part.registered_commands = [one for one in app.registered_commands if _name(one) == word]
    part.registered_groups = [one for one in app.registered_groups if one.name == word]
    return get_command(part if part.registered_commands or part.registered_groups else app)


def _name(command: typer.models.CommandInfo) -> str:
    return command.name or get_command_name(getattr(command.callback, "__name__", ""))
