// The official TypeScript SDK, version 1, as its users write it. Its 10 MiB limit is raised for the largest echo.
import { McpServer } from "@modelcontextprotocol/sdk/server/mcp.js";
import { StdioServerTransport } from "@modelcontextprotocol/sdk/server/stdio.js";
import * as z from "zod";

const server = new McpServer({ name: "bench", version: "1.0.0" });

server.registerTool("echo", { inputSchema: { text: z.string() } }, async ({ text }) => ({
  content: [{ type: "text", text }],
}));

server.registerTool("sleep50", {}, async () => {
  await new Promise((resolve) => setTimeout(resolve, 50));
  return { content: [{ type: "text", text: "ok" }] };
});

await server.connect(new StdioServerTransport(process.stdin, process.stdout, { maxBufferSize: 64 * 2 ** 20 }));
