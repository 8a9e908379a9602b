from __future__ import annotations

from pathlib import Path

import pytest

from tbexp.errors import UserError
from tbexp.sandbox import read_servers
from tbexp.sandbox.servers import Remote


def read(tmp_path: Path, text: str, allow_env=(), remote_env=()):
    file = tmp_path / "servers.yaml"
    file.write_text(text)
    return read_servers(file, python="/opt/py/bin/python", allow_env=allow_env, remote_env=remote_env)


def test_a_file_is_read_with_its_braces_filled_in(tmp_path, monkeypatch):
    monkeypatch.setenv("SHOP_FOLDER", "/srv/shop")
    (tmp_path / "sub").mkdir()
    text = """
use_internal_servers: false
servers:
  shop:
    type: mcp-process
    command: ["{python}", -m, shop, "--data={env[SHOP_FOLDER]}", "{{literal}}"]
    env: {LEVEL: 3, JSON: '{"a": 1}', AT: "at {env[SHOP_FOLDER]}{x"}
    cwd: sub
    transport: stdio
  cafe:
    type: mcp-process
    command: [cafe-server]
"""
    servers = read(tmp_path, text, ["SHOP_FOLDER"])
    assert list(servers) == ["shop", "cafe"]
    assert servers["shop"].command == ("/opt/py/bin/python", "-m", "shop", "--data=/srv/shop", "{literal}")
    assert servers["shop"].env == {"LEVEL": "3", "JSON": '{"a": 1}', "AT": "at /srv/shop{x"}
    assert servers["shop"].cwd == str(tmp_path / "sub")
    assert servers["cafe"].cwd == str(tmp_path)


