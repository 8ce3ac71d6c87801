"""request_profile.py: which revision, client and features a request is served with.

test_session.py tests the same rules on the wire.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import Raw
from session_rig import (
    BAD_PARAMS,
    CAPABILITIES,
    CLIENT,
    EVERYTHING,
    LOG_LEVEL,
    META,
    VERSION,
    VERSION_ERROR,
    A,
    D,
    E,
)

from concertino.errors import RpcError
from concertino.protocol.call import ServerFeatures
from concertino.protocol.principal import Principal
from concertino.protocol.request_profile import ClientInfo, InitializeParams, Profiles
from concertino.protocol.revisions import REVISION_BY_NAME
from concertino.types.results import Implementation

# Ranks of RFC 5424 levels, the least severe first.
DEBUG, INFO_LEVEL, ERROR = 0, 1, 4
PLAIN = ServerFeatures(Implementation("n", "1"), tools=True)


def raw(meta: Any) -> Raw:
    return Raw(json.dumps(meta).encode())


def open_profiles(features: ServerFeatures = EVERYTHING, version: str = D) -> Profiles:
    profiles = Profiles(lambda: features)
    client = ClientInfo("c", "1", "C")
    profiles.open_legacy(InitializeParams(version, {"roots": {}}, client))
    return profiles


def test_the_methods_are_those_of_the_features():
    profiles = Profiles(lambda: PLAIN)
    assert profiles.methods[True] == profiles.methods[False] == {"tools/call", "tools/list"}


def test_the_session_s_own_requests_do_not_go_to_the_backend():
    methods = Profiles(lambda: EVERYTHING).methods
    for own in ("logging/setLevel", "resources/subscribe", "subscriptions/listen", "ping"):
        assert own not in methods[True] | methods[False]


def test_initialize_opens_the_legacy_conversation():
    profiles = Profiles(lambda: EVERYTHING)
    assert profiles.legacy is None
    revision = profiles.open_legacy(InitializeParams(A, {"roots": {}}, ClientInfo("c", "1", "C")))
    assert revision.name == A
    legacy = profiles.legacy
    assert legacy is not None
    client = legacy.client
    assert (client.name, client.version, client.title, client.protocol_version) == (
        "c",
        "1",
        "C",
        A,
    )
    assert legacy.least_rank == INFO_LEVEL
    assert legacy.progress_token is None


def test_meta_without_a_version_belongs_to_the_legacy_conversation():
    meta = raw({"progressToken": 5, "x": 1})
    assert Profiles(lambda: EVERYTHING).read(meta) is None
    profile = open_profiles().read(meta)
    assert profile is not None
    assert profile.progress_token == 5
    assert profile.client.protocol_version == D
    assert {name: bytes(value) for name, value in profile.meta.items()} == {"x": b"1"}


def test_meta_of_2026_07_28_describes_the_client():
    profile = Profiles(lambda: EVERYTHING).read(
        raw({**META, CAPABILITIES: {"roots": {}}, LOG_LEVEL: "error", "progressToken": "t", "x": 1})
    )
    assert profile is not None
    assert profile.encoder.revision.name == E
    assert (profile.client.name, profile.client.capabilities) == ("c", {"roots": {}})
    assert (profile.progress_token, profile.least_rank) == ("t", ERROR)
    assert profile.meta.keys() == {"x"}


def test_requests_have_the_principal_that_was_identified_last():
    alice, bob = Principal("alice"), Principal("bob")
    legacy, modern = open_profiles(), Profiles(lambda: EVERYTHING)
    for profiles, meta in ((legacy, raw({})), (modern, raw(META))):
        for principal in (alice, bob, None):
            profiles.identify(principal)
            profile = profiles.read(meta)
            assert profile is not None
            assert profile.principal is principal


def test_a_client_need_not_describe_itself():
    meta = {name: value for name, value in META.items() if name != CLIENT}
    profile = Profiles(lambda: EVERYTHING).read(raw(meta))
    assert profile is not None
    assert (profile.client.name, profile.least_rank) == ("", None)


def test_the_last_meta_is_remembered_unless_it_has_a_token():
    profiles = Profiles(lambda: EVERYTHING)
    meta = raw(META)
    profile = profiles.read(meta)
    assert profiles.last_meta == (meta, profile)
    other = profiles.read(raw({**META, "progressToken": 1}))
    assert profiles.last_meta == (meta, profile)

    # One encoder serves all requests of the revision.
    assert profile is not None
    assert other is not None
    assert other.encoder is profile.encoder


@pytest.mark.parametrize(
    ("meta", "text"),
    [
        (5, "Invalid params: _meta: expected object, got int"),
        ({"progressToken": 1.5}, "Invalid params: progressToken: expected"),
        ({VERSION: E}, f"Invalid params: _meta lacks {CAPABILITIES}"),
        ({**META, CAPABILITIES: 5}, f"Invalid params: {CAPABILITIES}: expected object"),
        ({**META, LOG_LEVEL: "loud"}, f"Invalid params: {LOG_LEVEL}: "),
    ],
)
def test_malformed_meta_is_rejected(meta: Any, text: str):
    with pytest.raises(RpcError) as raised:
        open_profiles().read(raw(meta))
    assert raised.value.code == BAD_PARAMS
    assert raised.value.message.startswith(text)


@pytest.mark.parametrize("version", [D, "", "1900-01-01", "9" * 1000])
def test_another_version_in_meta_is_not_supported(version: str):
    with pytest.raises(RpcError) as raised:
        Profiles(lambda: EVERYTHING).read(raw({**META, VERSION: version}))
    assert raised.value.code == VERSION_ERROR
    assert raised.value.data == {"supported": [E], "requested": version[:128]}


def test_set_level_changes_the_legacy_conversation():
    profiles = open_profiles()
    legacy = profiles.legacy
    assert legacy is not None
    profiles.set_level(legacy, "debug")
    assert profiles.legacy is not None
    assert profiles.legacy.least_rank == DEBUG
    assert profiles.legacy.client is legacy.client


def test_new_features_keep_the_client_and_its_level():
    features = EVERYTHING
    profiles = Profiles(lambda: features)
    profiles.read(raw(META))
    profiles.open_legacy(InitializeParams(D))
    legacy = profiles.legacy
    assert legacy is not None
    profiles.set_level(legacy, "error")

    features = PLAIN
    profiles.reload_features()
    assert profiles.last_meta is None
    assert profiles.legacy is not None
    assert profiles.legacy.methods == {"tools/call", "tools/list"}
    assert (profiles.legacy.client, profiles.legacy.least_rank) == (legacy.client, ERROR)


@pytest.mark.parametrize(
    ("resources", "subscriptions", "expected"),
    [(True, True, True), (True, False, False), (False, True, False)],
)
def test_subscribing_needs_resources(resources: bool, subscriptions: bool, expected: bool):
    features = ServerFeatures(
        Implementation("n", "1"), resources=resources, subscriptions=subscriptions
    )
    assert Profiles(lambda: features).can_subscribe is expected


def test_capabilities_are_declared_for_the_revision():
    listed = {"listChanged": True}
    everything = {
        "logging": {},
        "completions": {},
        "prompts": listed,
        "resources": {"subscribe": True, **listed},
        "tools": listed,
        "experimental": {"x": {}},
    }
    profiles = Profiles(lambda: EVERYTHING)
    assert profiles.declare(REVISION_BY_NAME[D]) == everything
    modern = profiles.declare(REVISION_BY_NAME[E])
    assert modern["extensions"] == {"example.com/x": {"a": 1}}
    assert Profiles(lambda: PLAIN).declare(REVISION_BY_NAME[D]) == {"tools": listed}


def test_resources_without_subscriptions_are_declared_without_them():
    features = ServerFeatures(Implementation("n", "1"), resources=True)
    declared = Profiles(lambda: features).declare(REVISION_BY_NAME[D])
    assert declared == {"resources": {"listChanged": True}}
