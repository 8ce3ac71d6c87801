// The official TypeScript client, version 1. node typescript_1.mjs COMMAND ARGUMENT...
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { LoggingMessageNotificationSchema } from "@modelcontextprotocol/sdk/types.js";
import { converse } from "./conversation.mjs";

const [command, ...args] = process.argv.slice(2);
const client = new Client({ name: "test", version: "1" }, { capabilities: {} });
const heard = [];
client.setNotificationHandler(LoggingMessageNotificationSchema, ({ params }) => void heard.push(params));
await converse({
  client,
  transport: new StdioClientTransport({ command, args, env: process.env, stderr: "inherit" }),
  call: (parameters, options) => client.callTool(parameters, undefined, options),
  heard,
  isModern: false,
});
