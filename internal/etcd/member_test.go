package etcd

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"samovar/internal/etcd/etcdtest"
	"samovar/internal/etcd/kv"
	"samovar/internal/fault"
)

// ports counts through the ports below those that the kernel gives to outgoing connections, so that a member that is
// stopped for a while finds its port free when it comes back. Test processes begin at different places.
var ports atomic.Uint32

// freeAddresses finds n addresses that nobody uses and that this process was not given before.
func freeAddresses(t *testing.T, n int) []string {
	t.Helper()
	const first, count = 15_000, 15_000
	var addresses []string
	for tries := 0; len(addresses) < n; tries++ {
		if tries == count {
			t.Fatal("no free ports")
		}
		port := first + (uint32(os.Getpid())*97+ports.Add(1))%count
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			continue
		}
		l.Close()
		addresses = append(addresses, l.Addr().String())
	}
	return addresses
}

// quick are options of a member for tests: short elections, no fsync.
func quick(t *testing.T, name string) MemberOptions {
	addresses := freeAddresses(t, 2)
	return MemberOptions{Name: name, Dir: filepath.Join(t.TempDir(), name), ClusterToken: "test",
		ClientURL: addresses[0], PeerURL: addresses[1],
		Heartbeat: 50 * time.Millisecond, ElectionTimeout: 500 * time.Millisecond, UnsafeNoFsync: true, Logger: testLogger(t)}
}

// testLogger shows warnings and errors of a test while it runs; etcd has goroutines that log a little longer.
func testLogger(t *testing.T) *slog.Logger {
	w := &testWriter{t: t}
	t.Cleanup(func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.t = nil
	})
	level := slog.LevelWarn
	if os.Getenv("SAMOVAR_ETCD_LOG") != "" {
		level = slog.LevelDebug
	}
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: level}))
}

type testWriter struct {
	mu sync.Mutex
	t  *testing.T
}

func (w *testWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.t != nil {
		w.t.Log(strings.TrimSpace(string(p)))
	}
	return len(p), nil
}

func startMember(t *testing.T, opts MemberOptions) *Member {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
	defer cancel()
	m, err := Start(ctx, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeMember(t, m) })
	return m
}

func startReady(t *testing.T, opts MemberOptions) *Member {
	t.Helper()
	m := startMember(t, opts)
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
	defer cancel()
	if err := m.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	return m
}

func closeMember(t *testing.T, m *Member) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
	defer cancel()
	if err := m.Close(ctx); err != nil {
		t.Error(err)
	}
}

func dial(t *testing.T, opts Options) *Client {
	t.Helper()
	if opts.Logger == nil {
		opts.Logger = testLogger(t)
	}
	c, err := Dial(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

func TestClientConforms(t *testing.T) {
	t.Parallel()
	m := startReady(t, quick(t, "one"))
	etcdtest.Conformance(t, etcdtest.Subject{
		Open: func(t *testing.T) kv.Store {
			c, err := Dial(Options{Endpoints: []string{m.Endpoint()}})
			if err != nil {
				t.Fatal(err)
			}
			return c
		},
		Compact: func(t *testing.T, revision int64) {
			if err := dial(t, Options{Endpoints: []string{m.Endpoint()}}).Compact(t.Context(), revision); err != nil {
				t.Fatal(err)
			}
		},
		Pass: time.Sleep,
	})
}

func TestMemberRunsAndReports(t *testing.T) {
	var log bytes.Buffer
	opts := quick(t, "one")
	opts.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))
	m := startReady(t, opts)
	status := m.Status()
	if !status.Ready || !status.Leader.Self || status.Leader.Name != "one" || status.Term == 0 || status.DatabaseBytes == 0 ||
		status.Failure != nil || len(status.Alarms) != 0 {
		t.Fatalf("%+v", status)
	}
	c := dial(t, Options{Endpoints: []string{m.Endpoint()}})
	id, err := c.ClusterID(t.Context())
	if err != nil || id != status.ClusterID {
		t.Fatalf("cluster id %s, %v; the member says %s", id, err, status.ClusterID)
	}
	// A watch is open and would hold etcd's own end up for seconds.
	<-c.Watch(t.Context(), "", 0)
	begin := time.Now()
	hasty, cancel := context.WithCancel(t.Context())
	cancel()
	if err := m.Close(hasty); !fault.Is(err, fault.Aborted) || !strings.Contains(err.Error(), "still busy") {
		t.Errorf("closing without time: %v", err)
	}
	closeMember(t, m)
	if took := time.Since(begin); took > 3*time.Second {
		t.Errorf("closing took %v", took)
	}
	if log.Len() != 0 {
		t.Errorf("a quiet life logged:\n%s", log.String())
	}
	if m.Err() != nil {
		t.Error(m.Err())
	}
}

