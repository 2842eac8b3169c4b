package api

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"samovar/internal/api/problem"
	"samovar/internal/resource"
)

// The description, as far as the test reads it.
type (
	document struct {
		OpenAPI    string                          `json:"openapi"`
		Paths      map[string]map[string]operation `json:"paths"`
		Components struct {
			Schemas map[string]schema `json:"schemas"`
		} `json:"components"`
	}
	operation struct {
		ID         string `json:"operationId"`
		Summary    string `json:"summary"`
		Parameters []struct {
			Name string `json:"name"`
			In   string `json:"in"`
		} `json:"parameters"`
		Body struct {
			Content content `json:"content"`
		} `json:"requestBody"`
		Responses map[string]struct {
			Content content `json:"content"`
		} `json:"responses"`
	}
	content map[string]struct {
		Schema schema `json:"schema"`
	}
	schema struct {
		Ref        string            `json:"$ref"`
		Type       string            `json:"type"`
		Format     string            `json:"format"`
		Items      *schema           `json:"items"`
		Enum       []string          `json:"enum"`
		Properties map[string]schema `json:"properties"`
		Required   []string          `json:"required"`
		Additional json.RawMessage   `json:"additionalProperties"`
	}
)

func read(t *testing.T) document {
	t.Helper()
	var d document
	if err := json.Unmarshal(Description(), &d); err != nil {
		t.Fatal(err)
	}
	return d
}

func TestDescriptionHasTheRoutes(t *testing.T) {
	d := read(t)
	if !strings.HasPrefix(d.OpenAPI, "3.1.") {
		t.Errorf("version %q", d.OpenAPI)
	}
	ids, described := map[string]bool{}, map[string]operation{}
	for path, methods := range d.Paths {
		for method, o := range methods {
			described[strings.ToUpper(method)+" "+path] = o
			if ids[o.ID] || o.ID == "" || o.Summary == "" {
				t.Errorf("%s %s: operation id %q, summary %q", method, path, o.ID, o.Summary)
			}
			ids[o.ID] = true
		}
	}
	for _, r := range routes() {
		key := r.method + " " + r.path
		o, ok := described[key]
		if !ok {
			t.Errorf("%s is not described", key)
			continue
		}
		delete(described, key)
		compareOperation(t, key, r, o)
	}
	for key := range described {
		t.Errorf("%s is described and does not exist", key)
	}
}

func compareOperation(t *testing.T, key string, r route, o operation) {
	t.Helper()
	var want, got []string
	for _, m := range regexp.MustCompile(`\{(\w+)\}`).FindAllStringSubmatch(r.path, -1) {
		want = append(want, "path "+m[1])
	}
	for _, q := range r.query {
		want = append(want, "query "+q)
	}
	for _, p := range o.Parameters {
		if p.In != "header" {
			got = append(got, p.In+" "+p.Name)
		}
	}
	if !slices.Equal(want, got) {
		t.Errorf("%s: parameters %q, described %q", key, want, got)
	}
	if in := nameOf(o.Body.Content["application/json"].Schema); r.in != nil && in != typeName(reflect.TypeOf(r.in)) || r.in == nil && in != "" {
		t.Errorf("%s: takes %T, described %q", key, r.in, in)
	}
	success, ok := o.Responses[fmt.Sprint(r.status)]
	if _, problems := o.Responses["default"]; !ok || !problems || len(o.Responses) != 2 {
		t.Errorf("%s: responses %v, want %d and default", key, slices.Collect(maps.Keys(o.Responses)), r.status)
	}
	out := nameOf(success.Content["application/json"].Schema)
	if r.out != nil && out != typeName(reflect.TypeOf(r.out)) || r.out == nil && out != "" {
		t.Errorf("%s: answers %T, described %q", key, r.out, out)
	}
	if _, stream := success.Content["text/event-stream"]; stream != r.stream {
		t.Errorf("%s: stream %v, described %v", key, r.stream, stream)
	}
}

