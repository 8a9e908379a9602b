"""Keeps secrets out of configs: they are named there, never held. What looks like one is refused, and never shown."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tbexp.errors import Problem, UserError

SECRET_NAMES = re.compile(
    r"api[_-]?key|secret|passw|authorization|(^|[_-])token$|access[_-]key|credential", re.IGNORECASE
)
NAMES_OF_NAMES = ("api_key_env", "secrets_file")  # keys that hold the name of a secret
KEY_SHAPES = re.compile(
    r"\b(sk-[\w-]{16,}|hf_\w{16,}|gh[pousr]_\w{16,}|AKIA\w{16}|xox[a-z]-[\w-]{10,}|Bearer\s+\S{8,})"
)
USER_AND_PASSWORD = re.compile(r"://[^/@\s:]*:[^/@\s]+@")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")

# What stands for a key where a server wants none: as guides of vLLM, llama.cpp, Ollama and LM Studio write it.
NO_KEYS = frozenset(
    [
        "empty",
        "none",
        "null",
        "na",
        "n/a",
        "-",
        "x",
        "xxx",
        "dummy",
        "fake",
        "test",
        "local",
        "key",
        "nokey",
        "no-key",
        "no_key",
        "not-needed",
        "not-required",
        "unused",
        "placeholder",
        "token-abc123",
        "sk-no-key-required",
        "ollama",
        "lm-studio",
    ]
)
_SHORT = 8  # characters; a shorter key is looked for as a whole word, so that it does not cut others

NAME_IT = "put it into the environment and name the variable: api_key_env=NAME"


def secret_name(name: str) -> bool:
    """Whether a key of this name would hold a secret."""
    return name not in NAMES_OF_NAMES and bool(SECRET_NAMES.search(name))


def key_in(name: str) -> tuple[str, str]:
    """The key in an environment variable, and what is wrong with it; one of the two is empty.

    White space around it, such as the newline of a secret that was mounted as a file, is not part of it. A key that no
    HTTP header can carry is refused here, since the complaint of an HTTP library would repeat it.
    """
    if name not in os.environ:
        return "", f"the environment has no variable {name}"
    wrong = no_key(name, os.environ[name])
    return ("", wrong) if wrong else (os.environ[name].strip(), "")


def no_key(name: str, value: str) -> str:
    """What is wrong with the value of this variable as a key; empty: nothing is."""
    key = value.strip()
    if not key:
        return f"the variable {name} is empty"
    if not (key.isascii() and key.isprintable()):
        return f"what {name} holds is no key: it has line breaks or characters outside ASCII"
    return ""


def without_key(value: Any, key: str) -> Any:
    """A JSON value in which `***` stands for the key, also where it is part of JSON text. Placeholders stay."""
    if not key or key.lower() in NO_KEYS:
        return value
    spellings = "|".join(re.escape(each) for each in dict.fromkeys((key, json.dumps(key)[1:-1])))
    pattern = re.compile(rf"(?<!\w)(?:{spellings})(?!\w)" if len(key) < _SHORT else spellings)

    def cleaned(value: Any) -> Any:
        if isinstance(value, str):
            return pattern.sub("***", value)
        if isinstance(value, dict):
            return {cleaned(name): cleaned(each) for name, each in value.items()}
        return [cleaned(each) for each in value] if isinstance(value, list) else value

    return cleaned(value)


def read_secrets(file: Path) -> dict[str, str]:
    """NAME=value lines of a file that only its owner can read. Raises UserError, which never shows a value."""
    key = "launcher.secrets_file"
    try:
        mode, lines = file.stat().st_mode, file.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, ValueError) as error:
        raise UserError(Problem(f"{file} cannot be read: {type(error).__name__}", key)) from None
    if mode & 0o077:
        raise UserError(Problem(f"{file} can be read by others", key, f"chmod 600 {file}"))
    found = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, equals, value = line.partition("=")
        name = name.strip().removeprefix("export ").strip()
        if not equals or not VARIABLE.fullmatch(name):
            raise UserError(
                Problem("the line is not NAME=value", f"{file}:{number}", "mend it, or begin it with # as a comment")
            )
        value = value.strip()
        quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "'\""
        found[name] = value[1:-1] if quoted else value
    return found


def provide(file: str | None, names: Iterable[str]) -> None:
    """Puts these of the file's secrets into this process's environment. For the process that calls the endpoint."""
    if file is None:
        return
    wanted = set(names)
    os.environ.update({name: value for name, value in read_secrets(Path(file)).items() if name in wanted})


def looks_secret(text: str) -> bool:
    return bool(KEY_SHAPES.search(text) or USER_AND_PASSWORD.search(text))


def planted(values: Mapping[str, Any]) -> list[Problem]:
    """What looks like a secret anywhere in these values. The messages do not repeat it."""
    problems = []
    for key, value in leaves(values):
        leaf = key.rpartition(".")[2]
        if leaf == "api_key_env":
            if value is not None and (not VARIABLE.fullmatch(str(value)) or looks_secret(str(value))):
                problems.append(Problem("is not the name of an environment variable", key, NAME_IT))
        elif isinstance(value, str) and USER_AND_PASSWORD.search(value):
            problems.append(Problem("carries a password", key, "leave user and password out of the address"))
        elif isinstance(value, str) and (looks_secret(value) or (secret_name(leaf) and value)):
            problems.append(Problem("looks like a secret, which a config never holds", key, NAME_IT))
    return problems


def leaves(values: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(values, Mapping):
        for key, value in values.items():
            yield from leaves(value, f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(values, list | tuple):
        for value in values:
            yield from leaves(value, prefix)
    else:
        yield prefix, values
