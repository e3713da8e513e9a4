"""`python -m weft_kvstore`: the shard daemon's command line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from weft.agent.children import ForkError
from weft.api.words import setting_sentences
from weft_kvstore.encryption import make_key_files
from weft_kvstore.errors import StoreError
from weft_kvstore.serving.daemon import ShardSettings, serve

VARIABLES_ALONE: Final = {"token", "silence_s", "alive_file"}
"""Settings that are no options: a secret, and what nobody sets by hand."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Serves one shard of a store that is used alone, or parameters for a weft server.

    Every setting is also an environment variable, which its option names.
    """
    parser = argparse.ArgumentParser(
        prog="python -m weft_kvstore", description=main.__doc__, argument_default=argparse.SUPPRESS
    )
    parser.add_argument(
        "--new-curve-keys", metavar="NAME", type=Path, help="Make NAME.key and NAME.key_secret; start nothing."
    )
    parser.add_argument(
        "--check", action="store_true", help="Say what each shard of the description will hold; start nothing."
    )
    for name, field in ShardSettings.model_fields.items():
        if name not in VARIABLES_ALONE:
            action: dict[str, Any] = {"action": "store_true"} if field.annotation is bool else {}
            help_text = f"{field.description} WEFT_SHARD_{name.upper()}."
            parser.add_argument(f"--{name.replace('_', '-')}", help=help_text.replace("%", "%%"), **action)
    options = vars(parser.parse_args(arguments))
    check = options.pop("check", False)
    if len(options) > 1 and "new_curve_keys" in options:
        parser.error("--new-curve-keys starts nothing: give it alone")
    if check and "description" not in options:
        parser.error("--check needs --description, the file to be checked")
    if "metrics_host" in options and "metrics_port" not in options:
        parser.error("--metrics-host needs --metrics-port: without a port no metrics are served")
    try:
        if "new_curve_keys" in options:
            _make_keys(options["new_curve_keys"])
        elif check:
            from weft_kvstore.serving.holdings import shown_holdings  # Daemons do without what it imports.

            sys.stdout.writelines(f"{line}\n" for line in shown_holdings(Path(options["description"])))
        else:
            settings = ShardSettings(**options)
            if settings.description is None:
                serve(settings)
            else:
                from weft_kvstore.serving.shard_process import serve_alone  # A daemon's children serve, not itself.

                serve_alone(settings)
    except ValidationError as error:
        parser.error("; ".join(setting_sentences(error, options, "WEFT_SHARD_")))
    except (ForkError, StoreError, ValueError, OSError, MemoryError) as error:
        sys.exit(f"error: {str(error) or 'there is no memory for it'}")  # MemoryError may say nothing.


def _make_keys(name: Path) -> None:
    public, secret, keys = make_key_files(name)
    sys.stdout.write(
        f"{secret}: for the process whose keys they are: --curve-keys of a shard, curve_keys= of a client\n"
        f"{public}: for whoever accepts it: in the directory that --curve-clients names\n"
        f"the public key, which of a shard goes into curve_keys of the description: {keys.public}\n"
    )


if __name__ == "__main__":
    main()
