"""The command ``tensorgate``: reads flags, puts them into the environment as settings, and runs one of the programs.

A flag's ``dest`` is the setting's environment variable (several, where one flag sets several), so that the children of the supervisor read
the same values, and a flag, a variable and the settings file mean the same thing.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from core_grpc.access import DOORS as KEY_DOORS
from core_grpc.access import Rights, is_pattern
from core_grpc.api_keys import KeysError
from core_grpc.settings import SettingsError
from core_grpc.transports.envoy_host import EnvoyConfigError
from core_grpc.version import __version__
from tensorgate import build, doctor, inspect_plan, keys, usage
from tensorgate.infer.call import Call, InferError
from tensorgate.infer.command import DOORS
from tensorgate.ports import DoorError

_LEVELS = ("debug", "info", "warning", "error")
_PLAN_COMMANDS = {"build": build.run, "inspect": inspect_plan.run, "doctor": doctor.run}
_ENDPOINT = "unix:/path or host:port"


class UsageError(Exception):
    """The command line names something that is not there; the message is one line."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command. Gives the exit code: 0, 1 when something failed, 2 when the command line or a setting is wrong."""
    args = _parser().parse_args(arguments)
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal that knows no arrow gets a question mark, and not a traceback. Standard error does so by itself.
        sys.stdout.reconfigure(errors="replace")
    try:
        return _run(args)
    except (UsageError, SettingsError) as error:
        return _refuse(args.command, error, 2)
    except (DoorError, EnvoyConfigError, InferError, KeysError, usage.UsageError) as error:
        return _refuse(args.command, error, 1)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Whoever read our output has gone; Python would complain once more when it closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _refuse(command: str, error: Exception, code: int) -> int:
    sys.stderr.write(f"tensorgate {command}: {error}\n")
    return code


def _run(args: argparse.Namespace) -> int:
    if args.command == "infer":
        return _infer(args)
    if args.command in _PLAN_COMMANDS:
        return _PLAN_COMMANDS[args.command](args)
    environ = _environment(args)
    if args.command == "keys":
        return keys.run(environ, _key_command(args))
    if args.command == "nodes":
        return _nodes(args)
    if args.command == "usage":
        return usage.run(environ, usage.Query(args.by, args.since, args.until, args.format, args.output))
    # Imported here: the others and --help need none of it.
    from tensorgate import programs  # noqa: PLC0415

    if args.command == "facade":
        return programs.facade(environ, insecure=args.insecure)
    if args.command == "node":
        return programs.node(environ, insecure=args.insecure)
    if args.command == "edge":
        return programs.edge(environ, print_only=args.print_only)
    return programs.serve(environ)


def _environment(args: argparse.Namespace) -> dict[str, str]:
    """This process's environment with the given flags as settings.

    Raises:
        UsageError: the model repository is not there.
    """
    environ = dict(os.environ)
    for names, value in vars(args).items():
        if names.startswith("TENSORGATE_") and value is not None:
            text = ",".join(value) if isinstance(value, list) else str(value)
            environ.update(dict.fromkeys(names.split(), text))
    repository = getattr(args, "TENSORGATE_MODELS_REPOSITORY", None)
    if repository is not None and not Path(repository).is_dir():
        raise UsageError(f"--models: wanted a directory of models, got {repository}, which is none")
    return environ


def _nodes(args: argparse.Namespace) -> int:
    from tensorgate import nodes_file  # noqa: PLC0415

    path = Path(args.file)
    if args.action == "list":
        nodes = nodes_file.list_nodes(path)
    elif args.action == "add":
        nodes = nodes_file.add_nodes(path, args.endpoints)
    else:
        nodes = nodes_file.remove_nodes(path, args.endpoints)
    sys.stdout.write("".join(f"{node}\n" for node in nodes))
    return 0


