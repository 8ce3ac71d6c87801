// The official TypeScript SDK's client; the first argument says which version. What is measured: measures.py.
const [version, program, secondsText, largeText] = process.argv.slice(2);
const { Client } = await import(
  version === "1" ? "@modelcontextprotocol/sdk/client/index.js" : "@modelcontextprotocol/client"
);
const { StdioClientTransport } = await import(
  version === "1" ? "@modelcontextprotocol/sdk/client/stdio.js" : "@modelcontextprotocol/client/stdio"
);
const TEXT = "x".repeat(100);
const seconds = Number(secondsText);
const now = () => performance.now();
const median = (values) => values.sort((a, b) => a - b)[Math.floor(values.length / 2)];

async function open() {
  const client = new Client({ name: "bench", version: "1" });
  await client.connect(new StdioClientTransport({ command: program, args: [], maxBufferSize: 64 * 2 ** 20 }));
  return client;
}

async function call(client, text) {
  const result = await client.callTool({ name: "echo", arguments: { text } });
  if (result.content[0].text.length !== text.length) throw new Error("the text came back changed");
}

async function oneByOne(client, seconds) {
  const times = [];
  const until = now() + seconds * 1000;
  while (now() < until) {
    for (let n = 0; n < 20; n++) {
      const began = now();
      await call(client, TEXT);
      times.push(now() - began);
    }
  }
  return times;
}

async function together(client, seconds) {
  const until = now() + seconds * 1000;
  let count = 0;
  const caller = async () => {
    while (now() < until) {
      await call(client, TEXT);
      count++;
    }
  };
  await Promise.all(Array.from({ length: 1000 }, caller));
  return count;
}

const figures = {};
const openings = [];
for (let n = 0; n < 11; n++) {
  const began = now();
  const client = await open();
  openings.push(now() - began);
  await call(client, TEXT);
  await client.close();
}
figures.connect_ms = median(openings.slice(1));
const client = await open();
await oneByOne(client, seconds / 2);
const times = await oneByOne(client, seconds);
figures.p50_us = median(times) * 1000;
figures.p99_us = times[Math.floor(times.length * 0.99)] * 1000;
await together(client, seconds / 2);
const cpu = process.cpuUsage();
const began = now();
const calls = await together(client, seconds);
figures.calls_per_s = calls / ((now() - began) / 1000);
const used = process.cpuUsage(cpu);
figures.cpu_us = (used.user + used.system) / calls;
for (const [name, size] of [["large_1m_ms", 2 ** 20], ["large_ms", Number(largeText ?? 0)]]) {
  const large = [];
  for (let n = 0; size && n < 5; n++) {
    const began = now();
    await call(client, "x".repeat(size));
    large.push(now() - began);
  }
  if (large.length) figures[name] = median(large);
}
await client.close();
console.log(JSON.stringify(figures));
