// What the conformance suite asks of a server of 2025-11-25, with version 1 of the official
// TypeScript SDK, over stdio.
import { Server } from "@modelcontextprotocol/sdk/server/index.js";
import { StdioServerTransport } from "@modelcontextprotocol/sdk/server/stdio.js";
import * as types from "@modelcontextprotocol/sdk/types.js";

const PNG =
  "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg==";
const WAV = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAAAAA==";

const text = (value) => ({ type: "text", text: value });
const image = { type: "image", data: PNG, mimeType: "image/png" };
const embedded = (uri, mimeType, value) => ({ type: "resource", resource: { uri, mimeType, text: value } });
const pause = () => new Promise((resolve) => setTimeout(resolve, 50));
const titled = (values) => values.map((value) => ({ const: value, title: value.toUpperCase() }));

// Name -> how it describes its arguments, and what it does with them.
const strings = (...names) => ({
  type: "object",
  properties: Object.fromEntries(names.map((name) => [name, { type: "string" }])),
  required: names,
});
const tools = {
  test_simple_text: [strings(), () => [text("This is a simple text response for testing.")]],
  test_image_content: [strings(), () => [image]],
  test_audio_content: [strings(), () => [{ type: "audio", data: WAV, mimeType: "audio/wav" }]],
  test_embedded_resource: [
    strings(),
    () => [embedded("test://embedded-resource", "text/plain", "This is an embedded resource content.")],
  ],
  test_multiple_content_types: [
    strings(),
    () => [
      text("Multiple content types test:"),
      image,
      embedded("test://mixed-content-resource", "application/json", '{"test":"data","value":123}'),
    ],
  ],
  test_tool_with_logging: [
    strings(),
    async (given, extra) => {
      for (const data of ["Tool execution started", "Tool processing data", "Tool execution completed"]) {
        await extra.sendNotification({ method: "notifications/message", params: { level: "info", data } });
        await pause();
      }
      return [text("Tool with logging executed successfully")];
    },
  ],
  test_tool_with_progress: [
    strings(),
    async (given, extra) => {
      const progressToken = extra._meta?.progressToken;
      for (const progress of [0, 50, 100]) {
        await extra.sendNotification({
          method: "notifications/progress",
          params: { progressToken, progress, total: 100 },
        });
        await pause();
      }
      return [text(String(progressToken))];
    },
  ],
  test_error_handling: [
    strings(),
    () => {
      throw new Error("This tool intentionally returns an error for testing");
    },
  ],
  test_sampling: [
    strings("prompt"),
    async ({ prompt }) => [text(`LLM response: ${await sample(prompt)}`)],
  ],
  test_elicitation: [
    strings("message"),
    async ({ message }) => {
      const result = await server.elicitInput({ message, requestedSchema: strings("username", "email") });
      return [text(`User response: action=${result.action}, content=${JSON.stringify(result.content)}`)];
    },
  ],
  // Clients of 2026-07-28 get these questions through the proxy.
  test_input_required_result_elicitation: [
    strings(),
    async () => [text(`Hello, ${(await ask("What is your name?", "name"))?.name}!`)],
  ],
  test_input_required_result_sampling: [
    strings(),
    async () => [text(await sample("What is the capital of France?"))],
  ],
  test_input_required_result_list_roots: [
    strings(),
    async () => {
      const { roots } = await server.listRoots();
      return [text(`Roots: ${roots.map(({ uri }) => uri).join(", ")}`)];
    },
  ],
  test_input_required_result_request_state: [
    strings(),
    async () => [text(`state-ok: ${JSON.stringify(await ask("Go on?", "ok"))}`)],
  ],
  test_input_required_result_tampered_state: [
    strings(),
    async () => [text(JSON.stringify(await ask("Go on?", "ok")))],
  ],
  test_input_required_result_multiple_inputs: [
    strings(),
    async () => {
      const questions = [ask("What is your name?", "name"), sample("Generate a greeting"), server.listRoots()];
      return [text(JSON.stringify(await Promise.all(questions)))];
    },
  ],
  test_input_required_result_multi_round: [
    strings(),
    async () => {
      const first = await ask("Step 1: What is your name?", "name");
      const second = await ask("Step 2: What is your favorite color?", "color");
      return [text(`${first?.name} likes ${second?.color}`)];
    },
  ],
  test_input_required_result_capabilities: [
    strings(),
    async () => {
      const questions = [ask("What is your name?", "name"), sample("Say hello")];
      const results = await Promise.allSettled(questions);
      return [text(results.map(({ status }) => status).join(", "))];
    },
  ],
  test_streaming_elicitation: [
    strings(),
    async (given, extra) => {
      const progressToken = extra._meta?.progressToken;
      if (progressToken !== undefined) {
        await extra.sendNotification({
          method: "notifications/progress",
          params: { progressToken, progress: 1, total: 2 },
        });
      }
      return [text(`The answer was: ${JSON.stringify(await ask("What is your name?", "name"))}`)];
    },
  ],
  test_logging_tool: [
    strings(),
    async (given, extra) => {
      const params = { level: "info", data: "Logged by test_logging_tool" };
      await extra.sendNotification({ method: "notifications/message", params });
      return [text("Logged")];
    },
  ],
  test_trigger_prompt_change: [
    strings(),
    async () => {
      await server.sendPromptListChanged();
      return [text("Changed")];
    },
  ],
  test_trigger_tool_change: [
    strings(),
    async () => {
      await server.sendToolListChanged();
      return [text("Changed")];
    },
  ],
  test_missing_capability: [strings(), async () => [text(await sample("Say anything."))]],
  test_elicitation_sep1034_defaults: [
    strings(),
    () =>
      elicit({
        name: { type: "string", default: "John Doe" },
        age: { type: "integer", default: 30 },
        score: { type: "number", default: 95.5 },
        status: { type: "string", enum: ["active", "inactive", "pending"], default: "active" },
        verified: { type: "boolean", default: true },
      }),
  ],
  test_elicitation_sep1330_enums: [
    strings(),
    () =>
      elicit({
        untitledSingle: { type: "string", enum: ["one", "two", "three"] },
        titledSingle: { type: "string", oneOf: titled(["one", "two", "three"]) },
        legacyEnum: { type: "string", enum: ["one", "two", "three"], enumNames: ["One", "Two", "Three"] },
        untitledMulti: { type: "array", items: { type: "string", enum: ["one", "two", "three"] } },
        titledMulti: { type: "array", items: { anyOf: titled(["one", "two", "three"]) } },
      }),
  ],
};

