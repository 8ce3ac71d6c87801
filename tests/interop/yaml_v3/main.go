// A judge of YAML: reads requests as JSON lines and answers each with what yaml.v3 and Go's
// path/filepath do, at the versions that upstream's store of Markdown files uses.
//
//	{"read": TEXT}            {"value": OBJECT} or {"error": TEXT}
//	{"write": OBJECT}         {"text": TEXT, "same": whether yaml.v3 reads OBJECT back}
//	{"match": [GLOB, NAME]}   {"value": true or false} or {"error": TEXT}
//	{"clean": PATH}           {"value": PATH}
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"sort"
	"time"

	"gopkg.in/yaml.v3"
)

type request struct {
	Read  *string        `json:"read"`
	Write map[string]any `json:"write"`
	Match []string       `json:"match"`
	Clean *string        `json:"clean"`
}

type answer struct {
	Value any    `json:"value"`
	Text  string `json:"text,omitempty"`
	Same  bool   `json:"same,omitempty"`
	Error string `json:"error,omitempty"`
}

// convert returns a value as a Struct holds it. JSON has neither NaN nor infinities: they become
// {"$float": TEXT}.
func convert(value any) (any, error) {
	switch typed := value.(type) {
	case nil, bool, string:
		return typed, nil
	case int:
		return float64(typed), nil
	case int64:
		return float64(typed), nil
	case uint64:
		return float64(typed), nil
	case float64:
		if math.IsNaN(typed) || math.IsInf(typed, 0) {
			return map[string]any{"$float": fmt.Sprint(typed)}, nil
		}
		return typed, nil
	case []any:
		items := make([]any, len(typed))
		for index, item := range typed {
			converted, err := convert(item)
			if err != nil {
				return nil, err
			}
			items[index] = converted
		}
		return items, nil
	case map[string]any:
		members := make(map[string]any, len(typed))
		for key, item := range typed {
			converted, err := convert(item)
			if err != nil {
				return nil, err
			}
			members[key] = converted
		}
		return members, nil
	case time.Time:
		return nil, fmt.Errorf("struct: a time")
	default:
		return nil, fmt.Errorf("struct: %T", value)
	}
}

func read(text string) (any, error) {
	var members map[string]any
	if err := yaml.Unmarshal([]byte(text), &members); err != nil {
		return nil, err
	}
	if members == nil {
		members = map[string]any{}
	}
	return convert(members)
}

// write has the keys of the outermost mapping in the order of their bytes and without a tag, as
// upstream's store has them; inside, yaml.v3 has an order and quotes of its own.
func write(members map[string]any) (string, error) {
	keys := make([]string, 0, len(members))
	for key := range members {
		keys = append(keys, key)
	}
	sort.Strings(keys)
	node := &yaml.Node{Kind: yaml.MappingNode}
	for _, key := range keys {
		name, value := &yaml.Node{Kind: yaml.ScalarNode, Value: key}, &yaml.Node{}
		if err := value.Encode(members[key]); err != nil {
			return "", err
		}
		node.Content = append(node.Content, name, value)
	}
	text, err := yaml.Marshal(node)
	return string(text), err
}

func handle(request request) (reply answer) {
	defer func() {
		if failure := recover(); failure != nil {
			reply = answer{Error: fmt.Sprint(failure)}
		}
	}()
	var err error
	switch {
	case request.Read != nil:
		reply.Value, err = read(*request.Read)
	case request.Write != nil:
		if reply.Text, err = write(request.Write); err == nil {
			back, failure := read(reply.Text)
			reply.Same = failure == nil && reflect.DeepEqual(back, any(request.Write))
		}
	case request.Match != nil:
		reply.Value, err = filepath.Match(request.Match[0], request.Match[1])
	case request.Clean != nil:
		reply.Value = filepath.Clean(*request.Clean)
	}
	if err != nil {
		reply.Value, reply.Error = nil, err.Error()
	}
	return reply
}

func main() {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<24)
	output := bufio.NewWriter(os.Stdout)
	defer output.Flush()
	encoder := json.NewEncoder(output)
	encoder.SetEscapeHTML(false)
	for lines.Scan() {
		var asked request
		if err := json.Unmarshal(lines.Bytes(), &asked); err != nil {
			encoder.Encode(answer{Error: err.Error()})
			continue
		}
		encoder.Encode(handle(asked))
	}
}