def _infer(args: argparse.Namespace) -> int:
    from tensorgate.infer import command  # noqa: PLC0415

    path = Path(args.image)
    photo = command.photo_from(path)
    call = Call(args.model, photo, path.name, args.top, args.url, args.grpc_address, args.timeout, _api_key(args))
    command.run(call, args.door, as_json=args.json)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tensorgate",
        description="Serves models over gRPC, gRPC-Web and REST. Every flag is also a setting (docs/settings.md).",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"tensorgate {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_serve(commands.add_parser("serve", help="the whole gateway on this machine: edge, node and facade", allow_abbrev=False))
    _add_edge(commands.add_parser("edge", help="only the edge: the public Envoy in front of nodes and facade", allow_abbrev=False))
    _add_node(commands.add_parser("node", help="only a node: the models behind a gRPC listener", allow_abbrev=False))
    _add_facade(commands.add_parser("facade", help="only the facade: docs, demo page, /health, /predict", allow_abbrev=False))
    _add_nodes(commands.add_parser("nodes", help="the file by which a running edge is told its nodes", allow_abbrev=False))
    _add_infer(commands.add_parser("infer", help="send a photograph to a model and show the best classes", allow_abbrev=False))
    _add_keys(commands.add_parser("keys", help="API keys: create, list, rotate, revoke", allow_abbrev=False))
    _add_usage(commands.add_parser("usage", help="what each caller used of each model", allow_abbrev=False))
    build.add_arguments(commands.add_parser("build", help="a TensorRT plan from an ONNX file", allow_abbrev=False))
    doctor.add_arguments(commands.add_parser("doctor", help="what this machine has and lacks for TensorRT", allow_abbrev=False))
    inspect_plan.add_arguments(commands.add_parser("inspect", help="what is known of a TensorRT plan", allow_abbrev=False))
    return parser


def _add_serve(parser: argparse.ArgumentParser) -> None:
    parser.description = "Starts an edge, a node and a facade, joined by private Unix sockets. Without --models it serves the demo model."
    _add_models(parser)
    hosts = "TENSORGATE_EDGE_HOST TENSORGATE_SERVER_HOST"
    parser.add_argument(
        "--host", dest=hosts, metavar="ADDRESS", help="listen here (default 127.0.0.1); other than loopback needs --keys or --insecure"
    )
    parser.add_argument("--port", dest="TENSORGATE_EDGE_PORT", metavar="PORT", help="REST, gRPC-Web, gRPC, docs and demo (default 8080)")
    parser.add_argument("--grpc-port", dest="TENSORGATE_SERVER_PORT", metavar="PORT", help="the node's own gRPC (default 50051)")
    parser.add_argument(
        "--nodes", dest="TENSORGATE_SERVE_NODES", metavar="N", help="nodes behind the edge; the next ones take the next ports (default 1)"
    )
    _add_metrics(parser)
    _add_transport(parser)
    _add_keys_file(parser, "--keys")
    _add_public(parser)
    _add_level(parser, "TENSORGATE_EDGE_LOG_LEVEL TENSORGATE_SERVER_LOG_LEVEL TENSORGATE_FACADE_LOG_LEVEL")


def _add_edge(parser: argparse.ArgumentParser) -> None:
    parser.description = "Starts the public Envoy. It holds no model: nodes and facade run elsewhere."
    parser.add_argument("--host", dest="TENSORGATE_EDGE_HOST", metavar="ADDRESS", help="listen here (default 127.0.0.1)")
    parser.add_argument("--port", dest="TENSORGATE_EDGE_PORT", metavar="PORT", help="listen on this port (default 8080)")
    parser.add_argument(
        "--core",
        dest="TENSORGATE_EDGE_CORE",
        action="append",
        metavar="ENDPOINT",
        help=f"a node, {_ENDPOINT}; may be repeated (default 127.0.0.1:50051)",
    )
    parser.add_argument(
        "--nodes-file",
        dest="TENSORGATE_EDGE_NODES_FILE",
        metavar="FILE",
        help="says where the nodes are, instead of --core",
    )
    parser.add_argument(
        "--facade", dest="TENSORGATE_EDGE_FACADE", metavar="ENDPOINT", help=f"the facade, {_ENDPOINT} (default 127.0.0.1:8000)"
    )
    _add_keys_file(parser, "--keys")
    _add_public(parser)
    _add_level(parser, "TENSORGATE_EDGE_LOG_LEVEL")
    parser.add_argument(
        "--print", dest="print_only", action="store_true", help="print the Envoy configuration that would run, checked, and stop"
    )


def _add_nodes(parser: argparse.ArgumentParser) -> None:
    parser.description = "Adds nodes to the file that an edge was given with --nodes-file, or removes them; prints those that are in it."
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for action, text in (("list", "show the nodes"), ("add", "add nodes; makes the file"), ("remove", "remove nodes; their calls finish")):
        command = actions.add_parser(action, help=text, allow_abbrev=False)
        command.add_argument("file", metavar="FILE", help="the file, NAME.json")
        if action != "list":
            command.add_argument("endpoints", nargs="+", metavar="ENDPOINT", help="unix:/path or address:port")