async function ask(message, field) {
  return (await server.elicitInput({ message, requestedSchema: strings(field) })).content;
}

async function sample(prompt) {
  const messages = [{ role: "user", content: text(prompt) }];
  return (await server.createMessage({ messages, maxTokens: 100 })).content.text;
}

async function elicit(properties) {
  const requestedSchema = { type: "object", properties, required: [] };
  const result = await server.elicitInput({ message: "Please answer", requestedSchema });
  return [text(`Elicitation completed: action=${result.action}, content=${JSON.stringify(result.content)}`)];
}

// Name -> its arguments, and its messages.
const prompts = {
  test_simple_prompt: [[], () => [text("This is a simple prompt for testing.")]],
  test_prompt_with_arguments: [
    ["arg1", "arg2"],
    ({ arg1, arg2 }) => [text(`Prompt with arguments: arg1='${arg1}', arg2='${arg2}'`)],
  ],
  test_prompt_with_embedded_resource: [
    ["resourceUri"],
    ({ resourceUri }) => [
      embedded(resourceUri, "text/plain", "Embedded resource content for testing."),
      text("Please process the embedded resource above."),
    ],
  ],
  test_prompt_with_image: [[], () => [image, text("Please analyze the image above.")]],
  test_input_required_result_prompt: [
    [],
    async () => {
      const answer = await ask("What context should the prompt use?", "context");
      return [text(`Use this context: ${answer?.context}`)];
    },
  ],
};

// URI -> its type, and its content.
const resources = {
  "test://static-text": ["text/plain", { text: "This is the content of the static text resource." }],
  "test://static-binary": ["image/png", { blob: PNG }],
  "test://watched-resource": ["text/plain", { text: "Watched resource content" }],
};
const TEMPLATE = /^test:\/\/template\/([^/]+)\/data$/;

function read(uri) {
  const id = TEMPLATE.exec(uri)?.[1];
  if (id !== undefined) {
    const data = { id, templateTest: true, data: `Data for ID: ${id}` };
    return { uri, mimeType: "application/json", text: JSON.stringify(data) };
  }
  if (!(uri in resources)) throw new types.McpError(-32002, `no such resource: ${uri}`, { uri });
  const [mimeType, content] = resources[uri];
  return { uri, mimeType, ...content };
}

const server = new Server(
  { name: "typescript-everything", version: "1.0.0" },
  {
    capabilities: {
      tools: { listChanged: true },
      prompts: { listChanged: true },
      resources: { subscribe: true, listChanged: true },
      completions: {},
      logging: {},
    },
  },
);
const handle = (schema, handler) => server.setRequestHandler(schema, handler);

handle(types.ListToolsRequestSchema, () => ({
  tools: Object.entries(tools).map(([name, [inputSchema]]) => ({ name, description: `Tests ${name}`, inputSchema })),
}));
handle(types.CallToolRequestSchema, async ({ params }, extra) => {
  if (!(params.name in tools)) throw new types.McpError(-32602, `Unknown tool: ${params.name}`);
  try {
    return { content: await tools[params.name][1](params.arguments ?? {}, extra) };
  } catch (error) {
    return { content: [text(error.message)], isError: true };
  }
});
handle(types.ListPromptsRequestSchema, () => ({
  prompts: Object.entries(prompts).map(([name, [words]]) => ({
    name,
    description: `Tests ${name}`,
    arguments: words.map((word) => ({ name: word, description: word, required: true })),
  })),
}));
handle(types.GetPromptRequestSchema, async ({ params }) => {
  const contents = await prompts[params.name][1](params.arguments ?? {});
  return { messages: contents.map((content) => ({ role: "user", content })) };
});
handle(types.ListResourcesRequestSchema, () => ({
  resources: Object.entries(resources).map(([uri, [mimeType]]) => ({
    uri,
    mimeType,
    name: uri.slice("test://".length),
    description: `Tests ${uri}`,
  })),
}));
handle(types.ListResourceTemplatesRequestSchema, () => ({
  resourceTemplates: [
    { uriTemplate: "test://template/{id}/data", name: "template", description: "Tests templates" },
  ],
}));
handle(types.ReadResourceRequestSchema, ({ params }) => ({ contents: [read(params.uri)] }));
handle(types.SubscribeRequestSchema, () => ({}));
handle(types.UnsubscribeRequestSchema, () => ({}));
handle(types.SetLevelRequestSchema, () => ({}));
handle(types.CompleteRequestSchema, () => ({ completion: { values: ["paris", "park", "party"], hasMore: false } }));

await server.connect(new StdioServerTransport());
