package api

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"samovar/internal/api/fake"
	"samovar/internal/api/problem"
	"samovar/internal/api/sse"
	"samovar/internal/fault"
	"samovar/internal/resource"
)

// open starts a stream on a real connection.
func open(t *testing.T, base, method, path string, header ...string) (*http.Response, *sse.Reader) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, base+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { response.Body.Close() })
	if response.StatusCode != 200 || response.Header.Get("Content-Type") != sse.ContentType {
		t.Fatalf("%s: %s %v", path, response.Status, response.Header)
	}
	return response, sse.NewReader(response.Body)
}

func next(t *testing.T, r *sse.Reader) sse.Message {
	t.Helper()
	m, err := r.Next()
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func serve(t *testing.T, c Backend, o Options) (*Server, string) {
	t.Helper()
	s := NewServer(c, o)
	ts := httptest.NewServer(s)
	t.Cleanup(func() { s.Close(); ts.Close() })
	return s, ts.URL
}

func TestEventStreamResumes(t *testing.T) {
	c := fake.New()
	_, base := serve(t, c, Options{})
	response, events := open(t, base, "GET", "/v1/events/stream?since=0000000000000001")
	for _, want := range []string{"0000000000000002", "0000000000000003"} {
		m := next(t, events)
		var e resource.Event
		if err := json.Unmarshal([]byte(m.Data), &e); err != nil || m.ID != want || e.ID != want || m.Name != EventName {
			t.Fatalf("%+v, %v, want %s", m, err, want)
		}
	}
	response.Body.Close()
	c.Publish("volume tea", "while-away", "nobody listened", "info")
	// A browser repeats the URL as it was and adds the header, which must win.
	_, events = open(t, base, "GET", "/v1/events/stream?since=0000000000000001", "Last-Event-ID", "0000000000000003")
	if m := next(t, events); m.ID != "0000000000000004" {
		t.Errorf("resumed at %+v", m)
	}
	c.Publish("volume tea", "live", "line\nbreak", "info")
	if m := next(t, events); m.ID != "0000000000000005" || !strings.Contains(m.Data, `line\nbreak`) {
		t.Errorf("live: %+v", m)
	}
	c.Break()
	if m, err := events.Next(); err != io.EOF {
		t.Errorf("a lost source: %+v %v", m, err)
	}
}

func TestWatchCoalesces(t *testing.T) {
	c := fake.New()
	_, base := serve(t, c, Options{})
	_, changes := open(t, base, "GET", "/v1/watch")
	if m := next(t, changes); m.Name != ChangeName || m.ID != "" {
		t.Fatalf("the first: %+v", m)
	}
	last := ""
	for range 50 {
		last = c.Publish("volume tea", "changed", "", "info").ID
	}
	n := 1
	for m := next(t, changes); m.ID != last; m = next(t, changes) {
		n++
	}
	if n > 50 {
		t.Errorf("%d changes", n)
	}
}

func TestStreamsAreKeptAlive(t *testing.T) {
	_, base := serve(t, fake.New(), Options{KeepAlive: time.Millisecond})
	for _, path := range []string{"/v1/events/stream", "/v1/watch"} {
		response, _ := open(t, base, "GET", path)
		text := make([]byte, 0, 100)
		for buffer := make([]byte, 100); !strings.Contains(string(text), ": alive\n\n: alive\n\n"); {
			n, err := response.Body.Read(buffer)
			if err != nil {
				t.Fatalf("%s: %q, %v", path, text, err)
			}
			text = append(text, buffer[:n]...)
		}
	}
}

// slowVerify tells progress, waits to be released, and ends.
type slowVerify struct {
	*fake.Cluster
	quiet   bool
	release chan struct{}
	ended   chan error
}

func (s slowVerify) Verify(ctx context.Context, name string, progress func(done, todo uint64)) (resource.Verified, error) {
	if !s.quiet {
		progress(1, 4)
	}
	select {
	case <-s.release:
		return s.Cluster.Verify(ctx, name, progress)
	case <-ctx.Done():
		s.ended <- ctx.Err()
		return resource.Verified{}, ctx.Err()
	}
}

func newSlowVerify() slowVerify {
	return slowVerify{Cluster: fake.New(), release: make(chan struct{}), ended: make(chan error, 1)}
}

func TestVerifyStreams(t *testing.T) {
	c := newSlowVerify()
	_, base := serve(t, c, Options{})
	_, messages := open(t, base, "POST", "/v1/volumes/tea/verify")
	if m := next(t, messages); m.Name != ProgressName || m.Data != `{"todoBytes":4,"doneBytes":1,"bytesPerSecond":0}` {
		t.Errorf("the first: %+v", m)
	}
	close(c.release)
	var before, m sse.Message
	for m = next(t, messages); m.Name == ProgressName; m = next(t, messages) {
		before = m
	}
	var p resource.Progress
	if err := json.Unmarshal([]byte(before.Data), &p); err != nil || p.Done != p.Todo || p.Todo != 10<<30 {
		t.Errorf("the last progress: %+v %v", before, err)
	}
	var v resource.Verified
	if err := json.Unmarshal([]byte(m.Data), &v); err != nil || m.Name != ResultName || !v.Equal {
		t.Errorf("the result: %+v %v", m, err)
	}
	if _, err := messages.Next(); err != io.EOF {
		t.Errorf("behind the result: %v", err)
	}
}

func TestVerifyFailsLate(t *testing.T) {
	c := newSlowVerify()
	c.Fail("VerifyEnd", fault.New(fault.Unavailable, "volume tea", "node n2 left"))
	_, base := serve(t, c, Options{})
	_, messages := open(t, base, "POST", "/v1/volumes/tea/verify")
	next(t, messages)
	close(c.release)
	m := next(t, messages)
	for m.Name == ProgressName {
		m = next(t, messages)
	}
	var body problem.Body
	if err := json.Unmarshal([]byte(m.Data), &body); err != nil || m.Name != ErrorName || !fault.Is(body.Error.Err(), fault.Unavailable) {
		t.Errorf("%+v %v", m, err)
	}
}

func TestVerifyEndsWithItsPeer(t *testing.T) {
	c := newSlowVerify()
	_, base := serve(t, c, Options{})
	response, messages := open(t, base, "POST", "/v1/volumes/tea/verify")
	next(t, messages)
	response.Body.Close()
	<-c.ended // or the test's time-out
}

// TestServeEnds checks that the server's end closes streams at once and lets what runs finish.
func TestServeEnds(t *testing.T) {
	c := newSlowVerify()
	c.quiet = true
	s := NewServer(c, Options{KeepAlive: time.Millisecond})
	ctx, stop := context.WithCancel(t.Context())
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, l) }()
	base := "http://" + l.Addr().String()
	_, events := open(t, base, "GET", "/v1/events/stream")
	_, comparison := open(t, base, "POST", "/v1/volumes/tea/verify") // opened by a keep-alive
	stop()
	if _, err := events.Next(); err != io.EOF {
		t.Errorf("the stream: %v", err)
	}
	if m := next(t, comparison); m.Name != ErrorName || !strings.Contains(m.Data, `"shutdown"`) {
		t.Errorf("the comparison: %+v", m)
	}
	if err := <-served; err != nil {
		t.Error(err)
	}
	if w := do(s, "GET", "/v1/status", ""); w.Code != 503 || !fault.Is(problemOf(t, w), fault.Shutdown) {
		t.Errorf("afterwards: %d %s", w.Code, w.Body)
	}
}