def _add_node(parser: argparse.ArgumentParser) -> None:
    parser.description = "Starts a node. SIGTERM drains it: no new work, accepted work finishes."
    _add_models(parser)
    parser.add_argument("--host", dest="TENSORGATE_SERVER_HOST", metavar="ADDRESS", help="listen here (default 127.0.0.1)")
    parser.add_argument("--port", dest="TENSORGATE_SERVER_PORT", metavar="PORT", help="listen on this port (default 50051)")
    parser.add_argument(
        "--unix-socket", dest="TENSORGATE_SERVER_UNIX_SOCKET", metavar="PATH", help="listen here as well: an edge's private way in"
    )
    _add_metrics(parser)
    _add_transport(parser)
    _add_keys_file(parser, "--keys")
    _add_insecure(parser, "insecure")
    _add_level(parser, "TENSORGATE_SERVER_LOG_LEVEL")


def _add_facade(parser: argparse.ArgumentParser) -> None:
    parser.description = "Starts the facade: docs, demo page, /health and /predict."
    parser.add_argument("--host", dest="TENSORGATE_FACADE_HOST", metavar="ADDRESS", help="listen here (default 127.0.0.1)")
    parser.add_argument("--port", dest="TENSORGATE_FACADE_PORT", metavar="PORT", help="listen on this port (default 8000)")
    parser.add_argument(
        "--core", dest="TENSORGATE_FACADE_CORE_ADDRESS", metavar="ENDPOINT", help=f"a node, {_ENDPOINT} (default 127.0.0.1:50051)"
    )
    parser.add_argument(
        "--public-url", dest="TENSORGATE_FACADE_PUBLIC_URL", metavar="URL", help="where users reach the edge, for the documentation"
    )
    _add_insecure(parser, "insecure")
    _add_level(parser, "TENSORGATE_FACADE_LOG_LEVEL")


