package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"samovar/internal/api/fake"
	"samovar/internal/api/problem"
	"samovar/internal/fault"
	"samovar/internal/resource"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// golden compares text with a file.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v; go test -update writes it", err)
	}
	if got != string(want) {
		t.Errorf("%s differs; go test -update rewrites it. Got:\n%s", name, got)
	}
}

// journal collects a log's lines; it may be read while they come.
type journal struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(p)
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.String()
}

func logTo(w io.Writer) *slog.Logger {
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// do sends one request to a handler, without a socket.
func do(h http.Handler, method, path, body string, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// problemOf decodes an error answer.
func problemOf(t *testing.T, w *httptest.ResponseRecorder) error {
	t.Helper()
	var body problem.Body
	if err := json.Unmarshal(w.Body.Bytes(), &body); err != nil || body.Error.Kind == "" {
		t.Fatalf("status %d and no problem: %q", w.Code, w.Body)
	}
	return body.Error.Err()
}

// TestRoutes asks every route, good and bad, and keeps requests and answers in testdata/routes.golden.
func TestRoutes(t *testing.T) {
	s := NewServer(fake.New(), Options{})
	var out strings.Builder
	covered := map[string]bool{}
	for line := range strings.Lines(requests) {
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		what, body, _ := strings.Cut(line, " <- ")
		method, path, _ := strings.Cut(what, " ")
		w := do(s, method, path, body)
		_, pattern := s.mux.Handler(httptest.NewRequest(method, path, nil))
		covered[pattern] = true
		fmt.Fprintf(&out, "> %s\n< %d", line, w.Code)
		for _, name := range []string{"Content-Type", "Location", "Allow"} {
			if value := w.Header().Get(name); value != "" {
				fmt.Fprintf(&out, " %s: %s", name, value)
			}
		}
		text := w.Body.String()
		if path == "/v1/openapi.json" {
			text = "(the description)\n"
		}
		if text != "" && !strings.HasSuffix(text, "\n") {
			text += "\n"
		}
		fmt.Fprintf(&out, "\n%s\n", text)
	}
	for _, r := range routes() {
		if key := r.method + " " + r.path; !covered[key] && !strings.Contains(key, "stream") && !strings.Contains(key, "watch") {
			t.Errorf("%s is not asked", key)
		}
	}
	golden(t, "routes.golden", out.String())
}

const requests = `
	GET /v1/openapi.json
	GET /v1/version
	GET /v1/status
	GET /v1/nodes
	GET /v1/nodes/n1
	GET /v1/nodes/n9
	GET /v1/nodes/N%20x
	GET /v1/pools
	GET /v1/pools/ssd1
	GET /v1/pools/no%2Fsuch
	POST /v1/pools <- {"node":"n1","dir":"/srv/ssd9","name":"ssd9"}
	POST /v1/pools <- {"node":"n1","dir":"/srv/ssd9","name":"ssd9"}
	POST /v1/pools <- {"node":"n1","dir":"srv","name":"ssd8"}
	GET /v1/volumes
	GET /v1/volumes/tea
	GET /v1/volumes/tea@monday
	GET /v1/volumes/none
	POST /v1/volumes <- {"name":"sugar","sizeBytes":1073741824,"replicas":2}
	POST /v1/volumes <- {"name":"sugar","sizeBytes":1073741824,"replicas":2}
	POST /v1/volumes <- {"name":"lots","sizeBytes":1073741824,"replicas":5}
	POST /v1/volumes <- {"name":"Sugar","sizeBytes":1073741824,"replicas":2}
	POST /v1/volumes <- {"name":"odd","sizeBytes":1000,"replicas":2}
	DELETE /v1/volumes/sugar
	DELETE /v1/volumes/sugar
	DELETE /v1/volumes/tea
	POST /v1/volumes/milk/attach
	POST /v1/volumes/milk/attach <- {}
	POST /v1/volumes/milk/attach <- {"node":"n2"}
	POST /v1/volumes/milk/attach <- {"node":"N 2"}
	POST /v1/volumes/milk/attach <- {"nod":"n2"}
	POST /v1/volumes/milk/detach
	POST /v1/volumes/milk/detach <- {"force":true}
	POST /v1/volumes/none/detach
	POST /v1/volumes/none/verify
	GET /v1/events
	GET /v1/events?limit=1
	GET /v1/events?since=0000000000000002&limit=2
	GET /v1/events?since=z
	GET /v1/events?limit=0
	GET /v1/events?limit=1001
	GET /v1/events?limit=x
	GET /v1/events?lmit=1
	GET /v1/events?since=a&since=b
	GET /v1/status?verbose=1
	POST /v1/internal/checksums <- {"a":1}
	POST /v1/internal/Bad_Call
	GET /
	GET /v1/nothing
	DELETE /v1/status
	PUT /v1/volumes/tea
`

func TestEmptyListsAreLists(t *testing.T) {
	s := NewServer(silent{fake.New()}, Options{})
	for _, path := range []string{"/v1/nodes", "/v1/pools", "/v1/volumes", "/v1/events"} {
		if w := do(s, "GET", path, ""); w.Code != 200 || strings.TrimSpace(w.Body.String()) != "[]" {
			t.Errorf("%s: %d %q", path, w.Code, w.Body)
		}
	}
}

// silent is a cluster without anything.
type silent struct{ *fake.Cluster }

func (silent) Nodes(context.Context) ([]resource.Node, error)     { return nil, nil }
func (silent) Pools(context.Context) ([]resource.Pool, error)     { return nil, nil }
func (silent) Volumes(context.Context) ([]resource.Volume, error) { return nil, nil }
func (silent) Events(context.Context, string, int) ([]resource.Event, error) {
	return nil, nil
}

func TestBadBodies(t *testing.T) {
	c := fake.New()
	s := NewServer(c, Options{})
	for _, b := range []struct {
		body   string
		status int
		want   string
	}{
		{``, 400, "has no body"},
		{`   `, 400, "has no body"},
		{`garbage`, 400, "not a JSON object"},
		{`[]`, 400, "not a JSON object"},
		{`null`, 400, "not a JSON object"},
		{`{`, 400, "cut off"},
		{`{"name":`, 400, "cut off"},
		{`{"name" "x"}`, 400, "not valid JSON at byte 9"},
		{`{"name":"x"} {}`, 400, "something follows"},
		{`{"name":"x"} x`, 400, "something follows"},
		{`{"nam":"x"}`, 400, `unknown field "nam"`},
		{`{"name":7}`, 400, `field "name" wants a string, not a number`},
		{`{"sizeBytes":"10GiB"}`, 400, `field "sizeBytes" wants a whole number, not negative, not a string`},
		{`{"sizeBytes":-1}`, 400, `field "sizeBytes" wants`},
		{`{"sizeBytes":1.5}`, 400, `field "sizeBytes" wants`},
		{`{"sizeBytes":18446744073709551616}`, 400, `field "sizeBytes" wants`},
		{`{"replicas":"2"}`, 400, `field "replicas" wants a whole number, not a string`},
		{`{"pools":"ssd1"}`, 400, `field "pools" wants a list, not a string`},
		{`{"name":"` + strings.Repeat("x", maxBody) + `"}`, 413, "longer than 65536 bytes"},
		{strings.Repeat("[", 20000), 400, "not a JSON object"},
		{`{"name":` + strings.Repeat("[", 20000), 400, "not valid JSON"},
	} {
		w := do(s, "POST", "/v1/volumes", b.body)
		if err := problemOf(t, w); w.Code != b.status || !fault.Is(err, fault.Invalid) || !strings.Contains(err.Error(), b.want) {
			t.Errorf("%.40q: %d %v, want %q", b.body, w.Code, err, b.want)
		}
	}
	for _, media := range []string{"", "text/plain", "application/x-www-form-urlencoded", "application/json; charset"} {
		w := do(s, "POST", "/v1/volumes", `{}`, "Content-Type", media)
		if err := problemOf(t, w); w.Code != http.StatusUnsupportedMediaType || !fault.Is(err, fault.Invalid) {
			t.Errorf("%q: %d %v", media, w.Code, err)
		}
	}
	if w := do(s, "POST", "/v1/internal/big", strings.Repeat("x", 16<<20+1)); w.Code != http.StatusRequestEntityTooLarge {
		t.Errorf("a big call: %d", w.Code)
	}
	if calls := c.Calls(); len(calls) != 0 {
		t.Errorf("bad requests reached the cluster: %q", calls)
	}
}

// TestEveryKindHasItsStatus fails the backend with every kind and looks at the answer.
func TestEveryKindHasItsStatus(t *testing.T) {
	c := fake.New()
	s := NewServer(c, Options{})
	for _, e := range problem.Table() {
		want := fault.New(e.Kind, "volume tea", "words")
		for call, request := range map[string][3]string{
			"Status":       {"GET", "/v1/status"},
			"CreateVolume": {"POST", "/v1/volumes", `{"name":"x","sizeBytes":512,"replicas":1}`},
			"CreatePool":   {"POST", "/v1/pools", `{"node":"n1","dir":"/x","name":"x"}`},
			"DeleteVolume": {"DELETE", "/v1/volumes/milk"},
			"Attach":       {"POST", "/v1/volumes/milk/attach"},
			"Detach":       {"POST", "/v1/volumes/milk/detach"},
			"Verify":       {"POST", "/v1/volumes/milk/verify"},
			"Follow":       {"GET", "/v1/events/stream"},
			"Internal":     {"POST", "/v1/internal/x"},
		} {
			c.Fail(call, want)
			w := do(s, request[0], request[1], request[2])
			if err := problemOf(t, w); w.Code != e.Status || !fault.Is(err, e.Kind) || err.Error() != want.Error() {
				t.Errorf("%s, %v: %d %v", call, e.Kind, w.Code, err)
			}
		}
	}
}

// odd is a cluster with bugs.
type odd struct{ *fake.Cluster }

func (odd) Status(context.Context) (resource.Status, error)   { panic("boom") }
func (odd) Version(context.Context) (resource.Version, error) { panic(http.ErrAbortHandler) }
func (odd) Node(context.Context, string) (resource.Node, error) {
	return resource.Node{}, errors.New("no kind")
}
func (odd) Pools(ctx context.Context) ([]resource.Pool, error) { <-ctx.Done(); return nil, ctx.Err() }
func (odd) Verify(_ context.Context, name string, progress func(done, todo uint64)) (resource.Verified, error) {
	if name == "late" {
		progress(1, 2)
	}
	panic("boom")
}

func TestPanicsAndBugs(t *testing.T) {
	var log journal
	s := NewServer(odd{fake.New()}, Options{Logger: logTo(&log), Timeout: time.Millisecond})
	for _, request := range []string{"GET /v1/status", "POST /v1/volumes/tea/verify"} {
		method, path, _ := strings.Cut(request, " ")
		w := do(s, method, path, "")
		if err := problemOf(t, w); w.Code != 500 || !fault.Is(err, fault.Internal) || strings.Contains(err.Error(), "boom") {
			t.Errorf("%s: %d %v", request, w.Code, err)
		}
	}
	if text := log.String(); !strings.Contains(text, "level=ERROR") || !strings.Contains(text, "boom") || !strings.Contains(text, "server_test.go") {
		t.Errorf("the log has no panic with its stack: %s", text)
	}
	if w := do(s, "GET", "/v1/nodes/n1", ""); w.Code != 500 || !fault.Is(problemOf(t, w), fault.Internal) {
		t.Errorf("an error without a kind: %d %s", w.Code, w.Body)
	}
	if w := do(s, "GET", "/v1/pools", ""); w.Code != 504 || !strings.Contains(problemOf(t, w).Error(), "gave up after 1ms") {
		t.Errorf("the deadline: %d %s", w.Code, w.Body)
	}
	if w := do(s, "POST", "/v1/volumes/late/verify", ""); w.Code != 200 && w.Code != 500 {
		t.Errorf("a late panic: %d %s", w.Code, w.Body)
	}
	defer func() {
		if p := recover(); p != http.ErrAbortHandler {
			t.Errorf("an aborted handler: %v", p)
		}
	}()
	do(s, "GET", "/v1/version", "")
}

func TestRequestsAreLogged(t *testing.T) {
	var log journal
	s := NewServer(fake.New(), Options{Logger: logTo(&log)})
	do(s, "GET", "/v1/volumes/none", "")
	for _, want := range []string{"level=DEBUG", "method=GET", "path=/v1/volumes/none", "status=404", "no such volume"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("%q is missing: %s", want, log.String())
		}
	}
}

func TestOtherSitesAndAuthorization(t *testing.T) {
	c := fake.New()
	s := NewServer(c, Options{Authorize: func(r *http.Request) error {
		if r.Header.Get("Secret") != "x" {
			return fault.New(fault.Permission, "call", "who are you?")
		}
		return nil
	}})
	w := do(s, "POST", "/v1/volumes/tea/detach", "", "Sec-Fetch-Site", "cross-site")
	if err := problemOf(t, w); w.Code != 403 || !fault.Is(err, fault.Permission) {
		t.Errorf("another site: %d %v", w.Code, err)
	}
	if w := do(s, "POST", "/v1/internal/x", ""); w.Code != 403 {
		t.Errorf("a call of a stranger: %d", w.Code)
	}
	if calls := c.Calls(); len(calls) != 0 {
		t.Errorf("refused requests reached the cluster: %q", calls)
	}
	if w := do(s, "POST", "/v1/internal/x", "body", "Secret", "x"); w.Code != 200 || w.Body.String() != "x:body" {
		t.Errorf("a call of a friend: %d %s", w.Code, w.Body)
	}
	if w := do(s, "POST", "/v1/volumes/tea/detach", "", "Secret", ""); w.Code != 204 {
		t.Errorf("a public call: %d", w.Code)
	}
}
