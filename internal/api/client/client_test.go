package client_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"samovar/internal/api"
	"samovar/internal/api/client"
	"samovar/internal/api/fake"
	"samovar/internal/api/problem"
	"samovar/internal/fault"
	"samovar/internal/resource"
)

// node serves a cluster and gives its address.
func node(t *testing.T, h http.Handler) string {
	t.Helper()
	ts := httptest.NewServer(h)
	t.Cleanup(func() { ts.CloseClientConnections(); ts.Close() })
	return ts.Listener.Addr().String()
}

// nobody is an address where nothing listens.
func nobody(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// mute accepts connections and never answers; requests counts what it was sent.
func mute(t *testing.T) (address string, requests func() int) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	n := 0
	var group sync.WaitGroup
	group.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			group.Go(func() {
				defer conn.Close()
				buffer := make([]byte, 4096)
				if _, err := conn.Read(buffer); err == nil {
					mu.Lock()
					n++
					mu.Unlock()
				}
				io.Copy(io.Discard, conn) // until the client leaves
			})
		}
	})
	t.Cleanup(func() { l.Close(); group.Wait() })
	return l.Addr().String(), func() int { mu.Lock(); defer mu.Unlock(); return n }
}

func dial(t *testing.T, o client.Options, endpoints ...string) *client.Client {
	t.Helper()
	c, err := client.New(endpoints, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func TestEndpoints(t *testing.T) {
	for _, good := range []string{"127.0.0.1:7700", "[::1]:7700", "n1.example.com:7700", "http://n1:7700", "https://n1:7700/"} {
		if _, err := client.New([]string{good}, client.Options{}); err != nil {
			t.Errorf("%s: %v", good, err)
		}
	}
	for _, bad := range []string{"", "n1", ":7700", "n1:", "n1:7700/v1", "ftp://n1:1", "http://a@n1:1", "n1:7700:1", "n 1:1", "n1:1?x", "[::1:7700"} {
		if _, err := client.New([]string{bad}, client.Options{}); !fault.Is(err, fault.Invalid) {
			t.Errorf("%q: %v", bad, err)
		}
	}
	if _, err := client.New(nil, client.Options{}); !fault.Is(err, fault.Invalid) {
		t.Errorf("none: %v", err)
	}
}

// ask calls one method and keeps only its error.
type ask struct {
	backend string // the Backend's method
	call    func(context.Context, *client.Client) error
}

func asks() []ask {
	return []ask{
		{"Version", func(ctx context.Context, c *client.Client) error { _, err := c.Version(ctx); return err }},
		{"Status", func(ctx context.Context, c *client.Client) error { _, err := c.Status(ctx); return err }},
		{"Nodes", func(ctx context.Context, c *client.Client) error { _, err := c.Nodes(ctx); return err }},
		{"Node", func(ctx context.Context, c *client.Client) error { _, err := c.Node(ctx, "n1"); return err }},
		{"Pools", func(ctx context.Context, c *client.Client) error { _, err := c.Pools(ctx); return err }},
		{"Pool", func(ctx context.Context, c *client.Client) error { _, err := c.Pool(ctx, "ssd1"); return err }},
		{"CreatePool", func(ctx context.Context, c *client.Client) error {
			_, err := c.CreatePool(ctx, resource.NewPool{Node: "n1", Dir: "/srv/x", Name: "x"})
			return err
		}},
		{"Volumes", func(ctx context.Context, c *client.Client) error { _, err := c.Volumes(ctx); return err }},
		{"Volume", func(ctx context.Context, c *client.Client) error { _, err := c.Volume(ctx, "tea"); return err }},
		{"CreateVolume", func(ctx context.Context, c *client.Client) error {
			_, err := c.CreateVolume(ctx, resource.NewVolume{Name: "x", Size: 1 << 30, Copies: 2})
			return err
		}},
		{"Attach", func(ctx context.Context, c *client.Client) error {
			_, err := c.Attach(ctx, "milk", resource.Attach{Node: "n2"})
			return err
		}},
		{"Detach", func(ctx context.Context, c *client.Client) error { return c.Detach(ctx, "milk") }},
		{"DeleteVolume", func(ctx context.Context, c *client.Client) error { return c.DeleteVolume(ctx, "milk") }},
		{"Verify", func(ctx context.Context, c *client.Client) error { _, err := c.Verify(ctx, "tea", nil); return err }},
		{"Events", func(ctx context.Context, c *client.Client) error { _, err := c.Events(ctx, "0", 10); return err }},
		{"Follow", func(ctx context.Context, c *client.Client) error {
			return c.Follow(ctx, "0", func(resource.Event) error { return io.EOF })
		}},
		{"Internal", func(ctx context.Context, c *client.Client) error { _, err := c.Internal(ctx, "x", nil); return err }},
	}
}

// TestEveryMethodIsAsked keeps the list above complete.
func TestEveryMethodIsAsked(t *testing.T) {
	backend := reflect.TypeFor[api.Backend]()
	for i := range backend.NumMethod() {
		name := backend.Method(i).Name
		if !slices.ContainsFunc(asks(), func(a ask) bool { return a.backend == name }) {
			t.Errorf("%s is not asked", name)
		}
		if _, ok := reflect.TypeFor[*client.Client]().MethodByName(name); !ok {
			t.Errorf("the client has no %s", name)
		}
	}
}

func TestEveryCallWorks(t *testing.T) {
	c := dial(t, client.Options{}, node(t, api.NewServer(fake.New(), api.Options{})))
	for _, a := range asks() {
		if err := a.call(t.Context(), c); err != nil && err != io.EOF {
			t.Errorf("%s: %v", a.backend, err)
		}
	}
	if e, err := c.Events(t.Context(), "", 2); err != nil || len(e) != 2 || e[1].Reason != "deleted" {
		t.Errorf("the newest events: %+v %v", e, err)
	}
	if e, err := c.Events(t.Context(), "0000000000000001", 1); err != nil || len(e) != 1 || e[0].ID != "0000000000000002" {
		t.Errorf("events behind one: %+v %v", e, err)
	}
	if b, err := c.Internal(t.Context(), "echo", []byte("body")); err != nil || string(b) != "echo:body" {
		t.Errorf("internal: %q %v", b, err)
	}
	var last resource.Progress
	if v, err := c.Verify(t.Context(), "tea", func(p resource.Progress) { last = p }); err != nil || !v.Equal || last.Done != last.Todo || last.Done == 0 {
		t.Errorf("verify: %+v %+v %v", v, last, err)
	}
}

// TestEveryKindRoundTrips sends every kind through every call.
func TestEveryKindRoundTrips(t *testing.T) {
	backend := fake.New()
	c := dial(t, client.Options{}, node(t, api.NewServer(backend, api.Options{})))
	for _, a := range asks() {
		for _, e := range problem.Table() {
			want := fault.New(e.Kind, "volume tea", "held by node n2")
			backend.Fail(a.backend, want)
			if err := a.call(t.Context(), c); !fault.Is(err, e.Kind) || err.Error() != want.Error() {
				t.Errorf("%s: %v came back as %v %v", a.backend, e.Kind, fault.KindOf(err), err)
			}
			if a.backend == "Verify" {
				backend.Fail("Verify", nil)
				backend.Fail("VerifyEnd", want)
				if err := a.call(t.Context(), c); !fault.Is(err, e.Kind) || err.Error() != want.Error() {
					t.Errorf("late %s: %v came back as %v", a.backend, e.Kind, err)
				}
			}
		}
	}
}

func TestSlipsAreToldWithoutANode(t *testing.T) {
	c := dial(t, client.Options{}, nobody(t))
	ctx := t.Context()
	for i, call := range []func() error{
		func() error { _, err := c.Volume(ctx, "../x"); return err },
		func() error { _, err := c.Node(ctx, "a/b"); return err },
		func() error { _, err := c.Pool(ctx, ""); return err },
		func() error { _, err := c.CreateVolume(ctx, resource.NewVolume{Name: "x"}); return err },
		func() error { _, err := c.CreatePool(ctx, resource.NewPool{Name: "x"}); return err },
		func() error { _, err := c.Attach(ctx, "x@y", resource.Attach{}); return err },
		func() error { _, err := c.Attach(ctx, "x", resource.Attach{Node: "/"}); return err },
		func() error { return c.Detach(ctx, "") },
		func() error { return c.DeleteVolume(ctx, "?") },
		func() error { _, err := c.Verify(ctx, "X", nil); return err },
		func() error { _, err := c.Internal(ctx, "a/b", nil); return err },
	} {
		if err := call(); !fault.Is(err, fault.Invalid) {
			t.Errorf("call %d: %v", i, err)
		}
	}
}

// notices collects what a client tells on the way.
type notices struct {
	mu   sync.Mutex
	list []string
	come chan struct{}
}

func newNotices() *notices { return &notices{come: make(chan struct{}, 100)} }

func (n *notices) add(endpoint string, err error) {
	n.mu.Lock()
	n.list = append(n.list, fmt.Sprint(endpoint, " | ", err))
	n.mu.Unlock()
	n.come <- struct{}{}
}

func (n *notices) all() []string { n.mu.Lock(); defer n.mu.Unlock(); return slices.Clone(n.list) }

func TestFailsOver(t *testing.T) {
	dead, alive := nobody(t), node(t, api.NewServer(fake.New(), api.Options{}))
	for _, a := range asks() {
		n := newNotices()
		c := dial(t, client.Options{Notice: n.add}, dead, alive)
		if err := a.call(t.Context(), c); err != nil && err != io.EOF && !fault.Is(err, fault.NotFound) {
			t.Errorf("%s: %v", a.backend, err)
		}
		if want := dead + " | " + dead + " did not answer: connection refused"; !slices.Equal(n.all(), []string{want}) {
			t.Errorf("%s: told %q", a.backend, n.all())
		}
		// The node that answered is asked first from now on.
		if _, err := c.Status(t.Context()); err != nil || len(n.all()) != 1 {
			t.Errorf("%s: again: %v, told %q", a.backend, err, n.all())
		}
	}
}

func TestNobodyAnswers(t *testing.T) {
	one, two := nobody(t), nobody(t)
	c := dial(t, client.Options{}, one)
	if _, err := c.Status(t.Context()); !fault.Is(err, fault.Unavailable) || err.Error() != "ask for the status: "+one+" did not answer: connection refused" {
		t.Errorf("one: %v", err)
	}
	c = dial(t, client.Options{}, one, two)
	err := c.Detach(t.Context(), "tea")
	if want := "detach volume tea: no node answered: " + one + " (connection refused), " + two + " (connection refused)"; !fault.Is(err, fault.Unavailable) || err.Error() != want {
		t.Errorf("two: %v", err)
	}
	if err := c.Watch(t.Context(), func() error { return nil }); !fault.Is(err, fault.Unavailable) {
		t.Errorf("watch: %v", err)
	}
}

func TestSilentNode(t *testing.T) {
	silent, requests := mute(t)
	alive := node(t, api.NewServer(fake.New(), api.Options{}))
	// A question goes on to the next node, in time.
	for _, question := range []func() error{
		func() error {
			_, err := dial(t, client.Options{Timeout: 200 * time.Millisecond}, silent, alive).Status(t.Context())
			return err
		},
		func() error {
			err := dial(t, client.Options{Timeout: 200 * time.Millisecond}, silent, alive).Watch(t.Context(), func() error { return io.EOF })
			if err == io.EOF {
				return nil
			}
			return err
		},
	} {
		if err := question(); err != nil {
			t.Errorf("a question: %v", err)
		}
	}
	// A change does not: it may have happened.
	before := requests()
	c := dial(t, client.Options{Timeout: 50 * time.Millisecond}, silent, alive)
	err := c.Detach(t.Context(), "tea")
	if !fault.Is(err, fault.Aborted) || !strings.Contains(err.Error(), silent) || !strings.Contains(err.Error(), "nothing within 50ms") || !strings.Contains(err.Error(), "may have happened") {
		t.Errorf("a change: %v", err)
	}
	if n := requests() - before; n != 1 {
		t.Errorf("the change was sent %d times", n)
	}
	// The only node, asked a question.
	_, err = dial(t, client.Options{Timeout: 50 * time.Millisecond}, silent).Status(t.Context())
	if want := silent + " did not answer: nothing within 50ms"; !fault.Is(err, fault.Unavailable) || !strings.Contains(err.Error(), want) {
		t.Errorf("a question: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := dial(t, client.Options{}, silent).Status(ctx); err == nil || !strings.Contains(err.Error(), "interrupted") {
		t.Errorf("interrupted: %v", err)
	}
}

// TestBrokenConnection has a node that reads the request and hangs up, before and in the middle of the answer.
func TestBrokenConnection(t *testing.T) {
	alive := node(t, api.NewServer(fake.New(), api.Options{}))
	for name, answer := range map[string]string{"before": "", "middle": "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"} {
		broken := node(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			conn, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			io.WriteString(conn, answer)
			conn.Close()
		}))
		c := dial(t, client.Options{}, broken, alive)
		if _, err := c.Status(t.Context()); err != nil {
			t.Errorf("%s: a question: %v", name, err)
		}
		c = dial(t, client.Options{}, broken, alive)
		if _, err := c.Attach(t.Context(), "milk", resource.Attach{Node: "n2"}); !fault.Is(err, fault.Aborted) || !strings.Contains(err.Error(), "closed the connection") {
			t.Errorf("%s: a change: %v", name, err)
		}
	}
}

func TestNodeThatShutsDown(t *testing.T) {
	ending, backend := api.NewServer(fake.New(), api.Options{}), fake.New()
	ending.Close()
	n := newNotices()
	addresses := []string{node(t, ending), node(t, api.NewServer(backend, api.Options{}))}
	c := dial(t, client.Options{Notice: n.add}, addresses...)
	if err := c.Detach(t.Context(), "tea"); !fault.Is(err, fault.Shutdown) {
		t.Errorf("a change: %v", err)
	}
	if _, err := c.Status(t.Context()); err != nil || len(n.all()) != 1 || !strings.Contains(n.all()[0], "shutting down") {
		t.Errorf("a question: %v, told %q", err, n.all())
	}
}

func TestNotASamovar(t *testing.T) {
	for status, kind := range map[int]fault.Kind{404: fault.Internal, 302: fault.Internal, 502: fault.Unavailable, 503: fault.Unavailable} {
		c := dial(t, client.Options{}, node(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "/elsewhere")
			w.WriteHeader(status)
			io.WriteString(w, "<html>")
		})))
		if _, err := c.Status(t.Context()); !fault.Is(err, kind) || !strings.Contains(err.Error(), "not as a samovar node does") {
			t.Errorf("%d: %v", status, err)
		}
	}
	c := dial(t, client.Options{}, node(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "<html>") })))
	if _, err := c.Status(t.Context()); !fault.Is(err, fault.Corrupt) {
		t.Errorf("no JSON: %v", err)
	}
	if err := c.Watch(t.Context(), func() error { return nil }); !fault.Is(err, fault.Internal) || !strings.Contains(err.Error(), "no event stream") {
		t.Errorf("no stream: %v", err)
	}
}
