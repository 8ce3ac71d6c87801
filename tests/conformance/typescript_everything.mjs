// What the conformance suite asks of a server, for both versions of the official TypeScript SDK:
// typescript_1.mjs and typescript_2.mjs serve it over stdio.
//
// A call has `progressToken`, and these functions: `log(data)`, `progress(value, total)`, `changed(list)`,
// `ask(questions)`, which returns the client's results by key, and `askDeclared(questions)`, which leaves
// out what the client cannot do. A question is [method, params].
const PNG =
  "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg==";
const WAV = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAAAAA==";

const text = (value) => ({ type: "text", text: value });
const image = { type: "image", data: PNG, mimeType: "image/png" };
const embedded = (uri, mimeType, value) => ({ type: "resource", resource: { uri, mimeType, text: value } });
const pause = () => new Promise((resolve) => setTimeout(resolve, 50));
const OPTIONS = ["option1", "option2", "option3"];
const TITLED = ["First", "Second", "Third"].map((word, i) => ({ const: `value${i + 1}`, title: `${word} Option` }));

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
    async (given, call) => {
      for (const data of ["Tool execution started", "Tool processing data", "Tool execution completed"]) {
        await call.log(data);
        await pause();
      }
      return [text("Tool with logging executed successfully")];
    },
  ],
  test_tool_with_progress: [
    strings(),
    async (given, call) => {
      for (const progress of [0, 50, 100]) {
        await call.progress(progress, 100);
        await pause();
      }
      return [text(String(call.progressToken))];
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
    async (given, call) => [text(`LLM response: ${await sample(call, given.prompt, "answer")}`)],
  ],
  test_elicitation: [
    strings("message"),
    async ({ message }, call) => {
      const { answer: result } = await call.ask({ answer: fields(message, "username", "email") });
      return [text(`User response: action=${result.action}, content=${JSON.stringify(result.content)}`)];
    },
  ],
  test_input_required_result_elicitation: [
    strings(),
    async (given, call) => [text(`Hello, ${(await ask(call, "What is your name?", "name", "user_name"))?.name}!`)],
  ],
  test_input_required_result_sampling: [
    strings(),
    async (given, call) => [text(await sample(call, "What is the capital of France?", "capital_question"))],
  ],
  test_input_required_result_list_roots: [
    strings(),
    async (given, call) => {
      const { client_roots: result } = await call.ask({ client_roots: roots });
      return [text(`Roots: ${result.roots.map(({ uri }) => uri).join(", ")}`)];
    },
  ],
  test_input_required_result_request_state: [
    strings(),
    async (given, call) => [text(`state-ok: ${JSON.stringify(await confirm(call))}`)],
  ],
  test_input_required_result_tampered_state: [
    strings(),
    async (given, call) => [text(JSON.stringify(await confirm(call)))],
  ],
  test_input_required_result_multiple_inputs: [
    strings(),
    async (given, call) => {
      const questions = {
        user_name: fields("What is your name?", "name"),
        greeting: prompt("Generate a greeting"),
        client_roots: roots,
      };
      return [text(JSON.stringify(await call.ask(questions)))];
    },
  ],
  test_input_required_result_multi_round: [
    strings(),
    async (given, call) => {
      const first = await ask(call, "Step 1: What is your name?", "name", "step1");
      const second = await ask(call, "Step 2: What is your favorite color?", "color", "step2");
      return [text(`${first?.name} likes ${second?.color}`)];
    },
  ],
  test_input_required_result_capabilities: [
    strings(),
    async (given, call) => {
      const questions = { user_name: fields("What is your name?", "name"), greeting: prompt("Say hello") };
      return [text(JSON.stringify(await call.askDeclared(questions)))];
    },
  ],
  test_streaming_elicitation: [
    strings(),
    async (given, call) => {
      if (call.progressToken !== undefined) await call.progress(1, 2);
      return [text(`The answer was: ${JSON.stringify(await ask(call, "What is your name?", "name", "name"))}`)];
    },
  ],
  test_logging_tool: [
    strings(),
    async (given, call) => {
      await call.log("Logged by test_logging_tool");
      return [text("Logged")];
    },
  ],
  test_trigger_prompt_change: [
    strings(),
    async (given, call) => {
      await call.changed("prompts");
      return [text("Changed")];
    },
  ],
  test_trigger_tool_change: [
    strings(),
    async (given, call) => {
      await call.changed("tools");
      return [text("Changed")];
    },
  ],
  test_missing_capability: [strings(), async (given, call) => [text(await sample(call, "Say anything.", "answer"))]],
  test_elicitation_sep1034_defaults: [
    strings(),
    (given, call) =>
      elicit(call, {
        name: { type: "string", default: "John Doe" },
        age: { type: "integer", default: 30 },
        score: { type: "number", default: 95.5 },
        status: { type: "string", enum: ["active", "inactive", "pending"], default: "active" },
        verified: { type: "boolean", default: true },
      }),
  ],
  test_elicitation_sep1330_enums: [
    strings(),
    (given, call) =>
      elicit(call, {
        untitledSingle: { type: "string", enum: OPTIONS },
        titledSingle: { type: "string", oneOf: TITLED },
        legacyEnum: {
          type: "string",
          enum: ["opt1", "opt2", "opt3"],
          enumNames: ["Option One", "Option Two", "Option Three"],
        },
        untitledMulti: { type: "array", items: { type: "string", enum: OPTIONS } },
        titledMulti: { type: "array", items: { anyOf: TITLED } },
      }),
  ],
};

