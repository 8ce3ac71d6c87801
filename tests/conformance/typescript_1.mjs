// typescript_everything.mjs on version 1 of the official TypeScript SDK, which speaks 2025-11-25, over stdio.
import { Server } from "@modelcontextprotocol/sdk/server/index.js";
import { StdioServerTransport } from "@modelcontextprotocol/sdk/server/stdio.js";
import * as types from "@modelcontextprotocol/sdk/types.js";
import { INFO, handlers } from "./typescript_everything.mjs";

const SCHEMAS = {
  "tools/list": types.ListToolsRequestSchema,
  "tools/call": types.CallToolRequestSchema,
  "prompts/list": types.ListPromptsRequestSchema,
  "prompts/get": types.GetPromptRequestSchema,
  "resources/list": types.ListResourcesRequestSchema,
  "resources/templates/list": types.ListResourceTemplatesRequestSchema,
  "resources/read": types.ReadResourceRequestSchema,
  "resources/subscribe": types.SubscribeRequestSchema,
  "resources/unsubscribe": types.UnsubscribeRequestSchema,
  "completion/complete": types.CompleteRequestSchema,
};
const server = new Server(...INFO);
const questions = {
  "elicitation/create": (params) => server.elicitInput(params),
  "sampling/createMessage": (params) => server.createMessage(params),
  "roots/list": () => server.listRoots(),
};
const changes = { tools: () => server.sendToolListChanged(), prompts: () => server.sendPromptListChanged() };

function callOf({ _meta, sendNotification }) {
  const progressToken = _meta?.progressToken;
  const sendAll = (asked) => Object.values(asked).map(([method, params]) => questions[method](params));
  return {
    progressToken,
    log: (data) => sendNotification({ method: "notifications/message", params: { level: "info", data } }),
    progress: (progress, total) =>
      sendNotification({ method: "notifications/progress", params: { progressToken, progress, total } }),
    changed: (list) => changes[list](),
    ask: async (asked) => {
      const results = await Promise.all(sendAll(asked));
      return Object.fromEntries(Object.keys(asked).map((key, index) => [key, results[index]]));
    },
    // Behind a proxy, clients with other capabilities may use the server: the proxy refuses what this one lacks.
    askDeclared: (asked) => Promise.allSettled(sendAll(asked)),
  };
}

for (const [method, handler] of Object.entries(handlers((...error) => new types.McpError(...error)))) {
  server.setRequestHandler(SCHEMAS[method], async ({ params }, extra) => {
    try {
      return await handler(params, callOf(extra));
    } catch (error) {
      if (method !== "tools/call" || error instanceof types.McpError) throw error;
      return { content: [{ type: "text", text: error.message }], isError: true };
    }
  });
}
server.setRequestHandler(types.SetLevelRequestSchema, () => ({}));
await server.connect(new StdioServerTransport());
