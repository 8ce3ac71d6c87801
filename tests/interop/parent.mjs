// A client made of Node alone, so that nothing but child_process.spawn stands between it and the server.
//
//     node parent.mjs HOW STDERR COMMAND ARGUMENT...
//
// HOW: converse (200 calls, a large echo, slow reading, then stdin is closed) or wait (handshake, then until somebody ends this process).
// STDERR: inherit, or pipe (which nobody reads). Prints what it saw, one JSON object a line.
import { spawn } from "node:child_process";
import { once } from "node:events";
import { createInterface } from "node:readline";

const [how, stderr, command, ...args] = process.argv.slice(2);
const server = spawn(command, args, { stdio: ["pipe", "pipe", stderr] });
const exit = once(server, "exit");
const waiting = new Map(); // id -> resolve
const seen = { answers: 0, doubled: 0 };

createInterface({ input: server.stdout }).on("line", (line) => {
  const answer = JSON.parse(line);
  if (!waiting.has(answer.id)) seen.doubled += 1;
  waiting.get(answer.id)?.(answer);
  waiting.delete(answer.id);
  seen.answers += 1;
});

let lastId = 0;
function ask(method, params) {
  const id = ++lastId;
  const answer = new Promise((resolve) => waiting.set(id, resolve));
  server.stdin.write(JSON.stringify({ jsonrpc: "2.0", id, method, params }) + "\n");
  return answer;
}
const call = (name, args) => ask("tools/call", { name, arguments: args });
const text = (answer) => answer.result.content[0].text;

const opening = await ask("initialize", {
  protocolVersion: "2025-11-25",
  capabilities: {},
  clientInfo: { name: "parent", version: "1" },
});
seen.protocolVersion = opening.result.protocolVersion;
server.stdin.write('{"jsonrpc":"2.0","method":"notifications/initialized"}\n');

if (how === "wait") {
  const busy = call("sleep", { seconds: 60 }); // so that its end does not find it idle
  console.log(JSON.stringify({ pid: server.pid }));
  await busy;
}

const texts = Array.from({ length: 200 }, (_, n) => `call ${n} ünïcödé`);
const answers = await Promise.all(texts.map((each) => call("echo", { text: each })));
seen.echoes = answers.filter((answer, n) => text(answer) === texts[n]).length;

const large = "é\u2028".repeat(200_000); // 1 MB of UTF-8
seen.large = text(await call("echo", { text: large })) === large;

// 20 MB of answers that are not read until the server has stopped to read what it is sent: then a write here does not drain.
server.stdout.pause();
const slow = Array.from({ length: 200 }, () => call("big", { count: 100_000 }));
const filler = JSON.stringify({ jsonrpc: "2.0", method: "notifications/nothing", params: { x: "y".repeat(60_000) } }) + "\n";
let fillers = 0;
while (fillers < 400 && server.stdin.writableLength < 1_000_000) {
  server.stdin.write(filler);
  fillers += 1;
  await new Promise(setImmediate);
}
seen.heldBack = server.stdin.writableLength >= 1_000_000;
server.stdout.resume();
seen.slow = (await Promise.all(slow)).filter((answer) => text(answer).length === 100_000).length;

server.stdin.end();
const [code, signal] = await exit;
console.log(JSON.stringify({ ...seen, code, signal }));
