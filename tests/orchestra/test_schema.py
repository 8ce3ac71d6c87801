"""plugin.proto: the generated code is what the command makes of it, and on the wire it is
upstream's schema.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    json_format,
    message_factory,
    struct_pb2,
    timestamp_pb2,
)

import concertino
from concertino.orchestra import plugin_pb2 as pb
from concertino.orchestra.structs import pack, unpack

PACKAGE = Path(concertino.__file__).parent
ROOT = Path(__file__).parents[2]
STRUCT = ".google.protobuf.Struct"


def test_the_generated_code_is_what_the_command_makes(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHON": sys.executable}
    subprocess.run([ROOT / "scripts" / "protocol", tmp_path], env=environment, check=True)
    for name in ("plugin_pb2.py", "plugin_pb2.pyi"):
        made = (tmp_path / "concertino" / "orchestra" / name).read_text()
        assert made == (ROOT / "src" / "concertino" / "orchestra" / name).read_text(), (
            "run scripts/protocol"
        )


def upstream():  # type: ignore[no-untyped-def]
    """The schema as upstream has it: Structs are Structs, and our own fields are unknown.

    In a pool of its own.
    """
    file = descriptor_pb2.FileDescriptorProto()
    pb.DESCRIPTOR.CopyToProto(file)
    file.name = "upstream/plugin.proto"
    file.dependency.append("google/protobuf/struct.proto")
    for message in file.message_type:
        ours = {field.name.removesuffix("_json") for field in message.field if field.number == 1000}
        kept = [field for field in message.field if field.number < 1000]
        for field in kept:
            if field.name in ours:
                field.type = descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE
                field.type_name = STRUCT
                field.ClearField("proto3_optional")
                field.ClearField("oneof_index")
        if not any(field.HasField("oneof_index") for field in kept):
            del message.oneof_decl[:]
        copies = [
            descriptor_pb2.FieldDescriptorProto.FromString(field.SerializeToString())
            for field in kept
        ]
        del message.field[:]
        message.field.extend(copies)
    pool = descriptor_pool.DescriptorPool()
    for known in (struct_pb2.DESCRIPTOR, timestamp_pb2.DESCRIPTOR):
        pool.AddSerializedFile(known.serialized_pb)
    pool.Add(file)

    def of(name: str):  # type: ignore[no-untyped-def]
        return message_factory.GetMessageClass(
            pool.FindMessageTypeByName(f"orchestra.plugin.v1.{name}")
        )

    return of


def test_upstream_reads_our_structs_and_passes_on_what_it_does_not_know() -> None:
    value = {"name": "Ada", "n": 2**60, "list": [1, None, {"a": 0.5}]}
    packed = pack(value)
    request = pb.PluginRequest(
        request_id="1",
        tool_call=pb.ToolRequest(
            tool_name="greet", arguments=packed.struct, arguments_json=packed.json, session_id="s"
        ),
    )
    read = upstream()("PluginRequest").FromString(request.SerializeToString())
    assert json_format.MessageToDict(read.tool_call.arguments) == {**value, "n": float(2**60)}
    again = pb.PluginRequest.FromString(read.SerializeToString())
    assert again.tool_call.arguments_json == packed.json
    assert again.tool_call.session_id == "s"
    assert unpack(again.tool_call.arguments, again.tool_call.arguments_json) == value


def test_we_read_upstream_s_structs() -> None:
    response = upstream()("PluginResponse")(request_id="1")
    response.tool_call.success = True
    response.tool_call.result.update({"text": "hello", "n": 3})
    ours = pb.PluginResponse.FromString(response.SerializeToString())
    assert unpack(ours.tool_call.result) == {"text": "hello", "n": 3}
    assert not ours.tool_call.HasField("result_json")


@pytest.mark.parametrize("value", [None, {}])
def test_absent_and_empty_are_not_the_same(value: dict[str, object] | None) -> None:
    theirs = upstream()("PluginRequest")
    request = theirs()
    request.tool_call.tool_name = "x"
    if value is not None:
        request.tool_call.arguments.SetInParent()
    ours = pb.PluginRequest.FromString(request.SerializeToString())
    assert ours.tool_call.HasField("arguments") == (value is not None)
    assert theirs.FromString(ours.SerializeToString()) == request


def test_every_message_with_a_struct_has_room_for_its_json() -> None:
    """The table of the protocol has a Struct in these messages."""
    with_json = {
        name: [field.name for field in message.fields if field.number == 1000]
        for name, message in messages()
    }
    assert {name: found for name, found in with_json.items() if found} == {
        "ToolRequest": ["arguments_json"],
        "ToolResponse": ["result_json"],
        "ToolDefinition": ["input_schema_json"],
        "StorageReadResponse": ["metadata_json"],
        "StorageWriteRequest": ["metadata_json"],
        "StreamStart": ["arguments_json"],
        "Publish": ["payload_json"],
        "EventDelivery": ["payload_json"],
    }


def messages():  # type: ignore[no-untyped-def]
    return list(pb.DESCRIPTOR.message_types_by_name.items())


def test_the_fields_are_those_of_the_protocol_s_table() -> None:
    """The table is kept beside the repository; where it is absent, the numbers that every peer
    depends on are checked.
    """
    table = ROOT.parent / "shared" / "orchestra" / "PROTOCOL.md"
    if table.is_file():
        text = table.read_text().partition("`PluginRequest` fields")[0]
        rows = [line.split("|") for line in text.splitlines() if line.startswith("| ")]
        expected = {
            row[1].strip(): []
            if "(empty)" in row[2]
            else [each.strip() for each in row[2].split(";")]
            for row in rows
        }
        expected = {name: fields for name, fields in expected.items() if name in dict(messages())}
        assert len(expected) == 40
        for name, fields in expected.items():
            assert [
                describe_field(field)
                for field in dict(messages())[name].fields
                if field.number < 1000
            ] == fields
    numbers = {field.name: field.number for field in pb.PluginRequest.DESCRIPTOR.fields}
    assert numbers["register"] == 10
    assert numbers["tool_call"] == 20
    assert numbers["publish"] == 52
    assert {
        field.name
        for field in pb.PluginRequest.DESCRIPTOR.fields
        if not field.containing_oneof and field.number < 1000
    } == {"request_id"}
    assert {
        field.name for field in pb.PluginResponse.DESCRIPTOR.fields if not field.containing_oneof
    } == {"request_id"}


TYPES = {3: "int64", 5: "int32", 8: "bool", 9: "string", 12: "bytes"}


def describe_field(field) -> str:  # type: ignore[no-untyped-def]
    """A field as the table writes it."""
    json = field.containing_type.fields_by_name.get(f"{field.name}_json")
    if json is not None:
        kind = "google.protobuf.Struct"
    elif field.message_type is not None and field.message_type.GetOptions().map_entry:
        kind = "map<string, string>"
    elif field.message_type is not None:
        kind = field.message_type.full_name.removeprefix("orchestra.plugin.v1.")
    else:
        kind = field.enum_type.name if field.enum_type is not None else TYPES[field.type]
    repeated = "repeated " if field.is_repeated and not kind.startswith("map") else ""
    return f"{field.number} {field.name}: {repeated}{kind}"
