// The official TypeScript client, version 2. node typescript_2.mjs legacy|auto|REVISION COMMAND ARGUMENT...
import { Client } from "@modelcontextprotocol/client";
import { StdioClientTransport } from "@modelcontextprotocol/client/stdio";
import { converse } from "./conversation.mjs";

const [wanted, command, ...args] = process.argv.slice(2);
const mode = ["legacy", "auto"].includes(wanted) ? wanted : { pin: wanted };
const client = new Client({ name: "test", version: "1" }, { capabilities: {}, versionNegotiation: { mode } });
const heard = [];
client.setNotificationHandler("notifications/message", ({ params }) => void heard.push(params));
await converse({
  client,
  transport: new StdioClientTransport({ command, args, env: process.env, stderr: "inherit" }),
  call: (parameters, options) => client.callTool(parameters, options),
  heard,
  isModern: wanted !== "legacy",
});
