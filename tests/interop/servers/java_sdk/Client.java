// A client of the official Java SDK: `Client URL`. It talks to tests/http/server_for_http.py, and
// prints what it has got as one JSON object.
import io.modelcontextprotocol.client.McpClient;
import io.modelcontextprotocol.client.transport.HttpClientStreamableHttpTransport;
import io.modelcontextprotocol.json.McpJsonDefaults;
import io.modelcontextprotocol.spec.McpError;
import io.modelcontextprotocol.spec.McpSchema;
import io.modelcontextprotocol.spec.McpSchema.CallToolRequest;
import io.modelcontextprotocol.spec.McpSchema.CallToolResult;
import io.modelcontextprotocol.spec.McpSchema.ElicitResult;
import io.modelcontextprotocol.spec.McpSchema.TextContent;
import io.modelcontextprotocol.spec.McpSchema.TextResourceContents;
import java.net.URI;
import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.IntStream;

public class Client {
    static String text(CallToolResult result) {
        return ((TextContent) result.content().get(0)).text();
    }

    static CallToolRequest call(String name, Map<String, Object> arguments) {
        return CallToolRequest.builder(name).arguments(arguments).build();
    }

    public static void main(String[] arguments) throws Exception {
        var url = URI.create(arguments[0]);
        var origin = url.getScheme() + "://" + url.getAuthority();
        var transport =
                HttpClientStreamableHttpTransport.builder(origin).endpoint(url.getPath()).build();
        var progress = Collections.synchronizedList(new ArrayList<Double>());
        var seen = new LinkedHashMap<String, Object>();

        try (var client =
                McpClient.sync(transport)
                        .clientInfo(new McpSchema.Implementation("java", "1"))
                        .capabilities(
                                McpSchema.ClientCapabilities.builder().elicitation().build())
                        .elicitation(
                                request ->
                                        ElicitResult.builder(ElicitResult.Action.ACCEPT)
                                                .content(Map.of("name", "Ada"))
                                                .build())
                        .progressConsumer(notification -> progress.add(notification.progress()))
                        .build()) {
            var opened = client.initialize();
            seen.put("version", opened.protocolVersion());
            seen.put("server", opened.serverInfo().name());
            seen.put("tools", client.listTools().tools().stream().map(tool -> tool.name()).toList());
            List<String> sums =
                    IntStream.range(0, 20)
                            .parallel()
                            .mapToObj(
                                    number ->
                                            text(
                                                    client.callTool(
                                                            call(
                                                                    "add",
                                                                    Map.of("a", number, "b", 1)))))
                            .toList();
            seen.put("sums", sums);
            seen.put(
                    "large",
                    text(client.callTool(call("large", Map.of("size", 500000)))).length());
            var count = CallToolRequest.builder("count").progressToken("t").build();
            seen.put("counted", text(client.callTool(count)));
            seen.put("progress", progress);
            seen.put("asked", text(client.callTool(call("ask", Map.of()))));
            seen.put(
                    "refused", client.callTool(call("add", Map.of("a", "x", "b", 1))).isError());
            var note = client.readResource(new McpSchema.ReadResourceRequest("text://note"));
            seen.put("note", ((TextResourceContents) note.contents().get(0)).text());
            try {
                client.readResource(new McpSchema.ReadResourceRequest("text://none"));
            } catch (McpError error) {
                seen.put("missing", error.getJsonRpcError().code());
            }
        }
        System.out.println(McpJsonDefaults.getMapper().writeValueAsString(seen));
        System.exit(0);
    }
}
