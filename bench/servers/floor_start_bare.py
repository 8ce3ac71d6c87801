"""Floor of the cold start: the interpreter alone. One line in, one canned answer to `initialize`
out.
"""

import os

HELLO = (
    b'{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},'
    b'"serverInfo":{"name":"floor","version":"1"}}}\n'
)

os.read(0, 65536)
os.write(1, HELLO)
os.read(0, 65536)
