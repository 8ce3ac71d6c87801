// The official TypeScript SDK, version 2, over HTTP, in front of Node's own server: `node typescript_http.mjs PORT`.
import { createServer } from "node:http";
import { getRequestListener } from "@hono/node-server";
import { McpServer, createMcpHandler } from "@modelcontextprotocol/server";
import * as z from "zod";

function makeServer() {
  const server = new McpServer({ name: "bench", version: "1.0.0" });
  server.registerTool("echo", { inputSchema: z.object({ text: z.string() }) }, async ({ text }) => ({
    content: [{ type: "text", text }],
  }));
  return server;
}

const handler = createMcpHandler(makeServer);
createServer(getRequestListener((request) => handler.fetch(request))).listen(Number(process.argv[2]), "127.0.0.1");
