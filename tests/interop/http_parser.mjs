// Node's HTTP server. The header `X-Read` of a response holds the request as Node has read it: method, target
// and body as JSON in Base64. Prints its port.
import http from "node:http";

const server = http.createServer((request, response) => {
  const parts = [];
  request.on("data", (part) => parts.push(part));
  request.on("end", () => {
    const read = [request.method, request.url, Buffer.concat(parts).toString("latin1")];
    const text = Buffer.from(JSON.stringify(read)).toString("base64");
    response.writeHead(200, { "X-Read": text, "Content-Length": 0 });
    response.end();
  });
});
// A request with Upgrade is an ordinary one, as for our server.
server.shouldUpgradeCallback = () => false;
server.listen(0, "127.0.0.1", () => console.log(server.address().port));
