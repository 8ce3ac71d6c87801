// A plugin made with upstream's SDK, whose tools are streams. test_upstream_streams.py runs it.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log"
	"os"

	pluginv1 "github.com/orchestra-mcp/gen-go/orchestra/plugin/v1"
	"github.com/orchestra-mcp/sdk-go/helpers"
	"github.com/orchestra-mcp/sdk-go/plugin"
	"google.golang.org/protobuf/types/known/structpb"
)

func main() {
	object := map[string]any{"type": "object"}
	schema, err := structpb.NewStruct(object)
	if err != nil {
		log.Fatal(err)
	}
	built := plugin.New("tools.streams").
		Version("1.0.0").
		RegisterTool("plain", "Returns a text", schema, plain).
		RegisterStreamingTool("count", "Sends as many lines as the caller wants", schema, count).
		RegisterStreamingTool("large", "Sends chunks of 64 KiB", schema, large).
		RegisterStreamingTool("fail", "Sends a chunk and fails", schema, fail).
		RegisterStreamingTool("endless", "Sends chunks until it is cancelled", schema, endless).
		BuildWithTools()
	built.ParseFlags()
	if err := built.Run(context.Background()); err != nil {
		log.Fatal(err)
	}
}

func plain(_ context.Context, _ *pluginv1.ToolRequest) (*pluginv1.ToolResponse, error) {
	return helpers.TextResult("plain"), nil
}

func count(_ context.Context, start *pluginv1.StreamStart, chunks chan<- []byte) error {
	for number := range helpers.GetInt(start.Arguments, "lines") {
		chunks <- fmt.Appendf(nil, "%s line %d\n", start.CallerPlugin, number)
	}
	return nil
}

func large(_ context.Context, start *pluginv1.StreamStart, chunks chan<- []byte) error {
	for number := range helpers.GetInt(start.Arguments, "chunks") {
		chunks <- bytes.Repeat([]byte{byte('a' + number%26)}, 64<<10)
	}
	return nil
}

func fail(_ context.Context, _ *pluginv1.StreamStart, chunks chan<- []byte) error {
	chunks <- []byte("half")
	return errors.New("not today")
}

// endless writes the file `mark` when it is cancelled.
func endless(ctx context.Context, start *pluginv1.StreamStart, chunks chan<- []byte) error {
	for {
		select {
		case chunks <- []byte("more\n"):
		case <-ctx.Done():
			return os.WriteFile(helpers.GetString(start.Arguments, "mark"), nil, 0o600)
		}
	}
}
