// A server of the official TypeScript SDK, version 2, over HTTP: `node typescript_2_http.mjs PORT`.
import { createServer } from "node:http";
import { McpServer, createMcpHandler } from "@modelcontextprotocol/server";
import * as z from "zod";

const handler = createMcpHandler(() => {
  const server = new McpServer({ name: "typescript", version: "1.0.0" });
  server.registerTool("echo", { inputSchema: z.object({ text: z.string() }) }, async ({ text }) => ({
    content: [{ type: "text", text }],
  }));
  return server;
});

createServer(async (request, response) => {
  const pieces = [];
  for await (const piece of request) pieces.push(piece);
  const hasBody = request.method === "POST";
  const answer = await handler.fetch(
    new Request(`http://127.0.0.1${request.url}`, {
      method: request.method,
      headers: request.headers,
      body: hasBody ? Buffer.concat(pieces) : undefined,
    }),
  );
  response.writeHead(answer.status, Object.fromEntries(answer.headers));
  if (answer.body) for await (const piece of answer.body) response.write(piece);
  response.end();
}).listen(Number(process.argv[2]), "127.0.0.1");
