// A client of the official Go SDK: `client REVISION COMMAND ARGUMENT...`. It starts a server, lists
// its tools, and prints the error that a user of the SDK gets; nothing if there is none.
package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

func listTools(revision string, command *exec.Cmd) error {
	background := context.Background()
	client := mcp.NewClient(&mcp.Implementation{Name: "go", Version: "1"}, nil)
	options := &mcp.ClientSessionOptions{ProtocolVersion: revision}
	session, err := client.Connect(background, &mcp.CommandTransport{Command: command}, options)
	if err != nil {
		return err
	}
	defer session.Close()
	_, err = session.ListTools(background, nil)
	return err
}

func main() {
	if err := listTools(os.Args[1], exec.Command(os.Args[2], os.Args[3:]...)); err != nil {
		fmt.Println(err)
	}
}