def test_all_problems_are_reported_at_once_with_their_lines(tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET", "x")
    text = """servers:
  shop:
    type: mcp-process
    comand: [a]
  cafe:
    type: mcp-proces
    command: [a]
  bar:
    type: mcp-process
    command: ["{env[SECRET]}", "{env[UNSET]}", "{phyton}", "{"]
    cwd: nowhere
  bar:
    type: mcp-process
    command: []
    transport: sse
  far:
    type: mcp-remote
sevrers: {}
"""
    with pytest.raises(UserError) as caught:
        read(tmp_path, text, ["UNSET"])
    lines = [problem.where.rpartition(":")[2] for problem in caught.value.problems]
    said = str(caught.value)
    assert sorted(map(int, lines)) == [3, 4, 6, 12, 14, 15, 17, 18]
    for words in ("did you mean `command`?", "mcp-proces`", "twice", "did you mean `servers`?", "`endpoint`"):
        assert words in said


def test_variables_must_be_allowed_and_set(tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET", "x")
    text = 'servers:\n  bar:\n    type: mcp-process\n    command: ["{env[SECRET]}", "{env[UNSET]}", "{phyton}", "{"]\n'
    text += '    env: {KEY: "{env[SECRET]}"}\n'
    with pytest.raises(UserError) as caught:
        read(tmp_path, text, ["UNSET"])
    assert [problem.where.rpartition(":")[2] for problem in caught.value.problems] == ["4", "4", "4", "4", "5"]
    assert "SECRET is not allowed" in str(caught.value) and "add SECRET to sandbox.allow_env" in str(caught.value)
    assert "UNSET is not set" in str(caught.value)


@pytest.mark.parametrize("text", ["", "[1]", "servers: [a]", "servers: {a: 1}", "servers:\n  a: {type: [\n"])
def test_a_file_of_another_shape_is_refused(tmp_path, text):
    with pytest.raises(UserError):
        read(tmp_path, text)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(UserError, match="cannot be read"):
        read_servers(tmp_path / "none.yaml", python="python")


def test_a_remote_server_is_read_and_its_key_comes_from_the_environment_and_is_not_shown(tmp_path, monkeypatch):
    monkeypatch.setenv("FAR_KEY", "hunter2")
    text = """servers:
  far:
    type: mcp-remote
    endpoint: https://far.example/mcp
    headers: {Authorization: "Bearer {env[FAR_KEY]}", X-Tenant: blue}
    timeout: 5
    transport: sse
"""
    far = read(tmp_path, text, remote_env=["FAR_KEY"])["far"]
    assert far.remote == Remote(
        "https://far.example/mcp", "sse", {"Authorization": "Bearer hunter2", "X-Tenant": "blue"}, 5.0
    )
    assert "hunter2" not in repr(far)
    with pytest.raises(UserError, match=r"add FAR_KEY to sandbox\.remote_env"):
        read(tmp_path, text, allow_env=["FAR_KEY"])


REMOTE = {
    "endpoint: far.example": "is no web address",
    "endpoint: http://[::1/x": "names no host",
    "endpoint: http://far.example:99999/": "has no valid port",
    'endpoint: "http://far .example/"': "names no host",
    'endpoint: http://far.example/\n    headers: {"X Y": a}': "cannot be the name of a header",
    'endpoint: http://far.example/\n    headers: {X: "a\\nb"}': "a character that no header can have",
    "endpoint: http:///mcp": "names no host",
    "endpoint: 'http://[far/mcp'": "names no host",
    "endpoint: http://far.example:x/": "has no valid port",
    "endpoint: https://me:hunter2@far.example/": "holds a password",
    "endpoint: http://far.example/\n    transport: stdio": "does not speak `stdio`",
    "endpoint: http://far.example/\n    timeout: soon": "`timeout` must be a number",
    "endpoint: http://far.example/\n    credential: azure-interactive": "`credential` is not supported",
    "endpoint: http://far.example/\n    headers: {X-Api-Key: hunter2}": "holds what looks like a secret",
}


@pytest.mark.parametrize("keys", REMOTE)
def test_a_remote_server_that_cannot_be_reached_so_is_refused(tmp_path, keys):
    with pytest.raises(UserError) as caught:
        read(tmp_path, f"servers:\n  far:\n    type: mcp-remote\n    {keys}\n")
    assert REMOTE[keys] in str(caught.value)
    assert len(caught.value.problems) == 1 and "hunter2" not in str(caught.value.problems[0].fix)


def test_a_merge_key_brings_what_is_not_given(tmp_path):
    text = """servers:
  shop: &base
    type: mcp-process
    command: [shop]
    env: &env {A: "1", B: "2"}
  garden: {<<: *base, command: [garden], env: {<<: *env, B: "3"}}
  tea: {<<: [{command: [tea]}, *base]}
"""
    servers = read(tmp_path, text)
    assert [server.command for server in servers.values()] == [("shop",), ("garden",), ("tea",)]
    assert servers["garden"].env == {"A": "1", "B": "3"} and servers["tea"].env == {"A": "1", "B": "2"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("servers: &x {<<: *x}", "is merged into itself"),
        ("servers: {<<: 5}", "merges what is no object"),
        ("servers:\n  a: {<<: {type: mcp-process}, command: [a], command: [b]}", "has `command` twice"),
    ],
)
def test_a_merge_key_that_means_nothing_is_told(tmp_path, text, said):
    with pytest.raises(UserError, match=said):
        read(tmp_path, text)


PROCESS = {
    'env: {"A=B": "1"}': "'A=B' cannot be the name of an environment variable",
    'env: {"": "1"}': "'' cannot be the name of an environment variable",
    'env: {A: "x\\0"}': "env.A holds a character that no command and no variable can have",
    'command: ["{python}", "x\\0"]': "a part of `command` holds a character",
    'command: ["{python}", "\\uD800"]': "a part of `command` holds a character",
    'command: [""]': "`command` is empty",
    f"cwd: {'a' * 300}": "does not exist",
    f'command: ["{{python}}", {"a" * 300}.py]': "there is no file",
    "? [cwd]\n    : x": "a key of server `far` must be a text",
}


@pytest.mark.parametrize("keys", PROCESS)
def test_what_no_process_can_be_started_with_is_refused(tmp_path, keys):
    given = keys if keys.startswith("command") else f"command: [a]\n    {keys}"
    with pytest.raises(UserError) as caught:
        read(tmp_path, f"servers:\n  far:\n    type: mcp-process\n    {given}\n")
    assert PROCESS[keys] in str(caught.value)


@pytest.mark.parametrize("text", ["servers: " + "[" * 5000, "servers: &x {a: *x}", "servers: \1"])
def test_a_file_that_has_no_end_or_no_yaml_is_refused(tmp_path, text):
    with pytest.raises(UserError):
        read(tmp_path, text)


def test_a_folder_that_would_hide_the_installed_package_of_its_name_is_not_worked_in(tmp_path):
    file = tmp_path / "servers" / "servers.yaml"
    (file.parent / "tea" / "tea").mkdir(parents=True)
    file.write_text('servers: {tea: {type: mcp-process, command: ["{python}", "-m", "tea.pot"]}}')

    def cwd():
        return read_servers(file, python="python")["tea"].cwd

    assert cwd() == str(file.parent)
    (file.parent / "tea" / "tea" / "__init__.py").touch()
    assert cwd() == str(tmp_path)
    (file.parent / "tea" / "__init__.py").touch()
    assert cwd() == str(file.parent)
