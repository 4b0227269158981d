"""`laneway completion SHELL`: the script that makes a shell complete commands, options and names of queues."""

from __future__ import annotations

import click


@click.command(short_help="Print the completion script of a shell.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script of a shell. Names of queues are completed too, from the running server.

    \b
    bash:  eval "$(laneway completion bash)"        in ~/.bashrc
    zsh:   eval "$(laneway completion zsh)"         in ~/.zshrc
    fish:  laneway completion fish > ~/.config/fish/completions/laneway.fish
    """
    from click.shell_completion import ShellComplete, get_completion_class

    shell_class = get_completion_class(shell)
    assert shell_class is not None
    complete = shell_class(ctx.find_root().command, {}, "laneway", "_LANEWAY_COMPLETE")
    # The class of bash would look for a bash to ask for its version first; the script is the same without.
    click.echo(ShellComplete.source(complete))
