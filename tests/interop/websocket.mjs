// The official TypeScript client over its WebSocket transport. node websocket.mjs ADDRESS
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { WebSocketClientTransport } from "@modelcontextprotocol/sdk/client/websocket.js";

const client = new Client({ name: "test", version: "1" }, { capabilities: {} });
await client.connect(new WebSocketClientTransport(new URL(process.argv[2])));
const tools = (await client.listTools()).tools.map((tool) => tool.name);
const price = await client.callTool({ name: "price", arguments: { item: "plum", amount: 2 } });
console.log(JSON.stringify({ server: client.getServerVersion().name, tools, price: price.structuredContent }));
await client.close();