def _add_infer(parser: argparse.ArgumentParser) -> None:
    parser.description = "Sends a photograph as it is (the server preprocesses) and prints the best classes."
    parser.add_argument("model", metavar="MODEL", help="the model's name: efficientnet_lite0 is the demo model")
    parser.add_argument("--image", required=True, metavar="PHOTO", help="a JPEG, PNG, WebP, GIF, BMP or TIFF file")
    parser.add_argument("--door", choices=list(DOORS), default="grpc", help="how to call (default grpc)")
    parser.add_argument("--url", default="http://127.0.0.1:8080", help="the edge (default http://127.0.0.1:8080)")
    parser.add_argument("--grpc-address", default="127.0.0.1:50051", metavar="HOST:PORT", help="for --door grpc (default 127.0.0.1:50051)")
    parser.add_argument("--top", type=_positive, default=5, metavar="N", help="how many classes (default 5)")
    parser.add_argument("--timeout", type=_seconds, default=30.0, metavar="SECONDS", help="how long to wait (default 30)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    # The variable keeps the secret out of the list of processes.
    parser.add_argument("--key", metavar="KEY", help="an API key; safer in the environment (docs/security.md)")


def _api_key(args: argparse.Namespace) -> str:
    key = args.key or os.environ.get("TENSORGATE_API_KEY", "")
    if not (key.isascii() and key.isprintable() and " " not in key):
        raise UsageError("--key: wanted an API key, which is printable ASCII without spaces")
    return str(key)


def _key_command(args: argparse.Namespace) -> keys.KeyCommand:
    if args.action == "create":
        rights = Rights(tuple(args.model or ("*",)), tuple(args.door or KEY_DOORS), args.management)
        return keys.KeyCommand("create", rights=rights, note=args.note, expires=args.expires or 0)
    overlap_s = round(args.overlap) if args.action == "rotate" and args.overlap else 0
    return keys.KeyCommand(args.action, getattr(args, "id", ""), overlap_s=overlap_s)


def _add_keys_file(parser: argparse.ArgumentParser, flag: str) -> None:
    text = "the file of API keys that `tensorgate keys` writes; where it is given, callers must show one"
    parser.add_argument(flag, dest="TENSORGATE_AUTH_KEYS_FILE", metavar="FILE", help=text)


def _add_keys(parser: argparse.ArgumentParser) -> None:
    parser.description = "Makes and ends API keys. Edge and nodes that use the file see a change within two seconds."
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    create = actions.add_parser("create", help="make a key and print it, once", allow_abbrev=False)
    create.add_argument("--model", action="append", type=_pattern, metavar="PATTERN", help="a model it may use, repeatable (default *)")
    create.add_argument("--door", action="append", choices=KEY_DOORS, help="a door it may use; may be repeated (default all)")
    create.add_argument("--management", action="store_true", help="it may load and unload models and change settings")
    create.add_argument("--expires", type=_expiry, metavar="TIME", help="when it ends (ISO 8601; UTC unless it says otherwise)")
    create.add_argument("--note", type=_note, default="", metavar="TEXT", help="whose it is, for the list")
    rotate = actions.add_parser("rotate", help="replace a key by a new one with the same rights", allow_abbrev=False)
    rotate.add_argument("--overlap", type=_seconds, metavar="SECONDS", help="how long the old one stays valid (default: not at all)")
    revoke = actions.add_parser("revoke", help="end a key", allow_abbrev=False)
    for action in (rotate, revoke):
        action.add_argument("id", metavar="ID", help="the key's id: what stands between tg_ and the next underscore")
    listing = actions.add_parser("list", help="show the keys: ids, rights, ends; no secrets", allow_abbrev=False)
    for action in (create, rotate, revoke, listing):
        _add_keys_file(action, "--file")


def _pattern(text: str) -> str:
    if not is_pattern(text):
        raise argparse.ArgumentTypeError(f"wanted a model's name, with * and ? for any characters, got {text!r}")
    return text


def _expiry(text: str) -> int:
    moment = int(_moment(text))
    if moment <= 0:
        raise argparse.ArgumentTypeError(f"wanted a time after 1970, got {text!r}")
    return moment


def _note(text: str) -> str:
    if not text.isprintable():
        raise argparse.ArgumentTypeError("wanted one line of printable text")
    return text


def _add_usage(parser: argparse.ArgumentParser) -> None:
    parser.description = "Shows what the nodes of this machine have metered: requests, rows, bytes of tensors, and time of the engine."
    parser.add_argument("--since", type=_moment, metavar="TIME", help="from this date or time on (ISO 8601; UTC unless it says otherwise)")
    parser.add_argument("--until", type=_moment, metavar="TIME", help="before this date or time")
    parser.add_argument(
        "--by",
        type=_grouping,
        default="key,model,version",
        metavar="NAMES",
        help="add up by these: key, model, version, outcome, minute, hour, day, month (default key,model,version; '' adds up everything)",
    )
    parser.add_argument("--format", choices=list(usage.FORMATS), default="table", help="how it is written (default table)")
    parser.add_argument("--output", metavar="FILE", help="write there instead of to standard output")
    parser.add_argument(
        "--database", dest="TENSORGATE_USAGE_DATABASE", metavar="FILE", help="the nodes' file (default: as the setting says)"
    )


def _add_models(parser: argparse.ArgumentParser) -> None:
    text = "model repository: DIRECTORY/<model>/<version>/model.onnx (default: the demo model)"
    parser.add_argument("--models", dest="TENSORGATE_MODELS_REPOSITORY", metavar="DIRECTORY", help=text)


def _add_metrics(parser: argparse.ArgumentParser) -> None:
    text = "the node's /metrics and /health (default 8002)"
    parser.add_argument("--metrics-port", dest="TENSORGATE_SERVER_METRICS_PORT", metavar="PORT", help=text)


def _add_transport(parser: argparse.ArgumentParser) -> None:
    text = "what hosts the gRPC server: an Envoy with Python inside, or grpc.aio (default auto: envoy where this Python allows it)"
    parser.add_argument("--transport", dest="TENSORGATE_SERVER_TRANSPORT", choices=("auto", "envoy", "grpcio"), help=text)


def _add_public(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--hostname",
        dest="TENSORGATE_EDGE_HOSTNAMES",
        action="append",
        metavar="NAME",
        help="a host name that callers may use; may be repeated",
    )
    parser.add_argument(
        "--cors-origin",
        dest="TENSORGATE_EDGE_CORS_ORIGINS",
        action="append",
        metavar="ORIGIN",
        help="a web page's origin that may call; may be repeated",
    )
    _add_insecure(parser, "TENSORGATE_EDGE_INSECURE")


def _add_insecure(parser: argparse.ArgumentParser, dest: str) -> None:
    text = "allow an address that others can reach, although nothing is encrypted and nobody is asked who they are"
    parser.add_argument("--insecure", dest=dest, action="store_const", const=True, help=text)


def _add_level(parser: argparse.ArgumentParser, dest: str) -> None:
    parser.add_argument("--log-level", dest=dest, choices=_LEVELS, help="how much is logged (default info)")


def _positive(text: str) -> int:
    value = int(text) if text.isdecimal() else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"wanted a number from 1, got {text!r}")
    return value


def _moment(text: str) -> float:
    try:
        return usage.moment(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"wanted a date or time such as 2026-01-31 or 2026-01-31T08:00, got {text!r}") from error


def _grouping(text: str) -> list[str]:
    try:
        return usage.grouping(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 86400:
        raise argparse.ArgumentTypeError(f"wanted seconds above 0, got {text!r}")
    return value
