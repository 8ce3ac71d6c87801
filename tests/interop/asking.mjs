// The official TypeScript clients against examples/everything.py: what we ask them, and what they subscribe to. Prints what was seen.
// node asking.mjs 1|2 MODE COMMAND ARGUMENT...
import { readFileSync } from "node:fs";

const [version, wanted, command, ...args] = process.argv.slice(2);
const capabilities = { elicitation: { form: {} }, sampling: {}, roots: {} };
const answers = { name: "Ada", color: "red", ok: true, username: "ada", email: "ada@example.com", context: "poetry" };

const elicit = ({ params }) => {
  const fields = Object.entries(params.requestedSchema.properties);
  return { action: "accept", content: Object.fromEntries(fields.map(([name, field]) => [name, field.default ?? answers[name]])) };
};
const sample = ({ params }) => ({ role: "assistant", content: { type: "text", text: `at most ${params.maxTokens}` }, model: "m" });
const roots = () => ({ roots: [{ uri: "file:///work" }] });

let client, transport, call;
if (version === "1") {
  const { Client } = await import("@modelcontextprotocol/sdk/client/index.js");
  const { StdioClientTransport } = await import("@modelcontextprotocol/sdk/client/stdio.js");
  const types = await import("@modelcontextprotocol/sdk/types.js");
  client = new Client({ name: "test", version: "1" }, { capabilities });
  client.setRequestHandler(types.ElicitRequestSchema, elicit);
  client.setRequestHandler(types.CreateMessageRequestSchema, sample);
  client.setRequestHandler(types.ListRootsRequestSchema, roots);
  transport = new StdioClientTransport({ command, args, env: process.env, stderr: "inherit" });
} else {
  const { Client } = await import("@modelcontextprotocol/client");
  const { StdioClientTransport } = await import("@modelcontextprotocol/client/stdio");
  const mode = wanted === "legacy" ? wanted : { pin: wanted };
  client = new Client({ name: "test", version: "1" }, { capabilities, versionNegotiation: { mode } });
  client.setRequestHandler("elicitation/create", elicit);
  client.setRequestHandler("sampling/createMessage", sample);
  client.setRequestHandler("roots/list", roots);
  transport = new StdioClientTransport({ command, args, env: process.env, stderr: "inherit" });
}

const seen = { unexpected: [], texts: {} };
client.onerror = (error) => seen.unexpected.push(String(error));
await client.connect(transport);
for (const [name, given] of JSON.parse(readFileSync(0, "utf8"))) {
  try {
    const result = await client.callTool({ name, arguments: given });
    seen.texts[name] = result.content[0].text;
  } catch (error) {
    seen.texts[name] = `${error?.code}: ${error?.message ?? error}`;
  }
}
seen.prompt = (await client.getPrompt({ name: "test_input_required_result_prompt" })).messages[0].content.text;

if (version === "2" && wanted !== "legacy") {
  const heard = [];
  let told;
  const both = new Promise((resolve) => (told = resolve));
  const hear = (what) => () => heard.push(what) === 2 && told();
  client.setNotificationHandler("notifications/tools/list_changed", hear("tools"));
  client.setNotificationHandler("notifications/prompts/list_changed", hear("prompts"));
  const listening = await client.listen({ toolsListChanged: true, promptsListChanged: true });
  await client.callTool({ name: "test_trigger_tool_change", arguments: {} });
  await client.callTool({ name: "test_trigger_prompt_change", arguments: {} });
  await both;
  seen.heard = heard;
  await listening.close();
}
await client.close();
console.log(JSON.stringify(seen));
