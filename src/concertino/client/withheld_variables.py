"""describe_withheld(): names environment variables that a server may lack to reach the network.

A client passes few of its environment variables on to a server. So a server may fail to reach the
network, although it would succeed in a shell with variables for proxies or certificates. If the
server's stderr shows such a failure, describe_withheld() names the variables for proxies and
certificates that this process has and the server did not get. The text is added to errors.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

__all__ = ["describe_withheld"]

# Texts that programs in C, Go, Java, Node.js, Python and Rust write when they cannot reach a host
# or do not trust its certificate.
NETWORK_FAILURE = re.compile(
    r"""
      ENOTFOUND | EAI_AGAIN | ECONNREFUSED | ECONNRESET | ETIMEDOUT | ENETUNREACH | EHOSTUNREACH
    | getaddrinfo | name\ or\ service\ not\ known | name\ resolution | could\ not\ resolve
    | nodename\ nor\ servname | no\ such\ host | UnknownHostException | dns\ error
    | network\ is\ unreachable | no\ route\ to\ host | connection\ (?:refused|reset|timed\ out)
    | connect\ timeout | ConnectTimeout | NewConnectionError | Max\ retries\ exceeded
    | fetch\ failed | error\ sending\ request | request\ to\ \S+\ failed
    | ProxyError | proxy\ authentication | \b407\b
    | certificate[ _]verify[ _]failed | unable\ to\ (?:get|verify)\ \S*\ ?(?:\S+\ )?certificate
    | UNABLE_TO_(?:GET|VERIFY) | self[- _]signed[ _]cert | SSLError | SSLCertVerification
    | invalid\ peer\ certificate | UnknownIssuer | x509: | tls:\ | PKIX\ path
    | SSL\ certificate\ problem | failed\ to\ verify\ certificate
    """,
    re.VERBOSE | re.IGNORECASE,
)
# Names of variables that configure proxies, certificates and package registries.
VARIABLE = re.compile(
    r"""
      (?:https?|all|no|ftp)_proxy | (?:npm_config_|global_agent_)\w*proxy
    | ssl_cert_(?:file|dir) | requests_ca_bundle | curl_ca_bundle | aws_ca_bundle
    | node_extra_ca_certs | node_use_(?:env_proxy|system_ca|openssl_ca)
    | npm_config_(?:cafile|ca|registry)
    | git_ssl_cainfo | cargo_http_(?:proxy|cainfo) | grpc_default_ssl_roots_file_path
    | pip_(?:proxy|cert|index_url) | uv_(?:native_tls|system_certs|index_url|default_index|index)
    | goproxy | java_tool_options
    """,
    re.VERBOSE | re.IGNORECASE,
)


def describe_withheld(stderr: str, variables: Iterable[str], passed: Collection[str]) -> str:
    """Return a sentence that names environment variables which a server may lack.

    A server may need variables for proxies, certificates and package registries to reach the
    network. Returns "" if the server's stderr shows no failure of the network, or if the server got
    all such variables that this process has.

    stderr: the end of the server's stderr.
    variables: the names of the environment variables of this process.
    passed: the names of the variables that the server got.
    """
    if NETWORK_FAILURE.search(stderr) is None:
        return ""
    withheld = sorted(name for name in variables if name not in passed and VARIABLE.fullmatch(name))
    if not withheld:
        return ""
    return (
        f"it did not get {', '.join(withheld)} of this process, which it may need to reach the "
        "network; ServerParameters(env={...}) passes variables on"
    )
