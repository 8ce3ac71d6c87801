// typescript_everything.mjs on version 2 of the official TypeScript SDK, which speaks both eras, over stdio.
import { randomBytes } from "node:crypto";
import { ProtocolError, Server, createRequestStateCodec, inputRequired } from "@modelcontextprotocol/server";
import { serveStdio } from "@modelcontextprotocol/server/stdio";
import { INFO, handlers } from "./typescript_everything.mjs";

const CAPABILITIES = { "elicitation/create": "elicitation", "sampling/createMessage": "sampling", "roots/list": "roots" };
const QUESTIONS = {
  "elicitation/create": (params) => inputRequired.elicit(params),
  "sampling/createMessage": (params) => inputRequired.createMessage(params),
  "roots/list": () => inputRequired.listRoots(),
};
const ENVELOPE = "io.modelcontextprotocol/clientCapabilities";
const state = createRequestStateCodec({ key: randomBytes(32) });

// Thrown to end a round of a call. The handler runs again from its start when the client has answered.
class Asking {
  constructor(result) {
    this.result = result;
  }
}

function callOf(server, { mcpReq }) {
  const answers = { ...mcpReq.requestState(), ...mcpReq.inputResponses };
  const progressToken = mcpReq._meta?.progressToken;
  const changes = { tools: () => server.sendToolListChanged(), prompts: () => server.sendPromptListChanged() };
  async function ask(asked) {
    const open = Object.entries(asked).filter(([key]) => !(key in answers));
    if (open.length === 0) return answers;
    const inputRequests = Object.fromEntries(open.map(([key, [method, params]]) => [key, QUESTIONS[method](params)]));
    throw new Asking(inputRequired({ inputRequests, requestState: await state.mint(answers) }));
  }
  return {
    progressToken,
    log: (data) => mcpReq.log("info", data),
    progress: (progress, total) =>
      mcpReq.notify({ method: "notifications/progress", params: { progressToken, progress, total } }),
    changed: (list) => changes[list](),
    ask,
    askDeclared: (asked) => {
      const declared = mcpReq.envelope?.[ENVELOPE] ?? server.getClientCapabilities() ?? {};
      return ask(Object.fromEntries(Object.entries(asked).filter(([, [method]]) => CAPABILITIES[method] in declared)));
    },
  };
}

serveStdio(() => {
  const [info, options] = INFO;
  const server = new Server(info, { ...options, requestState: { verify: state.verify } });
  for (const [method, handler] of Object.entries(handlers((...error) => new ProtocolError(...error)))) {
    server.setRequestHandler(method, async ({ params }, context) => {
      try {
        return await handler(params, callOf(server, context));
      } catch (error) {
        if (error instanceof Asking) return error.result;
        if (method !== "tools/call" || error instanceof ProtocolError) throw error;
        return { content: [{ type: "text", text: error.message }], isError: true };
      }
    });
  }
  return server;
});