func TestOneDirectoryOneMember(t *testing.T) {
	opts := quick(t, "one")
	m := startReady(t, opts)
	second := opts
	addresses := freeAddresses(t, 2)
	second.ClientURL, second.PeerURL = addresses[0], addresses[1]
	begin := time.Now()
	_, err := Start(t.Context(), second)
	if !fault.Is(err, fault.Busy) || !strings.Contains(err.Error(), fmt.Sprintf("in use by process %d", os.Getpid())) {
		t.Fatalf("a second start: %v", err)
	}
	if took := time.Since(begin); took > time.Second {
		t.Errorf("it took %v to refuse", took)
	}
	closeMember(t, m)
	closeMember(t, startReady(t, opts)) // the directory is free again

	// The same address in use is Busy as well, and leaves the new directory free.
	m = startReady(t, opts)
	other := quick(t, "two")
	other.ClientURL = m.Endpoint()
	if _, err := Start(t.Context(), other); !fault.Is(err, fault.Busy) {
		t.Fatalf("an address in use: %v", err)
	}
	other.ClientURL = freeAddresses(t, 1)[0]
	startReady(t, other)
}

func TestForeignAndLostDirectories(t *testing.T) {
	opts := quick(t, "one")
	refused := func(change func(*MemberOptions), kind fault.Kind, text string) {
		t.Helper()
		o := opts
		o.InitialCluster = nil
		change(&o)
		_, err := Start(t.Context(), o)
		if !fault.Is(err, kind) || !strings.Contains(err.Error(), text) {
			t.Fatalf("%v (%v), want %v with %q", err, fault.KindOf(err), kind, text)
		}
	}
	refused(func(o *MemberOptions) { o.MustExist = true }, fault.Stale, "empty or missing")
	closeMember(t, startReady(t, opts))
	refused(func(o *MemberOptions) { o.ClusterToken = "another" }, fault.Foreign, `cluster "test", not of "another"`)
	refused(func(o *MemberOptions) { o.Name = "two" }, fault.Foreign, `member "one", not "two"`)

	identityPath := filepath.Join(opts.Dir, identityFile)
	good, err := os.ReadFile(identityPath)
	if err != nil {
		t.Fatal(err)
	}
	rewrite := func(data string) {
		if err := os.WriteFile(identityPath, []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	rewrite(strings.Replace(string(good), `"version": 1`, `"version": 2`, 1))
	refused(func(*MemberOptions) {}, fault.Newer, "version 2")
	rewrite("{")
	refused(func(*MemberOptions) {}, fault.Corrupt, identityFile)
	if err := os.Remove(identityPath); err != nil {
		t.Fatal(err)
	}
	refused(func(*MemberOptions) {}, fault.Foreign, "not a directory of this program")
	rewrite(string(good))

	database := filepath.Join(opts.Dir, dataDir, "member", "snap", "db")
	if err := os.WriteFile(database, bytes.Repeat([]byte("spoilt!"), 10_000), 0o600); err != nil {
		t.Fatal(err)
	}
	refused(func(*MemberOptions) {}, fault.IO, "database")
}

func TestLostDataIsNotForgotten(t *testing.T) {
	opts := quick(t, "one")
	opts.CompactRevisions = 100
	closeMember(t, startReady(t, opts))
	opts.MustExist = true
	closeMember(t, startReady(t, opts))
	if err := os.RemoveAll(filepath.Join(opts.Dir, dataDir)); err != nil {
		t.Fatal(err)
	}
	if _, err := Start(t.Context(), opts); !fault.Is(err, fault.Stale) || !strings.Contains(err.Error(), "lost its data") {
		t.Fatal(err)
	}
}

func TestMemberOptionsAreChecked(t *testing.T) {
	for name, spoil := range map[string]func(*MemberOptions){
		"no name":         func(o *MemberOptions) { o.Name = "" },
		"no token":        func(o *MemberOptions) { o.ClusterToken = "" },
		"no port":         func(o *MemberOptions) { o.ClientURL = "localhost" },
		"a free port":     func(o *MemberOptions) { o.ListenPeer = "localhost:0" },
		"not in cluster":  func(o *MemberOptions) { o.InitialCluster = map[string]string{"two": "h:1"} },
		"hasty elections": func(o *MemberOptions) { o.ElectionTimeout = o.Heartbeat },
	} {
		o := quick(t, "one")
		spoil(&o)
		if _, err := Start(t.Context(), o); !fault.Is(err, fault.Invalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
