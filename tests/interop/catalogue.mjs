// A conversation with examples/notes.py by the official TypeScript client: its version 1, or its version 2 in one of the eras.
// Prints what was seen as one JSON object; what it means is asserted in test_catalogue_typescript.py.
//
//     node catalogue.mjs v1|legacy|REVISION COMMAND ARGUMENT...
const DEADLINE_MS = 10_000; // for a notification, an upper bound
const IDEAS = "notes://notes/ideas";
const TEMPLATE = "notes://notes/{name}{?style}";
const CHANGES = ["resources/updated", "resources/list_changed", "prompts/list_changed", "tools/list_changed"];

const [way, command, ...args] = process.argv.slice(2);
const isModern = !["v1", "legacy"].includes(way);
const server = { command, args, env: process.env, stderr: "inherit" };
const heard = [];
let wake = () => {};
const { client, transport } = await (way === "v1" ? version1() : version2());
const seen = { unexpected: [], heard };
client.onerror = (error) => seen.unexpected.push(String(error));
client.fallbackNotificationHandler = async ({ method }) => void seen.unexpected.push(method);

await client.connect(transport);
const exit = new Promise((resolve) => transport._process.once("exit", (code, signal) => resolve({ code, signal })));
seen.capabilities = client.getServerCapabilities();

seen.resources = await client.listResources();
seen.templates = await client.listResourceTemplates();
seen.source = await read("notes://source");
seen.logo = await read("notes://logo");
seen.index = await read("notes://index");
seen.plain = await read(IDEAS);
seen.shouted = await read(`${IDEAS}?style=shouted`);
seen.missing = {};
for (const uri of ["notes://notes/none", `${IDEAS}?style=sung`, "notes://notes/..%2Fideas", "other://x"]) {
  seen.missing[uri] = await failure(read(uri));
}

seen.prompts = await client.listPrompts();
seen.prompt = await client.getPrompt({ name: "improve", arguments: { name: "ideas", sentences: "2", tone: "formal" } });
seen.withoutArgument = await failure(client.getPrompt({ name: "improve", arguments: { sentences: "2" } }));
seen.wrongArgument = await failure(client.getPrompt({ name: "improve", arguments: { name: "ideas", sentences: "two" } }));
seen.noPrompt = await failure(client.getPrompt({ name: "worsen" }));

const improve = { type: "ref/prompt", name: "improve" };
const note = { type: "ref/resource", uri: TEMPLATE };
seen.completed = {
  "prompt name": await complete(improve, "name", ""),
  "prompt name sh": await complete(improve, "name", "sh"),
  "prompt tone f": await complete(improve, "tone", "f"),
  "template name i": await complete(note, "name", "i"),
  "template style s": await complete(note, "style", "s"),
};
seen.noneToComplete = await failure(complete(improve, "colour", ""));

if (isModern) {
  // Nothing is announced unasked; what was read holds for as long as the server said, unless it is asked for anew.
  seen.subscribed = await failure(client.subscribeResource({ uri: IDEAS }));
  seen.listened = await failure(client.listen({ resourcesListChanged: true }));
  await write("None.");
  seen.held = await read(IDEAS);
  seen.afresh = await read(IDEAS, { cacheMode: "refresh" });
  await pin();
  seen.resourcesHeld = await client.listResources();
  seen.resourcesAfterPin = await client.listResources(undefined, { cacheMode: "refresh" });
} else {
  seen.subscribed = await client.subscribeResource({ uri: IDEAS });
  await write("None.");
  await hears(1);
  seen.afresh = await read(IDEAS);
  seen.unsubscribed = await client.unsubscribeResource({ uri: IDEAS });
  await write("One.");
  await pin();
  await hears(2);
  seen.resourcesAfterPin = await client.listResources();
}
seen.last = await read("notes://notes/shopping"); // what the server had still to say came before this

await client.close();
seen.exit = await exit;
console.log(JSON.stringify(seen));

async function version1() {
  const { Client } = await import("@modelcontextprotocol/sdk/client/index.js");
  const { StdioClientTransport } = await import("@modelcontextprotocol/sdk/client/stdio.js");
  const types = await import("@modelcontextprotocol/sdk/types.js");
  const made = new Client({ name: "test", version: "1" }, { capabilities: {} });
  for (const schema of [
    types.ResourceUpdatedNotificationSchema,
    types.ResourceListChangedNotificationSchema,
    types.PromptListChangedNotificationSchema,
    types.ToolListChangedNotificationSchema,
  ]) {
    made.setNotificationHandler(schema, hear);
  }
  return { client: made, transport: new StdioClientTransport(server) };
}

async function version2() {
  const { Client } = await import("@modelcontextprotocol/client");
  const { StdioClientTransport } = await import("@modelcontextprotocol/client/stdio");
  const mode = isModern ? { pin: way } : way;
  const made = new Client({ name: "test", version: "1" }, { capabilities: {}, versionNegotiation: { mode } });
  for (const change of CHANGES) made.setNotificationHandler(`notifications/${change}`, hear);
  return { client: made, transport: new StdioClientTransport(server) };
}

function hear({ method, params }) {
  heard.push({ method, uri: params?.uri });
  wake();
}

// Returns when `count` notifications have come in all.
async function hears(count) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(
      () => reject(new Error(`expected ${count} notifications within ${DEADLINE_MS} ms, heard ${JSON.stringify(heard)}`)),
      DEADLINE_MS,
    );
  });
  while (heard.length < count) await Promise.race([late, new Promise((resolve) => (wake = resolve))]);
  clearTimeout(timer);
}

function read(uri, options) {
  return client.readResource({ uri }, options);
}

async function complete(ref, name, value) {
  return (await client.complete({ ref, argument: { name, value }, context: { arguments: { tone: "formal" } } })).completion;
}

function write(text) {
  return client.callTool({ name: "write", arguments: { name: "ideas", text } });
}

function pin() {
  return client.callTool({ name: "pin", arguments: { name: "ideas" } });
}

async function failure(promise) {
  try {
    return { result: await promise };
  } catch (error) {
    return { kind: error?.constructor?.name, code: error?.code, data: error?.data, message: String(error?.message ?? error) };
  }
}
