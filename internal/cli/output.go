package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"

	"gopkg.in/yaml.v3"

	"samovar/internal/fault"
)

// format is how results are printed; it is a flag.
type format string

const (
	formatTable format = "table"
	formatJSON  format = "json"
	formatYAML  format = "yaml"
)

func (f *format) String() string { return string(*f) }
func (f *format) Type() string   { return "format" }

func (f *format) Set(text string) error {
	switch format(text) {
	case formatTable, formatJSON, formatYAML:
		*f = format(text)
		return nil
	}
	return fmt.Errorf("want table, json or yaml")
}

// write prints value in a format; draw prints it as a table.
func (f format) write(w io.Writer, value any, draw func(io.Writer)) error {
	var text []byte
	var err error
	switch f {
	case formatJSON:
		text, err = jsonText(value, "  ")
	case formatYAML:
		text, err = yamlText(value)
	default:
		var b bytes.Buffer
		draw(&b)
		text = b.Bytes()
	}
	if err != nil {
		return fault.Wrap(fault.Internal, "print", err)
	}
	if _, err := w.Write(text); err != nil {
		return fault.Wrap(fault.IO, "print", err)
	}
	return nil
}

func jsonText(value any, indent string) ([]byte, error) {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", indent)
	err := encoder.Encode(value)
	return b.Bytes(), err
}

// yamlText prints what JSON would say, with its names and in its order, as YAML.
func yamlText(value any) ([]byte, error) {
	text, err := jsonText(value, "")
	if err != nil {
		return nil, err
	}
	var document yaml.Node
	if err := yaml.Unmarshal(text, &document); err != nil {
		return nil, err
	}
	plain(&document)
	var b bytes.Buffer
	encoder := yaml.NewEncoder(&b)
	encoder.SetIndent(2)
	if err := encoder.Encode(&document); err != nil {
		return nil, err
	}
	return b.Bytes(), encoder.Close()
}

// plain drops JSON's braces and quotes; the encoder quotes where YAML needs it.
func plain(node *yaml.Node) {
	if len(node.Content) > 0 || node.Kind == yaml.ScalarNode {
		node.Style = 0
	}
	if node.Kind == yaml.ScalarNode && node.Tag == "!!str" {
		// Readers of YAML 1.1 take yes, off and 12:30 for other than strings: quote what the encoder quotes in values.
		if text, err := yaml.Marshal(node.Value); err == nil && text[0] == '"' {
			node.Style = yaml.DoubleQuotedStyle
		}
	}
	for _, child := range node.Content {
		plain(child)
	}
}
