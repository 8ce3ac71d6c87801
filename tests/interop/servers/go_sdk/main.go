// A server of the official Go SDK: on stdin and stdout, or with a port over HTTP.
//
//	server [PORT [stateless]]
package main

import (
	"context"
	"log"
	"net/http"
	"os"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

type echoArguments struct {
	Text string `json:"text"`
}

func echo(_ context.Context, _ *mcp.CallToolRequest, arguments echoArguments) (*mcp.CallToolResult, any, error) {
	content := []mcp.Content{&mcp.TextContent{Text: arguments.Text}}
	return &mcp.CallToolResult{Content: content}, nil, nil
}

func read(_ context.Context, request *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
	contents := []*mcp.ResourceContents{{URI: request.Params.URI, MIMEType: "text/plain", Text: "hé"}}
	return &mcp.ReadResourceResult{Contents: contents}, nil
}

func greet(_ context.Context, request *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
	text := &mcp.TextContent{Text: "Greet " + request.Params.Arguments["name"]}
	return &mcp.GetPromptResult{Messages: []*mcp.PromptMessage{{Role: "user", Content: text}}}, nil
}

func main() {
	server := mcp.NewServer(&mcp.Implementation{Name: "go", Version: "1.0.0"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "echo"}, echo)
	server.AddResource(&mcp.Resource{URI: "text://note", Name: "note", MIMEType: "text/plain"}, read)
	server.AddResourceTemplate(&mcp.ResourceTemplate{URITemplate: "text://notes/{id}", Name: "notes"}, read)
	arguments := []*mcp.PromptArgument{{Name: "name", Required: true}}
	server.AddPrompt(&mcp.Prompt{Name: "greet", Arguments: arguments}, greet)
	if len(os.Args) > 1 {
		options := &mcp.StreamableHTTPOptions{Stateless: len(os.Args) > 2}
		find := func(*http.Request) *mcp.Server { return server }
		handler := mcp.NewStreamableHTTPHandler(find, options)
		log.Fatal(http.ListenAndServe("127.0.0.1:"+os.Args[1], handler))
	}
	if err := server.Run(context.Background(), &mcp.StdioTransport{}); err != nil {
		log.Fatal(err)
	}
}
