// A conversation with examples/tour.py, the same for both versions of the official TypeScript client. Prints what was seen as one
// JSON object; what it means is asserted in test_typescript_client.py.

// client: not connected yet. call(parameters, options) is its callTool. heard: log messages so far, filled by who made the client.
// isModern: ping and logging/setLevel belong to the handshake's revisions alone.
export async function converse({ client, transport, call, heard, isModern }) {
  const seen = { unexpected: [], progress: [] };
  client.onerror = (error) => seen.unexpected.push(String(error));
  await client.connect(transport);
  const exit = new Promise((resolve) => transport._process.once("exit", (code, signal) => resolve({ code, signal })));
  seen.server = client.getServerVersion();
  seen.capabilities = client.getServerCapabilities();
  seen.instructions = client.getInstructions();

  seen.tools = (await client.listTools()).tools;
  seen.sum = await call({ name: "add", arguments: { a: 2, b: 40 } });
  seen.statistics = await call({ name: "statistics", arguments: { values: [3, 4, 8] } });
  seen.picture = await call({ name: "swatch", arguments: { red: 1, green: 2, blue: 3 } });
  seen.failed = await call({ name: "divide", arguments: { a: 1, b: 0 } });
  seen.refused = await call({ name: "divide", arguments: { a: "one", c: 3 } });
  seen.unknown = await failure(call({ name: "multiply", arguments: {} }));

  const bake = { name: "bake", arguments: { cake: "plum", minutes: 2 } };
  if (isModern) {
    await call({ ...bake, _meta: { "io.modelcontextprotocol/logLevel": "info" } }, { onprogress: (step) => seen.progress.push(step) });
  } else {
    seen.pong = await client.ping();
    await call(bake, { onprogress: (step) => seen.progress.push(step) });
    await client.setLoggingLevel("error");
  }
  await call(bake); // its log message is not wanted
  seen.heard = heard;

  // Cancelled once the server has shown that the call runs.
  const giveUp = new AbortController();
  seen.cancelled = await failure(
    call(
      { name: "bake", arguments: { cake: "plum", minutes: 600 } },
      { signal: giveUp.signal, onprogress: () => giveUp.abort("too long") },
    ),
  );
  const sums = await Promise.all(Array.from({ length: 50 }, (_, n) => call({ name: "add", arguments: { a: n, b: 0 } })));
  seen.sums = sums.map((sum) => sum.content[0].text);

  await client.close();
  seen.exit = await exit;
  console.log(JSON.stringify(seen));
}

async function failure(promise) {
  try {
    return { result: await promise };
  } catch (error) {
    return { code: error?.code, message: String(error?.message ?? error) };
  }
}