// nameOf names what a schema describes, as typeName names Go types.
func nameOf(s schema) string {
	switch {
	case s.Ref != "":
		return strings.TrimPrefix(s.Ref, "#/components/schemas/")
	case s.Type == "array":
		return "[]" + nameOf(*s.Items)
	case s.Type == "object" && s.Additional != nil:
		var value schema
		if json.Unmarshal(s.Additional, &value) == nil {
			return "map " + nameOf(value)
		}
	case s.Format != "":
		return s.Type + " " + s.Format
	}
	return s.Type
}

func typeName(t reflect.Type) string {
	switch {
	case t == reflect.TypeFor[time.Time]():
		return "string date-time"
	case t == reflect.TypeFor[map[string]any]():
		return "object"
	}
	switch t.Kind() {
	case reflect.Pointer:
		return typeName(t.Elem())
	case reflect.Slice:
		return "[]" + typeName(t.Elem())
	case reflect.Map:
		return "map " + typeName(t.Elem())
	case reflect.Struct:
		return t.Name()
	case reflect.Uint64:
		return "integer uint64"
	case reflect.Int:
		return "integer"
	case reflect.Bool:
		return "boolean"
	}
	return t.Kind().String()
}

func TestDescriptionHasTheTypes(t *testing.T) {
	d := read(t)
	queue := []reflect.Type{reflect.TypeFor[resource.Progress](), reflect.TypeFor[resource.Verified]()} // of streams
	for _, r := range routes() {
		for _, sample := range []any{r.in, r.out} {
			if sample != nil && reflect.TypeOf(sample) != reflect.TypeFor[map[string]any]() {
				queue = append(queue, reflect.TypeOf(sample))
			}
		}
	}
	seen := map[string]bool{"Problem": true}
	for len(queue) > 0 {
		typ := queue[0]
		queue = queue[1:]
		for typ.Kind() == reflect.Slice || typ.Kind() == reflect.Pointer || typ.Kind() == reflect.Map {
			typ = typ.Elem()
		}
		if typ.Kind() != reflect.Struct || typ == reflect.TypeFor[time.Time]() || seen[typ.Name()] {
			continue
		}
		seen[typ.Name()] = true
		compareType(t, typ, d.Components.Schemas[typ.Name()])
		for i := range typ.NumField() {
			queue = append(queue, typ.Field(i).Type)
		}
	}
	for name := range d.Components.Schemas {
		if !seen[name] {
			t.Errorf("schema %s describes nothing that travels", name)
		}
	}
}

func compareType(t *testing.T, typ reflect.Type, s schema) {
	t.Helper()
	var required []string
	for i := range typ.NumField() {
		name, rest, _ := strings.Cut(typ.Field(i).Tag.Get("json"), ",")
		property, ok := s.Properties[name]
		switch want := typeName(typ.Field(i).Type); {
		case !ok:
			t.Errorf("%s.%s is not described", typ.Name(), name)
		case nameOf(property) != want:
			t.Errorf("%s.%s is %q, described %q", typ.Name(), name, want, nameOf(property))
		}
		if !strings.Contains(rest, "omit") {
			required = append(required, name)
		}
	}
	if len(s.Properties) > typ.NumField() {
		t.Errorf("%s: %d fields, described %d", typ.Name(), typ.NumField(), len(s.Properties))
	}
	slices.Sort(required)
	if described := slices.Sorted(slices.Values(s.Required)); !slices.Equal(described, required) {
		t.Errorf("%s: always there %q, described %q", typ.Name(), required, described)
	}
}

func TestDescriptionHasTheErrors(t *testing.T) {
	var words []string
	for _, e := range problem.Table() {
		words = append(words, e.Word)
	}
	if got := read(t).Components.Schemas["Problem"].Properties["error"].Properties["kind"].Enum; !slices.Equal(got, words) {
		t.Errorf("described %q\nexist     %q", got, words)
	}
}