// stuck never ends an attach until it is released, whatever its context says.
type stuck struct {
	*fake.Cluster
	entered, release chan struct{}
}

func (s stuck) Attach(context.Context, string, resource.Attach) (resource.Attachment, error) {
	s.entered <- struct{}{}
	<-s.release
	return resource.Attachment{}, nil
}

func TestServeNamesWhatIsSlow(t *testing.T) {
	c := stuck{fake.New(), make(chan struct{}), make(chan struct{})}
	s := NewServer(c, Options{Grace: 20 * time.Millisecond})
	ctx, stop := context.WithCancel(t.Context())
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, l) }()
	asked := make(chan struct{})
	go func() {
		defer close(asked)
		if response, err := http.Post("http://"+l.Addr().String()+"/v1/volumes/tea/attach", "", nil); err == nil {
			response.Body.Close()
		}
	}()
	<-c.entered
	stop()
	if err := <-served; !fault.Is(err, fault.Aborted) || !strings.Contains(err.Error(), "POST /v1/volumes/tea/attach") {
		t.Errorf("%v", err)
	}
	close(c.release)
	<-asked
}

func TestServeFails(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	if err := NewServer(fake.New(), Options{}).Serve(t.Context(), l); !fault.Is(err, fault.IO) {
		t.Errorf("%v", err)
	}
}

// TestSlowBody sends half a request and no more.
func TestSlowBody(t *testing.T) {
	_, base := serve(t, fake.New(), Options{BodyTimeout: 20 * time.Millisecond})
	conn, err := net.Dial("tcp", strings.TrimPrefix(base, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	io.WriteString(conn, "POST /v1/volumes HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{")
	answer := make([]byte, 12)
	if _, err := io.ReadFull(conn, answer); err != nil || string(answer) != "HTTP/1.1 408" {
		t.Errorf("%q %v", answer, err)
	}
}
