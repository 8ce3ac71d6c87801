"""plugins_file.py: upstream's format as its documentation has it, and every mistake named by file,
line and member.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from concertino.orchestra.plugin_entry import PluginEntry
from concertino.orchestra.plugins_file import InvalidPluginsFile, read_plugins

# The members and values of upstream's documentation (orchestrator, docs/CONFIGURATION.md), and
# depends_on and provides_ai, which its source reads too.
UPSTREAM = """\
listen_addr: "localhost:9200"
tcp_addr: "localhost:50101"
certs_dir: "~/.orchestra/certs"
plugins:
  - id: storage.markdown
    binary: ./bin/storage-markdown
    enabled: true
    provides_storage:
      - markdown
    args:
      - --workspace=.
    config:
      workspace: "."
      depth: 3
  - id: tools.features
    binary: ./bin/tools-features
    enabled: true
    depends_on: [storage.markdown]
    provides_ai: [claude]
  - id: some.custom.plugin
    binary: /usr/local/bin/my-plugin
    enabled: false
    env:
      MY_ENV_VAR: "value"
  - id: not.said
    binary: some-command
"""


def write_file(folder: Path, text: str) -> Path:
    path = folder / "plugins.yaml"
    path.write_text(text)
    return path


def test_upstream_s_format_is_read(tmp_path: Path) -> None:
    file = read_plugins(write_file(tmp_path, UPSTREAM))
    assert (file.listen_addr, file.certs_dir) == (
        "localhost:9200",
        str(Path.home() / ".orchestra/certs"),
    )
    assert file.plugins == (
        PluginEntry(
            "storage.markdown",
            f"{tmp_path}/bin/storage-markdown",
            args=(f"--workspace={tmp_path}",),
            config={"workspace": ".", "depth": "3"},
            enabled=True,
            provides_storage=("markdown",),
            line=5,
        ),
        PluginEntry(
            "tools.features",
            f"{tmp_path}/bin/tools-features",
            enabled=True,
            provides_ai=("claude",),
            depends_on=("storage.markdown",),
            line=15,
        ),
        PluginEntry(
            "some.custom.plugin", "/usr/local/bin/my-plugin", env={"MY_ENV_VAR": "value"}, line=20
        ),
        PluginEntry("not.said", "some-command", line=25),
    )
    assert [each.id for each in file.enabled] == ["storage.markdown", "tools.features"]
    [warning] = file.warnings
    assert warning.startswith(f"{tmp_path}/plugins.yaml:2: tcp_addr is ignored")


def test_a_bare_name_is_the_file_beside_before_it_is_a_command(tmp_path: Path) -> None:
    (tmp_path / "here.py").write_text("")
    file = read_plugins(
        write_file(tmp_path, "plugins: [{id: a, binary: here.py}, {id: b, binary: there.py}]")
    )
    assert [each.binary for each in file.plugins] == [f"{tmp_path}/here.py", "there.py"]


def test_places_are_relative_to_the_file(tmp_path: Path) -> None:
    file = read_plugins(
        write_file(tmp_path, "listen_addr: unix:run/hub\ncerts_dir: certs\nplugins: []")
    )
    assert (file.listen_addr, file.certs_dir) == (f"unix:{tmp_path}/run/hub", f"{tmp_path}/certs")
    assert (
        read_plugins(write_file(tmp_path, "listen_addr: unix:/run/hub\nplugins: []")).listen_addr
        == "unix:/run/hub"
    )


def test_a_variable_without_a_value_is_the_hub_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIVEN", "x")
    file = read_plugins(
        write_file(tmp_path, "plugins:\n- id: a\n  binary: a\n  env:\n    GIVEN:\n    EMPTY: ''\n")
    )
    assert file.plugins[0].env == {"GIVEN": None, "EMPTY": ""}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "plugins.yaml: expected a mapping with 'plugins', got nothing"),
        ("- 1", ":1: the file: expected a mapping, got a sequence"),
        ("listen_addr: localhost:1", ":1: plugins: expected a list, got nothing"),
        ("listen_addr: nohost\nplugins: []", ":1: listen_addr: expected HOST:PORT or "
         "unix:PATH, got 'nohost'"),
        ("plugins: 3", ":1: plugins: expected a list, got '3'"),
        ("plugins: []\nlisten: x", ":2: the file: expected one of listen_addr, tcp_addr, "
         "certs_dir, cluster, plugins, got 'listen'"),
        ("plugins: []\nplugins: []", ":2: the file.plugins: expected once, got twice"),
        ("plugins: []\nlisten_addr: [1]", ":2: listen_addr: expected a text, got a sequence"),
        ("plugins:\n- id: a\n", ":2: plugins[0].binary: expected a text, got nothing"),
        ("plugins:\n- binary: a\n", ":2: plugins[0].id: expected a text, got nothing"),
        ("plugins:\n- id:\n  binary: a\n", ":2: plugins[0].id: expected a text, got nothing"),
        ("plugins:\n- id: ../a\n  binary: a\n", ":2: plugins[0].id: expected up to 64 letters"),
        ("plugins:\n- id: a-client\n  binary: a\n", ":2: plugins[0].id: expected a name "
         "that is not reserved"),
        ("plugins:\n- id: orchestrator\n  binary: a\n", ":2: plugins[0].id: expected a name "
         "that is not reserved"),
        ("plugins:\n- id: front-end\n  binary: a\n", ":2: plugins[0].id: expected a name "
         "that is not reserved"),
        ("plugins:\n- id: nats-server\n  binary: a\n", ":2: plugins[0].id: expected a name "
         "that is not reserved"),
        ("plugins:\n- id: orchestrator-to-a\n  binary: a\n", ":2: plugins[0].id: expected a name "
         "that is not reserved"),
        ("plugins:\n- id: a\n  binary: a\n  enabled: maybe\n",
         ":4: plugins[0] (a).enabled: expected true or false, got 'maybe'"),
        ("plugins:\n- id: a\n  binary: a\n  sokcet: true\n",
         "hub, got 'sokcet'; did you mean 'socket'?"),
        ("plugins:\n- id: a\n  x: 1\n", ":3: plugins[0]: expected one of id, args, env"),
        ("plugins:\n- id: a\n  binary: a\n  args: --x\n", ":4: plugins[0] (a).args: expected a "
         "list, got '--x'"),
        ("plugins:\n- id: a\n  binary: a\n  args: [[x]]\n", ":4: plugins[0] (a).args[0]: expected "
         "a text, got a sequence"),
        ("plugins:\n- id: a\n  binary: a\n  config: [x]\n",
         ":4: plugins[0] (a).config: expected a mapping, got a sequence"),
        ("plugins:\n- id: a\n  binary: a\n  config:\n    k: {}\n",
         ":5: plugins[0] (a).config.k: expected a text, got a mapping"),
        ("plugins:\n- id: a\n  binary: a\n  env: {NOT_THERE_AT_ALL: }\n",
         ":4: plugins[0] (a).env.NOT_THERE_AT_ALL: expected a value"),
        ("plugins:\n- id: a\n  binary: a\n  env: {A=B: x}\n",
         ":4: plugins[0] (a).env: expected the name of a variable, got 'A=B'"),
        ("plugins:\n- {id: a, binary: a}\n- {id: a, binary: b}\n",
         ":3: plugins: expected different ids, got 'a' again; it is in line 2"),
        ("plugins:\n- {id: a, binary: a, enabled: true, depends_on: [b]}\n",
         ":2: a.depends_on: expected the id of a plugin of this file, got 'b'"),
        (
            "plugins:\n- {id: a, binary: a, enabled: true, depends_on: [b]}\n"
            "- {id: b, binary: b}\n",
            ":2: a.depends_on: expected a plugin with enabled: true, got 'b'",
        ),
        (
            "plugins:\n- {id: a, binary: a, enabled: true, depends_on: [b]}\n"
            "- {id: b, binary: b, enabled: true, depends_on: [c]}\n"
            "- {id: c, binary: c, enabled: true, depends_on: [b]}\n",
            ":2: depends_on: expected no circle, got b -> c -> b",
        ),
        ("plugins: [\n", ":2: expected YAML: "),
        ("plugins: \x00", "expected YAML: "),
        ("plugins: &a [*a]", ":1: plugins[0]: expected a mapping, got a sequence"),
    ],
)  # fmt: skip
def test_a_mistake_is_named(tmp_path: Path, text: str, expected: str) -> None:
    path = write_file(tmp_path, text)
    with pytest.raises(InvalidPluginsFile) as raised:
        read_plugins(path)
    assert str(raised.value).startswith(str(path))
    assert expected in str(raised.value)


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    with pytest.raises(InvalidPluginsFile, match=r"missing\.yaml: No such file or directory"):
        read_plugins(tmp_path / "missing.yaml")
    with pytest.raises(InvalidPluginsFile, match="expected at most 1048576 bytes"):
        read_plugins(write_file(tmp_path, "#" * (2**20 + 1)))


def test_a_named_pipe_is_refused_without_waiting_for_a_writer(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "plugins.yaml")
    with pytest.raises(InvalidPluginsFile, match=r"plugins\.yaml: expected a regular file"):
        read_plugins(tmp_path / "plugins.yaml")


def test_dependencies_in_a_long_chain_and_a_wide_fan_are_no_circle(tmp_path: Path) -> None:
    lines = [
        f"- {{id: p{n}, binary: p, enabled: true, depends_on: [{'p' + str(n - 1) if n else ''}]}}"
        for n in range(900)
    ]
    everybody = ", ".join(f"p{n}" for n in range(900))
    lines.append(f"- {{id: last, binary: p, enabled: true, depends_on: [{everybody}]}}")
    assert len(read_plugins(write_file(tmp_path, "plugins:\n" + "\n".join(lines))).enabled) == 901
