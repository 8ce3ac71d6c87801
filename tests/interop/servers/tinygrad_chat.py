"""tinygrad's server with OpenAI's interface, for a model in a file, on this machine only.

    DEV=CPU:X86 python tinygrad_chat.py FILE

The last line of stdout is the port.
"""

import sys
from pathlib import Path

from tinygrad.llm.cli import LLMServer, SimpleTokenizer
from tinygrad.llm.model import Transformer

# The prompt and the answer have at most so many tokens, so that every answer ends soon.
CONTEXT = 128

model, facts = Transformer.from_gguf(Path(sys.argv[1]), CONTEXT)
tokenizer = SimpleTokenizer.from_gguf_kv(facts)
server = LLMServer(("127.0.0.1", 0), model, facts["general.name"], tokenizer)
print(server.server_address[1], flush=True)
server.serve_forever()
