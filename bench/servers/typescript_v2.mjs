// The official TypeScript SDK, version 2: one factory serves both eras. Its limit is raised for the largest echo.
import { McpServer } from "@modelcontextprotocol/server";
import { StdioServerTransport, serveStdio } from "@modelcontextprotocol/server/stdio";
import * as z from "zod";

function makeServer() {
  const server = new McpServer({ name: "bench", version: "1.0.0" });

  server.registerTool("echo", { inputSchema: z.object({ text: z.string() }) }, async ({ text }) => ({
    content: [{ type: "text", text }],
  }));

  server.registerTool("sleep50", {}, async () => {
    await new Promise((resolve) => setTimeout(resolve, 50));
    return { content: [{ type: "text", text: "ok" }] };
  });

  return server;
}

serveStdio(makeServer, {
  transport: new StdioServerTransport(process.stdin, process.stdout, { maxBufferSize: 64 * 2 ** 20 }),
});