const form = (message, schema) => ["elicitation/create", { message, requestedSchema: { type: "object", ...schema } }];
const fields = (message, ...names) => form(message, strings(...names));
const prompt = (words) => [
  "sampling/createMessage",
  { messages: [{ role: "user", content: text(words) }], maxTokens: 100 },
];
const roots = ["roots/list", {}];

async function ask(call, message, field, key) {
  return (await call.ask({ [key]: fields(message, field) }))[key].content;
}

async function confirm(call) {
  const schema = { properties: { ok: { type: "boolean" } }, required: ["ok"] };
  return (await call.ask({ confirm: form("Go on?", schema) })).confirm.content;
}

async function sample(call, words, key) {
  return (await call.ask({ [key]: prompt(words) }))[key].content.text;
}

async function elicit(call, properties) {
  const { answer } = await call.ask({ answer: form("Please answer", { properties, required: [] }) });
  return [text(`Elicitation completed: action=${answer.action}, content=${JSON.stringify(answer.content)}`)];
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
    async (given, call) => {
      const answer = await ask(call, "What context should the prompt use?", "context", "user_context");
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

function read(uri, fail) {
  const id = TEMPLATE.exec(uri)?.[1];
  if (id !== undefined) {
    const data = { id, templateTest: true, data: `Data for ID: ${id}` };
    return { uri, mimeType: "application/json", text: JSON.stringify(data) };
  }
  if (!(uri in resources)) throw fail(-32002, `no such resource: ${uri}`, { uri });
  const [mimeType, content] = resources[uri];
  return { uri, mimeType, ...content };
}

const capabilities = {
  tools: { listChanged: true },
  prompts: { listChanged: true },
  resources: { subscribe: true, listChanged: true },
  completions: {},
  logging: {},
};
export const INFO = [{ name: "typescript-everything", version: "1.0.0" }, { capabilities }];

// Method -> its handler, of the params and the call. fail: makes an error of a code, a message and data.
export const handlers = (fail) => ({
  "tools/list": () => ({
    tools: Object.entries(tools).map(([name, [inputSchema]]) => ({ name, description: `Tests ${name}`, inputSchema })),
  }),
  "tools/call": async (params, call) => {
    if (!(params.name in tools)) throw fail(-32602, `Unknown tool: ${params.name}`);
    return { content: await tools[params.name][1](params.arguments ?? {}, call) };
  },
  "prompts/list": () => ({
    prompts: Object.entries(prompts).map(([name, [words]]) => ({
      name,
      description: `Tests ${name}`,
      arguments: words.map((word) => ({ name: word, description: word, required: true })),
    })),
  }),
  "prompts/get": async (params, call) => {
    const contents = await prompts[params.name][1](params.arguments ?? {}, call);
    return { messages: contents.map((content) => ({ role: "user", content })) };
  },
  "resources/list": () => ({
    resources: Object.entries(resources).map(([uri, [mimeType]]) => ({
      uri,
      mimeType,
      name: uri.slice("test://".length),
      description: `Tests ${uri}`,
    })),
  }),
  "resources/templates/list": () => ({
    resourceTemplates: [
      { uriTemplate: "test://template/{id}/data", name: "template", description: "Tests templates" },
    ],
  }),
  "resources/read": ({ uri }) => ({ contents: [read(uri, fail)] }),
  "resources/subscribe": () => ({}),
  "resources/unsubscribe": () => ({}),
  "completion/complete": () => ({ completion: { values: ["paris", "park", "party"], hasMore: false } }),
});
